MODULES += worker/model
worker/model_DEPS := kernels kernels/cpu lib/llm lib/base
