MODULES += worker/model
worker/model_DEPS := worker/comm kernels kernels/cpu lib/llm lib/base
