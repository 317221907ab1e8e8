MODULES += agent
agent_DEPS := lib/kube lib/llm lib/decide lib/wire lib/xfer lib/fetch lib/io
agent_PROG := baton-agent
