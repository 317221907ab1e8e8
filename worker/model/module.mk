MODULES += worker/model
worker/model_DEPS := kernels lib/llm lib/base
