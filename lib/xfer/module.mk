MODULES += lib/xfer
lib/xfer_DEPS := lib/io lib/wire
