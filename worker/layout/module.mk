MODULES += worker/layout
worker/layout_DEPS := worker/model worker/comm lib/decide lib/base
bench_comm := worker/layout
