MODULES += worker/model
worker/model_DEPS := lib/decide worker/comm kernels kernels/cpu lib/llm lib/base
