MODULES += worker
worker_DEPS := worker/gpu kernels/cuda worker/layout worker/comm worker/model kernels lib/llm lib/decide lib/wire lib/xfer lib/io
worker_PROG := baton-worker
