# The control plane in virtual time. Its objects come before the archives, because they take the place of lib/io's HTTP,
# of libuv's loop and of sqlite3_open; it runs the code of two programs, which no program does.
MODULES += sim
sim_DEPS := controller local lib/kube lib/decide lib/io
sim_PKGS := sqlite3
sim_PROG := baton-sim-control
sim_OBJECTS_FIRST := yes
sim_LDFLAGS := $(addprefix -Wl$(comma)--wrap=,clock_mono_ns clock_wall_ns rng_secret rng_secret_u64 watch_event \
  tls_load_or_make sqlite3_step sqlite3_exec metrics_collect)
