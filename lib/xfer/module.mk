MODULES += lib/xfer
lib/xfer_DEPS := lib/wire
lib/xfer_PKGS := openssl
bench_xfer := lib/xfer
