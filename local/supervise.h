/* supervise.h: `baton-local supervise --data DIR …`: the process that `baton up` leaves behind. It starts
 * `baton-local serve` with the same options, starts it again when it dies (back-off 100 ms doubling to 5 s, reset after
 * 10 s of life), and on SIGTERM or SIGINT lets it end everything, then kills by the records what is left. Holds
 * <data_dir>/supervisor.lock (flock) while it lives; supervisor.json beside it names its pid. */
#pragma once

int supervise_main(int argc, char **argv);
