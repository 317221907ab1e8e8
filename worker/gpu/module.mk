MODULES += worker/gpu
worker/gpu_DEPS := worker/model kernels/cuda lib/base
worker/gpu_TEST_OBJS := $(EMU_OBJS)
worker/gpu_TEST_LIBS := -lstdc++
