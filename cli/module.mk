MODULES += cli
cli_DEPS := lib/kube lib/llm lib/decide lib/cost lib/io
cli_PROG := baton

# cli/embed.c takes these in with .incbin, which -MMD doesn't see.
$(BUILD)/cli/embed.o: $(wildcard manifests/crds/*.yaml manifests/samples/*.yaml)

# kubectl finds plugins by their name: `kubectl baton …`.
build: $(BUILD)/bin/kubectl-baton
$(BUILD)/bin/kubectl-baton: $(BUILD)/bin/baton
	@ln -sf baton $@
