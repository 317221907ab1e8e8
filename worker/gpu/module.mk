MODULES += worker/gpu
worker/gpu_DEPS := worker/model worker/comm kernels/cuda lib/base
worker/gpu_TEST_OBJS := $(kernels/cuda_TEST_OBJS)
worker/gpu_TEST_LIBS := $(kernels/cuda_TEST_LIBS)
$(BUILD)/tests/worker/gpu/test_ranks: | $(CUDA_TESTS_DIR)/libnccl.so.2 $(BUILD)/tests/worker/gpu/baton-worker
