MODULES += lib/decide
lib/decide_DEPS := lib/llm lib/cost
