MODULES += lib/json
lib/json_DEPS := lib/base
lib/json_PKGS := jansson
