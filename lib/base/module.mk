MODULES += lib/base
lib/base_DEPS :=
