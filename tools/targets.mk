# Targets for people: set-up, demo, test, check, lint, e2e, bench. Included by the top Makefile.
help: ## this list
	@echo "Baton $(VERSION): make <target>"; \
	grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort -u | awk -F':.*## ' '{printf "  %-16s %s\n", $$1, $$2}'

unit: tests-build ## run the C unit tests
	tools/run-unit-tests $(BUILD) $(UNIT_TESTS)
