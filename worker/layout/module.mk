MODULES += worker/layout
worker/layout_DEPS := worker/model worker/comm lib/base
bench_comm := worker/layout
