MODULES += local
local_DEPS := lib/kube lib/io
local_PKGS := sqlite3 openssl yaml-0.1 libpcre2-8
local_PROG := baton-local
