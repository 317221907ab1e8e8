MODULES += lib/wire
lib/wire_DEPS := lib/base
