/* lines.h: one JSON object a line over a connected unix stream socket, file descriptors alongside
 * (SCM_RIGHTS). The message names are in docs/contracts.md.
 *
 * A lines object belongs to one loop and its thread and owns its socket. A line is at most 64 KiB;
 * a longer one, or text that is not a JSON object, ends the connection. Descriptors that arrive are
 * queued; the handler of the message that announces one takes it with lines_take_fd(). What is not
 * taken is closed with the connection. */
#pragma once
#include "lib/json/json.h"

#include <uv.h>

#define LINES_MAX_BYTES 65536

struct lines;
struct lines_handlers {
    void (*on_message)(struct lines *l, const json_t *msg, void *ctx); /* may call lines_close */
    /* The peer left or broke the rules (why). Not called after lines_close. The object is freed
     * after it returns. */
    void (*on_closed)(struct lines *l, const char *why, void *ctx);
    void *ctx;
};

int lines_new(uv_loop_t *loop, int fd, const struct lines_handlers *h, struct lines **out,
              struct err *e) MUST_CHECK;
/* Queues one line; fd >= 0 travels with it (duplicated: the caller keeps its own). -EPIPE when the
 * peer is gone, -EMSGSIZE when it reads too slowly (512 KiB wait) or the line is too long. */
int lines_send(struct lines *l, const json_t *msg, int fd) MUST_CHECK;
int lines_take_fd(struct lines *l); /* the next queued descriptor, now the caller's; -1: none */
void lines_close(struct lines *l);  /* no callback afterwards; pending output is tried once */

/* Sockets at <dir>/<name>, however long dir is (the address goes through /proc/self/fd). */
int lines_connect(const char *dir, const char *name, struct err *e) MUST_CHECK; /* fd */
int lines_listen(const char *dir, const char *name,
                 struct err *e) MUST_CHECK; /* fd; replaces a dead socket */
