#include "lib/xfer/conn.h"

#include "lib/base/log.h"

#include <utlist.h>

/* D's end of a session. While P may still have the pool mapped the link stays, and with it the
 * quarantine. */
static void reap_out(struct xfer *x, struct conn *c, uint64_t now_ns)
{
    if (c->fd >= 0)
        log_info("kv link to a prefill worker is over", LS("why", c->text),
                 LS("reason", xfer_reason_name(c->why)), LS("peer", conn_peer(c)));
    hand_d_lost(x->d, c->link, c->why, c->text, now_ns);
    close_fdp(&c->fd);
    if (c->pair)
        return;
    hand_d_stopped(x->d, c->link, now_ns);
    conn_free(c);
}

/* P unmapped the pool, or its process is gone. */
static void reap_shm_in(struct xfer *x, struct conn *c)
{
    struct conn *out = c->pair;
    if (c->state != CONN_OPEN)
        x->n_unproven--;
    if (out) {
        out->pair = NULL;
        conn_die(out, XFER_PEER_LOST, "the prefill worker ended");
    }
    conn_free(c);
}

static void reap_in(struct xfer *x, struct conn *c, uint64_t now_ns)
{
    if (c->pair)
        conn_free(c->pair);
    c->pair = NULL;
    if (c->link)
        hand_p_gone(x->p, c->link, now_ns);
    else
        x->n_unproven--;
    conn_free(c);
}

static void reap_shm_out(struct xfer *x, struct conn *c)
{
    struct conn *in = c->pair;
    in->pair = NULL;
    if (in->path_known)
        conn_die(in, XFER_PEER_LOST, "the decode worker ended");
    else if (x->cfg.policy == XFER_ONLY_SHM)
        conn_die(in, XFER_PEER_LOST, "no shared memory with this peer");
    else
        push_path(in, XFER_PATH_TCP);
    conn_free(c);
}

static struct conn *next_dead(struct xfer *x)
{
    struct conn *c;
    DL_FOREACH (x->conns, c) {
        bool waits = c->kind == CONN_OUT && c->fd < 0 && c->pair;
        if (c->dead && !waits)
            return c;
    }
    return NULL;
}

void reap(struct xfer *x, uint64_t now_ns)
{
    struct conn *c;
    while ((c = next_dead(x))) {
        switch (c->kind) {
        case CONN_OUT: reap_out(x, c, now_ns); break;
        case CONN_IN: reap_in(x, c, now_ns); break;
        case CONN_SHM_OUT: reap_shm_out(x, c); break;
        case CONN_SHM_IN: reap_shm_in(x, c); break;
        }
    }
}

void reap_all(struct xfer *x, uint64_t now_ns)
{
    struct conn *c;
    DL_FOREACH (x->conns, c)
        conn_die(c, XFER_SHUTDOWN, "this worker is stopping");
    reap(x, now_ns);
}
