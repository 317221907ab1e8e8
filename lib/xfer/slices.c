#include "lib/xfer/slices.h"

#include "lib/wire/le.h"
#include "lib/xfer/copy.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct run { /* bytes of a piece that lie together */
    size_t at, n;
    uint8_t *p;
};

static size_t head_bytes(const struct slices *v)
{
    return v->piece_bytes / v->halves / v->heads;
}

static size_t slice_piece(const struct slices *v, const struct xfer_slice *s)
{
    return v->halves * s->heads * head_bytes(v);
}

static bool has_layer(const struct xfer_slice *s, uint32_t layer)
{
    return layer >= s->layer0 && layer - s->layer0 < s->layers;
}

static bool has_block(const struct xfer_slice *s, uint32_t block)
{
    return !s->blocks || (block >= s->block0 && block - s->block0 < s->blocks);
}

/* Half `half` of a slice's part of the piece. */
static struct run run_of(const struct slices *v, const struct xfer_slice *s, uint32_t block,
                         uint32_t layer, uint32_t half)
{
    size_t hb = head_bytes(v), n = s->heads * hb;
    uint8_t *p = s->pool.base + (block - s->block0) * s->block_bytes +
                 (layer - s->layer0) * slice_piece(v, s) + half * n;
    return (struct run){(half * v->heads + s->head0) * hb, n, p};
}

/* The bytes from `at` on, as many as lie together in the first slice that has them. */
static struct run find(const struct slices *v, uint32_t block, uint32_t layer, size_t at)
{
    for (uint32_t i = 0; i < v->n; i++)
        for (uint32_t half = 0; half < v->halves; half++) {
            if (!has_layer(&v->s[i], layer) || !has_block(&v->s[i], block))
                continue;
            struct run r = run_of(v, &v->s[i], block, layer, half);
            if (at >= r.at && at - r.at < r.n)
                return (struct run){at, r.n - (at - r.at), r.p + (at - r.at)};
        }
    ASSERT(!"every byte of a piece lies in a slice: slices_of and slices_map have checked");
    return (struct run){0};
}

void slices_copy(const struct slices *to, uint32_t to_block, const struct slices *from,
                 uint32_t from_block, uint32_t layer, bool stream)
{
    for (uint32_t i = 0; i < to->n; i++)
        for (uint32_t half = 0; half < to->halves; half++) {
            if (!has_layer(&to->s[i], layer) || !has_block(&to->s[i], to_block))
                break;
            struct run d = run_of(to, &to->s[i], to_block, layer, half);
            while (d.n) {
                struct run s = find(from, from_block, layer, d.at);
                size_t n = s.n < d.n ? s.n : d.n;
                copy_bytes(d.p, s.p, n, stream);
                d = (struct run){d.at + n, d.n - n, d.p + n};
            }
        }
}

/* A piece in memory as a pool. */
static struct slices flat(const struct slices *like, uint8_t *piece, uint32_t layer)
{
    return (struct slices){
        .n = 1,
        .halves = 1,
        .heads = 1,
        .piece_bytes = like->piece_bytes,
        .s = {{.pool = {.base = piece}, .layer0 = layer, .layers = 1, .heads = 1}}};
}

void slices_gather(const struct slices *v, uint32_t block, uint32_t layer, uint8_t *piece)
{
    struct slices to = flat(v, piece, layer);
    slices_copy(&to, 0, v, block, layer, false);
}

void slices_scatter(const struct slices *v, uint32_t block, uint32_t layer, const uint8_t *piece)
{
    struct slices from = flat(v, (uint8_t *)(uintptr_t)piece, layer);
    slices_copy(v, block, &from, 0, layer, false);
}

bool slices_flat(const struct slices *v)
{
    return v->n == 1 && v->s[0].heads == v->heads;
}

uint8_t *slices_piece(const struct slices *v, uint32_t block, uint32_t layer)
{
    return v->s[0].pool.base + block * v->s[0].block_bytes + layer * v->piece_bytes;
}

/* ---- checks ---- */

static bool slice_fits(const struct slices *v, const struct xfer_slice *s, uint32_t n_blocks,
                       uint32_t n_layers)
{
    uint32_t blocks = s->blocks ? s->blocks : n_blocks;
    return s->block0 <= n_blocks && blocks <= n_blocks - s->block0 && s->layer0 <= n_layers &&
           s->layers <= n_layers - s->layer0 && s->head0 <= v->heads &&
           s->heads <= v->heads - s->head0 && s->block_bytes <= 1ull << 32 &&
           s->layers * slice_piece(v, s) <= s->block_bytes &&
           (!s->block_bytes || s->pool.len / s->block_bytes >= blocks);
}

/* The first block from `from` on that no slice has this layer and head of. */
static uint32_t covered_to(const struct slices *v, uint32_t layer, uint32_t head, uint32_t from,
                           uint32_t n_blocks)
{
    for (uint32_t i = 0; i < v->n && from < n_blocks; i++) {
        const struct xfer_slice *s = &v->s[i];
        if (has_layer(s, layer) && head >= s->head0 && head - s->head0 < s->heads &&
            has_block(s, from))
            return covered_to(v, layer, head, s->blocks ? s->block0 + s->blocks : n_blocks,
                              n_blocks);
    }
    return from;
}

static bool sound(const struct slices *v, uint32_t n_blocks, uint32_t n_layers)
{
    if (v->n < 1 || v->n > XFER_SLICES_MAX || v->halves < 1 || v->halves > 2 || v->heads < 1 ||
        v->heads > 4096 || v->piece_bytes % ((size_t)v->halves * v->heads))
        return false;
    for (uint32_t i = 0; i < v->n; i++)
        if (!slice_fits(v, &v->s[i], n_blocks, n_layers))
            return false;
    for (uint32_t l = 0; l < n_layers; l++)
        for (uint32_t h = 0; h < v->heads; h++)
            if (covered_to(v, l, h, 0, n_blocks) < n_blocks)
                return false;
    return true;
}

int slices_of(const struct xfer_cfg *c, struct slices *out, struct err *e)
{
    struct slices v = {.n = c->n_slices ? c->n_slices : 1,
                       .halves = c->halves ? c->halves : 1,
                       .heads = c->n_heads ? c->n_heads : 1,
                       .piece_bytes = c->piece_bytes};
    if (v.n > XFER_SLICES_MAX)
        return err_set(e, EINVAL, "a KV pool in %u slices: %u at most", v.n, XFER_SLICES_MAX);
    if (c->n_slices)
        memcpy(v.s, c->slices, c->n_slices * sizeof *v.s);
    else
        v.s[0] = (struct xfer_slice){.pool = c->pool,
                                     .block_bytes = c->block_bytes,
                                     .layers = c->n_layers,
                                     .heads = v.heads};
    for (uint32_t i = 0; i < v.n; i++)
        if (!v.s[i].pool.base)
            return err_set(e, EINVAL, "KV transfer needs a pool");
    if (!sound(&v, c->n_blocks, c->n_layers))
        return err_set(e, EINVAL,
                       "%u blocks of %zu bytes, %u layers of %zu, don't fit a KV pool of %zu",
                       c->n_blocks, c->block_bytes, c->n_layers, c->piece_bytes, v.s[0].pool.len);
    *out = v;
    return 0;
}

/* ---- for a peer on this host ---- */

size_t slices_encode(const struct slices *v, uint8_t body[SLICES_BODY_MAX])
{
    uint8_t *p = body + SLICES_HEAD_BYTES;
    le_put32(body, v->n);
    le_put32(body + 4, v->halves);
    le_put32(body + 8, v->heads);
    le_put32(body + 12, 0);
    for (uint32_t i = 0; i < v->n; i++, p += SLICE_BYTES) {
        const struct xfer_slice *s = &v->s[i];
        le_put64(p, s->pool.len);
        le_put64(p + 8, s->pool.fd_off);
        le_put64(p + 16, s->block_bytes);
        le_put32(p + 24, s->layer0);
        le_put32(p + 28, s->layers);
        le_put32(p + 32, s->head0);
        le_put32(p + 36, s->heads);
        le_put32(p + 40, s->block0);
        le_put32(p + 44, s->blocks);
    }
    return (size_t)(p - body);
}

static int map_one(struct xfer_slice *s, int fd)
{
    struct stat st;
    if (fstat(fd, &st) || s->pool.len > (uint64_t)st.st_size ||
        s->pool.fd_off > (uint64_t)st.st_size - s->pool.len || !s->pool.len)
        return -EINVAL;
    void *p =
        mmap(NULL, s->pool.len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)s->pool.fd_off);
    if (p == MAP_FAILED)
        return -errno;
    (void)madvise(p, s->pool.len, MADV_HUGEPAGE);
    s->pool.base = p;
    return 0;
}

int slices_map(struct slices *out, const uint8_t *body, size_t n, int *fds, uint32_t n_fds,
               uint32_t n_blocks, uint32_t n_layers, size_t piece_bytes)
{
    struct slices v = {.piece_bytes = piece_bytes};
    int rc = n < SLICES_HEAD_BYTES ? -EINVAL : 0;
    if (!rc) {
        v.n = le_get32(body);
        v.halves = le_get32(body + 4);
        v.heads = le_get32(body + 8);
        if (v.n < 1 || v.n > XFER_SLICES_MAX || n != SLICES_HEAD_BYTES + v.n * SLICE_BYTES ||
            n_fds != v.n)
            rc = -EINVAL;
    }
    for (uint32_t i = 0; !rc && i < v.n; i++) {
        const uint8_t *p = body + SLICES_HEAD_BYTES + i * SLICE_BYTES;
        v.s[i] =
            (struct xfer_slice){.pool = {.len = le_get64(p), .fd_off = le_get64(p + 8), .fd = -1},
                                .block_bytes = le_get64(p + 16),
                                .layer0 = le_get32(p + 24),
                                .layers = le_get32(p + 28),
                                .head0 = le_get32(p + 32),
                                .heads = le_get32(p + 36),
                                .block0 = le_get32(p + 40),
                                .blocks = le_get32(p + 44)};
    }
    if (!rc && !sound(&v, n_blocks, n_layers))
        rc = -EINVAL;
    for (uint32_t i = 0; !rc && i < v.n; i++)
        rc = map_one(&v.s[i], fds[i]);
    for (uint32_t i = 0; i < n_fds; i++)
        close_fdp(&fds[i]);
    if (rc) {
        slices_unmap(&v);
        return rc;
    }
    *out = v;
    return 0;
}

void slices_unmap(struct slices *v)
{
    for (uint32_t i = 0; i < v->n && i < XFER_SLICES_MAX; i++)
        if (v->s[i].pool.base)
            munmap(v->s[i].pool.base, v->s[i].pool.len);
    *v = (struct slices){0};
}
