MODULES += controller
controller_DEPS := lib/kube lib/decide lib/fetch lib/io
controller_PKGS := openssl
controller_PROG := baton-controller
