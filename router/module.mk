MODULES += router
router_DEPS := lib/kube lib/llm lib/decide lib/wire lib/io
router_PROG := baton-router
