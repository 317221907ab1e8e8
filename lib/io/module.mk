MODULES += lib/io
lib/io_DEPS := lib/json
lib/io_PKGS := libuv libcurl libmicrohttpd gnutls
