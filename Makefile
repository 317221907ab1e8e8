# Baton. `make help` lists the targets; docs/architecture.md explains the tree.
# One module.mk a folder declares a module: its sources are the *.c of the folder, its archive holds all but main.c.
#   MODULES += lib/io          lib/io_DEPS := lib/base lib/json     lib/io_PKGS := libuv libcurl
#   router_PROG := baton-router     (router/main.c + the archive + everything that it depends on)
SHELL := /bin/bash
.DELETE_ON_ERROR:
.SECONDARY:
MAKEFLAGS += --no-builtin-rules --no-print-directory

SAN ?=
BREAK ?=
BUILD ?= build$(if $(SAN),/$(SAN))$(if $(BREAK),/break)
CC ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif
VERSION := 0.1.0
WARN := -Wall -Wextra -Wshadow -Wconversion -Wsign-conversion -Wstrict-prototypes -Wmissing-prototypes -Wvla \
  -Wpointer-arith -Wundef $(if $(findstring clang,$(CC)),,-Wno-format-truncation) -Werror
OPT := -O2
SAN_asan := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
SAN_ubsan := -fsanitize=undefined -fno-sanitize-recover=undefined
SAN_tsan := -fsanitize=thread
SAN_fuzz := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
# The warnings are enforced by the normal build; sanitizers give false ones, and -O3 with them takes minutes a file. SANITIZED: a test may take
# fewer of many like cases.
SAN_LAST := $(if $(SAN),-O1 -Wno-error -DSANITIZED)
CFLAGS += -std=gnu17 -g $(OPT) -fno-common -fstack-protector-strong -D_GNU_SOURCE -I. $(WARN) $(SAN_$(SAN)) \
  -DBATON_VERSION='"$(VERSION)"' $(if $(BREAK),-DBATON_BREAK)
LDFLAGS += $(SAN_$(SAN)) -rdynamic -pthread
LDLIBS := -lm -lpthread -ldl

comma := ,
MODULES :=
include $(sort $(wildcard lib/*/module.mk */module.mk kernels/*/module.mk worker/*/module.mk))

# Transitive closure of a module's dependencies, itself first (archives are grouped, so order is free).
closure = $(sort $(1) $(foreach d,$($(1)_DEPS),$(call closure,$(d))))
pkgs = $(sort $(foreach m,$(call closure,$(1)),$($(m)_PKGS)))
libs = $(foreach m,$(call closure,$(1)),$(BUILD)/$(m)/lib.a)
# Only recipes ask pkg-config: before the first set-up it knows nothing, or is absent.
pkg_libs = $(if $(call pkgs,$(1)),$(shell pkg-config --libs $(call pkgs,$(1))))
srcs = $(filter-out %/main.c,$(wildcard $(1)/*.c))
tests_of = $(wildcard tests/$(1)/test_*.c)

PROGS :=
UNIT_TESTS :=
OBJS :=
# $(1) module, $(2) object, $(3) output, $(4) more libraries, $(5) more objects
define link_rule
$(3): $(2) $(5) $(call libs,$(1))
	@mkdir -p $$(@D); echo "  LD    $$@"
	@$$(CC) $$(LDFLAGS) $($(1)_LDFLAGS) -o $$@ $$< $(5) $(if $($(1)_OBJECTS_FIRST),$$($(1)_OBJS)) -Wl,--start-group \
	  $(call libs,$(1)) -Wl,--end-group $$(call pkg_libs,$(1)) $(4) $$(LDLIBS)
endef
define test_rules
UNIT_TESTS += $(BUILD)/$(2:.c=)
OBJS += $(BUILD)/$(2:.c=.o)
$(call link_rule,$(1),$(BUILD)/$(2:.c=.o),$(BUILD)/$(2:.c=),-lcmocka $($(1)_TEST_LIBS),$($(1)_TEST_OBJS))
endef
define prog_rules
PROGS += $(BUILD)/bin/$($(1)_PROG)
OBJS += $(BUILD)/$(1)/main.o
$(call link_rule,$(1),$(BUILD)/$(1)/main.o,$(BUILD)/bin/$($(1)_PROG),)
endef
define module_rules
$(1)_OBJS := $(patsubst %.c,$(BUILD)/%.o,$(call srcs,$(1))) $($(1)_MORE_OBJS)
OBJS += $$($(1)_OBJS)
$(BUILD)/$(1)/lib.a: $$($(1)_OBJS)
	@mkdir -p $$(@D); rm -f $$@; ar rcs $$@ $$($(1)_OBJS)
endef
# bench/<name>.c becomes build/bench/<name>, linked with the module that a module.mk names: bench_xfer := lib/xfer
BENCHES :=
define bench_rules
BENCHES += $(BUILD)/bench/$(1)
OBJS += $(BUILD)/bench/$(1).o
$(call link_rule,$(bench_$(1)),$(BUILD)/bench/$(1).o,$(BUILD)/bench/$(1),)
endef
$(foreach m,$(MODULES),$(eval $(call module_rules,$(m))))
$(foreach m,$(MODULES),$(if $(wildcard $(m)/main.c),$(eval $(call prog_rules,$(m)))))
$(foreach m,$(MODULES),$(foreach t,$(call tests_of,$(m)),$(eval $(call test_rules,$(m),$(t)))))
$(foreach b,$(patsubst bench/%.c,%,$(wildcard bench/*.c)),$(if $(bench_$(b)),$(eval $(call bench_rules,$(b)))))

# What is missing is said in a sentence, before the first header that is not found.
PACKAGES := $(sort $(foreach m,$(MODULES),$($(m)_PKGS)))
have = { command -v pkg-config && pkg-config --exists $(1) && echo '\#include <$(2)>' | $(CC) -E -o /dev/null -x c - ; } >/dev/null 2>&1
$(BUILD)/.packages:
	@$(call have,$(PACKAGES),uthash.h) || { echo "Libraries that Baton is built with are missing: run \`make setup\` (as root; \`make help\` lists the targets)."; exit 1; }
	@mkdir -p $(@D); touch $@
$(BUILD)/.test-packages:
	@$(call have,cmocka,uthash.h) || { echo "Libraries of the tests are missing: run \`make setup-test\`."; exit 1; }
	@mkdir -p $(@D); touch $@
$(UNIT_TESTS:=.o): | $(BUILD)/.test-packages

$(BUILD)/%.o: %.c | $(BUILD)/.packages
	@mkdir -p $(@D); echo "  CC    $<"
	@$(CC) $(CFLAGS) $(CFLAGS_$<) $(SAN_LAST) -MMD -MP -c -o $@ $<

.PHONY: all build tests-build bench-build fuzz-build help clean
.DEFAULT_GOAL := help
build: $(PROGS) ## build every program into build/bin
all: build
tests-build: $(UNIT_TESTS) ## build every C test
bench-build: $(BENCHES)

clean: ## remove build outputs (not the caches under ~/.cache/baton)
	rm -rf build

# tests/fuzz/fuzz_x.c becomes build/fuzz/tests/fuzz/fuzz_x (make SAN=fuzz CC=clang fuzz-build), linked with the parsers' libraries.
FUZZERS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_MODULES := lib/fetch lib/xfer lib/llm lib/io lib/wire lib/kube local worker/model
FUZZ_LIBS := $(sort $(foreach m,$(FUZZ_MODULES),$(call libs,$(m))))
OBJS += $(FUZZERS:=.o)
$(FUZZERS): %: %.o $(FUZZ_LIBS)
	@echo "  LD    $@"
	@$(CC) $(LDFLAGS) -fsanitize=fuzzer -o $@ $< -Wl,--start-group $(FUZZ_LIBS) -Wl,--end-group \
	  $(shell pkg-config --libs $(sort $(foreach m,$(FUZZ_MODULES),$(call pkgs,$(m))))) $(LDLIBS)
fuzz-build: $(FUZZERS)

include tools/targets.mk

# A target with a `##` is a command, never a file, also where a folder has its name (e2e, sim, bench).
.PHONY: $(shell sed -nE 's/^([a-z0-9-]+):.*\#\# .*/\1/p' $(MAKEFILE_LIST))
-include $(OBJS:.o=.d)
