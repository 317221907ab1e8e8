MODULES += cli
cli_DEPS := lib/kube lib/llm lib/decide lib/cost lib/io
cli_PROG := baton
