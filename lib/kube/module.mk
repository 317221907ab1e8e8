MODULES += lib/kube
lib/kube_DEPS := lib/io lib/json
lib/kube_PKGS := jansson yaml-0.1
