MODULES += kernels/cpu
kernels/cpu_DEPS := kernels lib/base
