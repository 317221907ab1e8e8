# The table of operations and the forms of weights; backends (kernels/cpu) depend on it, not the other way round.
MODULES += kernels
kernels_DEPS := lib/base
CFLAGS_kernels/ops.c := -ffp-contract=off
