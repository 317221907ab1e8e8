/* supervise.h: the process that `baton up` leaves behind.
 *
 *   baton-local supervise --data DIR [--grace SECONDS] -- ARGS…
 * runs `baton-local ARGS…` and runs it again when it dies (after 100 ms, doubling to 5 s; 10 s of
 * life forgive). On SIGTERM or SIGINT it passes SIGTERM on, waits for the grace, kills, then ends
 * by the records what is left, and exits 0. It holds DIR/supervisor.lock (flock) while it lives;
 * DIR/supervisor.json names its pid. Its child dies with it; containers don't, they are adopted by
 * the next. baton-local cleanup --data DIR ends by the records what runs of DIR when no supervisor
 * is left. */
#pragma once

int supervise_main(int argc, char **argv);
int cleanup_main(int argc, char **argv);
