MODULES += router
router_DEPS := lib/kube lib/llm lib/decide lib/wire lib/fetch lib/io
router_PKGS := openssl
router_PROG := baton-router
bench_router := router
$(BUILD)/router/page.o: router/chat.html
