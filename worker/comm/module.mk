MODULES += worker/comm
worker/comm_DEPS := lib/base
worker/comm_PKGS := libcrypto
# Sums of floats, in order: wide registers, no reassociation.
CFLAGS_worker/comm/collect.c := -O3
