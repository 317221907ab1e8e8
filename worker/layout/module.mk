MODULES += worker/layout
worker/layout_DEPS := worker/model worker/comm lib/base
