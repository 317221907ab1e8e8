/* Blocks between pools that are cut differently: every byte arrives, in every slice that has it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lib/base/rng.h"
#include "lib/xfer/slices.h"

#include <errno.h>

#include <unistd.h>

#define BLOCKS 5u

struct shape {
    uint32_t layers, heads, halves;
    size_t head_bytes;
};

/* `tp` ranks that keep the KV heads which an even share of `queries` reads, `pp` stages, all of it
 * `dp` times, each time for a share of the blocks. */
static void make(struct xfer_cfg *c, const struct shape *s, uint32_t queries,
                 const uint32_t layout[3])
{
    uint32_t tp = layout[0], pp = layout[1], dp = layout[2];
    static struct xfer_slice all[2][XFER_SLICES_MAX];
    static uint32_t turn;
    struct xfer_slice *out = all[turn++ % 2];
    uint32_t n = 0, group = queries / s->heads;
    for (uint32_t i = 0; i < pp * dp; i++)
        for (uint32_t r = 0; r < tp; r++) {
            uint32_t p = i % pp, b0 = BLOCKS * (i / pp) / dp, b1 = BLOCKS * (i / pp + 1) / dp;
            uint32_t q0 = queries * r / tp, q1 = queries * (r + 1) / tp;
            uint32_t l0 = s->layers * p / pp, l1 = s->layers * (p + 1) / pp;
            if (q0 == q1)
                continue;
            uint32_t h0 = q0 / group, h1 = (q1 - 1) / group + 1;
            struct xfer_slice x = {.layer0 = l0, .layers = l1 - l0, .head0 = h0, .heads = h1 - h0};
            x.block0 = b0;
            x.blocks = dp > 1 ? b1 - b0 : 0;
            x.block_bytes = x.layers * s->halves * x.heads * s->head_bytes;
            x.pool.len = (b1 - b0) * x.block_bytes;
            x.pool.base = malloc(x.pool.len);
            memset(x.pool.base, 0xee, x.pool.len);
            out[n++] = x;
        }
    *c = (struct xfer_cfg){.slices = out,
                           .n_slices = n,
                           .n_blocks = BLOCKS,
                           .n_layers = s->layers,
                           .halves = s->halves,
                           .n_heads = s->heads,
                           .piece_bytes = s->halves * s->heads * s->head_bytes};
    c->block_bytes = s->layers * c->piece_bytes;
}

static void drop(const struct xfer_cfg *c)
{
    for (uint32_t i = 0; i < c->n_slices; i++)
        free(c->slices[i].pool.base);
}

static void move(struct rng *rng, const struct shape *s, const uint32_t from[3],
                 const uint32_t to[3])
{
    struct xfer_cfg a, b;
    struct slices p, d;
    struct err e;
    uint32_t queries = s->heads * (1 + (uint32_t)rng_below(rng, 4));
    make(&a, s, queries, from);
    make(&b, s, queries, to);
    assert_int_equal(slices_of(&a, &p, &e), 0);
    assert_int_equal(slices_of(&b, &d, &e), 0);
    uint8_t *piece = malloc(a.piece_bytes), *back = malloc(a.piece_bytes);
    for (uint32_t l = 0; l < s->layers; l++) {
        for (size_t i = 0; i < a.piece_bytes; i++)
            piece[i] = (uint8_t)rng_next(rng);
        slices_scatter(&p, 1, l, piece);
        slices_copy(&d, 3, &p, 1, l, l % 2);
        slices_gather(&d, 3, l, back);
        assert_memory_equal(back, piece, a.piece_bytes);
        for (uint32_t i = d.n; i-- > 0;) { /* each slice alone, replicas too */
            const struct xfer_slice *x = &d.s[i];
            size_t n = x->heads * s->head_bytes;
            if (x->blocks && (x->block0 > 3 || x->block0 + x->blocks <= 3))
                continue;
            for (uint32_t h = 0; h < s->halves && l >= x->layer0 && l < x->layer0 + x->layers; h++)
                assert_memory_equal(x->pool.base + (3 - x->block0) * x->block_bytes +
                                        (l - x->layer0) * s->halves * n + h * n,
                                    piece + (h * s->heads + x->head0) * s->head_bytes, n);
        }
    }
    free(piece);
    free(back);
    drop(&a);
    drop(&b);
}

static void blocks_move_between_any_two_layouts(void **state)
{
    static const uint32_t layouts[][3] = {{1, 1, 1}, {2, 1, 1}, {4, 1, 1}, {8, 1, 1}, {1, 2, 1},
                                          {1, 3, 1}, {2, 2, 1}, {1, 1, 4}, {2, 1, 2}, {1, 2, 3}};
    const char *seed = getenv("SEED");
    struct rng rng = {seed ? strtoull(seed, NULL, 10) : rng_secret_u64() % 1000000};
    (void)state;
    printf("SEED=%llu\n", (unsigned long long)rng.state);
    for (int round = 0; round < 5; round++)
        for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
            for (size_t k = 0; k < sizeof layouts / sizeof *layouts; k++) {
                struct shape s = {.layers = 3 + (uint32_t)rng_below(&rng, 4),
                                  .heads = 1 + (uint32_t)rng_below(&rng, 8),
                                  .halves = 1 + (uint32_t)rng_below(&rng, 2),
                                  .head_bytes = 64 * (1 + rng_below(&rng, 4))};
                move(&rng, &s, layouts[i], layouts[k]);
            }
}

static void a_pool_with_a_hole_is_refused(void **state)
{
    struct shape s = {4, 4, 2, 64};
    struct xfer_cfg c;
    struct slices v;
    struct err e;
    (void)state;
    make(&c, &s, 8, (const uint32_t[]){2, 2, 1});
    c.n_slices = 3;
    assert_int_equal(slices_of(&c, &v, &e), -EINVAL);
    c.n_slices = 4;
    assert_int_equal(slices_of(&c, &v, &e), 0);
    c.n_blocks++;
    assert_int_equal(slices_of(&c, &v, &e), -EINVAL);
    drop(&c);
    make(&c, &s, 8, (const uint32_t[]){1, 1, 2}); /* of two data ranks */
    assert_int_equal(slices_of(&c, &v, &e), 0);
    struct xfer_slice own[2] = {c.slices[0], c.slices[1]};
    c.slices = own;
    own[1].block0++;
    assert_int_equal(slices_of(&c, &v, &e), -EINVAL);
    own[1].blocks--;
    assert_int_equal(slices_of(&c, &v, &e), -EINVAL);
    drop(&c);
}

static void what_a_peer_describes_is_checked_before_it_is_mapped(void **state)
{
    struct shape s = {2, 2, 2, 4096};
    struct xfer_pool pools[2];
    struct xfer_cfg c;
    struct slices v, got;
    struct err e;
    uint8_t body[SLICES_BODY_MAX];
    (void)state;
    make(&c, &s, 2, (const uint32_t[]){2, 1, 1});
    struct xfer_slice own[2] = {c.slices[0], c.slices[1]};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(xfer_pool_new(&pools[i], own[i].pool.len, &e), 0);
        own[i].pool = pools[i];
    }
    drop(&c);
    c.slices = own;
    assert_int_equal(slices_of(&c, &v, &e), 0);
    size_t n = slices_encode(&v, body);
    struct rng rng = {7};
    for (int round = 0; round < 2000; round++) {
        uint8_t bad[SLICES_BODY_MAX];
        int fds[2] = {dup(pools[0].fd), dup(pools[1].fd)};
        memcpy(bad, body, n);
        size_t at = round ? rng_below(&rng, n) : 0;
        bad[at] ^= (uint8_t)(round ? 1u << rng_below(&rng, 8) : 0);
        int rc = slices_map(&got, bad, n, fds, 2, BLOCKS, s.layers, c.piece_bytes);
        if (round == 0) /* as it was */
            assert_int_equal(rc, 0);
        if (rc == 0) {
            memset(got.s[0].pool.base, round, got.s[0].pool.len);
            memset(got.s[1].pool.base, round, got.s[1].pool.len);
            slices_unmap(&got);
        }
        assert_int_equal(fds[0], -1);
    }
    xfer_pool_free(&pools[0]);
    xfer_pool_free(&pools[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_move_between_any_two_layouts),
        cmocka_unit_test(a_pool_with_a_hole_is_refused),
        cmocka_unit_test(what_a_peer_describes_is_checked_before_it_is_mapped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
