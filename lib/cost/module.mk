MODULES += lib/cost
lib/cost_DEPS := lib/base
