MODULES += controller
controller_DEPS := lib/kube lib/decide lib/io
controller_PROG := baton-controller
