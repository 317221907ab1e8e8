MODULES += worker
worker_DEPS := worker/model kernels lib/llm lib/decide lib/wire lib/xfer lib/io
worker_PROG := baton-worker
