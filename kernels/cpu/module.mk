MODULES += kernels/cpu
kernels/cpu_DEPS := lib/base
