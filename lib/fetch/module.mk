MODULES += lib/fetch
lib/fetch_DEPS := lib/io lib/json
lib/fetch_PKGS := openssl
