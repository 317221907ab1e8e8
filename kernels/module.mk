MODULES += kernels
kernels_DEPS := kernels/cpu lib/base
