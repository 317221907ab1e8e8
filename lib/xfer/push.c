#include "lib/xfer/conn.h"

#include "lib/base/log.h"
#include "lib/wire/crc32c.h"
#include "lib/xfer/copy.h"

#include <stdlib.h>
#include <string.h>

/* What shm copies before the loop looks at its sockets again. */
#define SHM_SHARE (4u << 20)

void push_add(struct conn *in, const struct hand_push *p)
{
    if (in->push_n == in->push_cap) {
        in->push_cap = in->push_cap ? 2 * in->push_cap : 256;
        in->push = xrealloc(in->push, in->push_cap * sizeof *in->push);
    }
    in->push[in->push_n++] = *p;
}

static void compact(struct conn *in)
{
    if (in->push_head == in->push_n)
        in->push_head = in->push_n = 0;
    if (in->push_head < 4096 || in->push_head < in->push_n / 2)
        return;
    memmove(in->push, in->push + in->push_head, (in->push_n - in->push_head) * sizeof *in->push);
    in->push_n -= in->push_head;
    in->push_head = 0;
}

uint32_t push_cancel(struct conn *in, uint64_t p_id)
{
    size_t to = in->push_head;
    for (size_t i = in->push_head; i < in->push_n; i++)
        if (in->push[i].p_id != p_id)
            in->push[to++] = in->push[i];
    uint32_t gone = (uint32_t)(in->push_n - to);
    in->push_n = to;
    compact(in);
    return gone;
}

void push_path(struct conn *in, enum xfer_path path)
{
    in->path_known = true;
    log_info("kv link to a decode worker is open", LS("path", xfer_path_name(path)),
             LS("peer", conn_peer(in)));
    hand_p_path(in->link, path);
}

/* The piece as it travels: in the pool, or put together in slot k of the stage. */
static const uint8_t *source(const struct xfer *x, struct conn_tx *tx, uint32_t k,
                             const struct hand_push *p)
{
    if (slices_flat(&x->pool))
        return slices_piece(&x->pool, p->src_block, p->layer);
    if (!tx->stage)
        tx->stage = xmalloc(CONN_TX_PIECES * x->cfg.piece_bytes);
    uint8_t *piece = tx->stage + k * x->cfg.piece_bytes;
    slices_gather(&x->pool, p->src_block, p->layer, piece);
    return piece;
}

bool push_shm(struct conn *in, uint64_t now_ns)
{
    struct conn *shm = in->pair;
    struct xfer *x = in->x;
    if (in->dead || !shm || !shm->map.n || !in->path_known)
        return false;
    size_t piece = x->cfg.piece_bytes, share = 0;
    while (in->push_head < in->push_n && share < SHM_SHARE) {
        uint64_t p_id = in->push[in->push_head].p_id;
        uint32_t n = 0;
        while (in->push_head < in->push_n && share < SHM_SHARE &&
               in->push[in->push_head].p_id == p_id) {
            const struct hand_push *p = &in->push[in->push_head++];
            ASSERT(p->dst_block < in->hello.n_blocks);
            size_t whole = (size_t)p->n_blocks * x->cfg.n_layers * piece;
            slices_copy(&shm->map, p->dst_block, &x->pool, p->src_block, p->layer,
                        whole >= COPY_STREAM_BYTES);
            share += piece;
            n++;
        }
        hand_p_pushed(x->p, p_id, n, now_ns);
    }
    compact(in);
    return in->push_head < in->push_n;
}

bool push_ready(const struct conn *in)
{
    return in->kind == CONN_IN && in->path_known && !in->pair && in->push_head < in->push_n;
}

void push_fill(struct conn *in)
{
    struct conn_tx *tx = in->tx;
    struct xfer *x = in->x;
    size_t piece = x->cfg.piece_bytes, bytes = 0;
    for (uint32_t k = 0; push_ready(in) && k < CONN_TX_PIECES && bytes < CONN_TX_BYTES; k++) {
        const struct hand_push *p = &in->push[in->push_head++];
        const uint8_t *src = source(x, tx, k, p);
        struct control_piece h = {p->id,    p->p_id,         p->dst_index,
                                  p->layer, (uint32_t)piece, crc32c(0, src, piece)};
        control_piece_encode(&h, tx->head[k]);
        tx->p_id[k] = p->p_id;
        tx->iov[tx->n_iov++] = (struct iovec){tx->head[k], sizeof tx->head[k]};
        tx->iov[tx->n_iov++] = (struct iovec){(void *)(uintptr_t)src, piece};
        bytes += piece;
    }
    compact(in);
}
