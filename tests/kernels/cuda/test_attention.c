/* Attention over the paged cache (bench.h). */
#include "tests/kernels/cuda/cache.h"

/* Head h reads KV head (first + h) / group. */
static void decode_case(uint32_t dim, uint32_t heads, uint32_t kv_heads, uint32_t first,
                        uint32_t window, uint32_t splits, uint32_t form)
{
    enum { ROWS = 3 };
    static const uint32_t lengths[ROWS] = {150, 1, 64};
    struct cache c = cache_new(ROWS, 150, kv_heads, dim, false, form);
    uint32_t *positions = room(ROWS * 4), *sequences = room(ROWS * 4);
    uint16_t *q = queries(&c, ROWS * heads * dim, 2 / sqrtf((float)dim)),
             *out = room(ROWS * heads * dim * 2);
    float *part = room((size_t)ROWS * heads * splits * dim * 4),
          *ml = room((size_t)ROWS * heads * splits * 8);
    for (uint32_t r = 0; r < ROWS; r++) {
        sequences[r] = ROWS - 1 - r;
        positions[r] = lengths[r] - 1;
        cache_fill(&c, sequences[r], lengths[r], false);
    }
    struct decode_attention_args a = {.q = q,
                                      .positions = positions,
                                      .sequences = sequences,
                                      .out = out,
                                      .part = part,
                                      .part_ml = ml,
                                      .kv = c.view,
                                      .heads = heads,
                                      .kv_heads = kv_heads,
                                      .first = first,
                                      .group = (first + heads) / kv_heads,
                                      .window = window};
    OK(gpu_decode_attention(gpu, &a, ROWS, dim, splits, &err));
    finish();
    double want[512];
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t h = 0; h < heads; h++) {
            size_t at = ((size_t)r * heads + h) * dim;
            attend(&c, sequences[r], positions[r], window, q + at, (first + h) / a.group, 0, want);
            for (uint32_t i = 0; i < dim; i++)
                near(bf16(out[at + i]), want[i], 5e-3, "decode attention", at + i);
        }
    give(positions), give(sequences), give(q), give(out), give(part), give(ml);
    cache_free(&c);
}

static void decode_once(void)
{
    decode_case(64, 9, 3, 0, 0, 1, KV_FORM_F16);
    decode_case(64, 2, 2, 0, 40, 2, KV_FORM_I8);
    decode_case(128, 8, 1, 0, 0, 3, KV_FORM_F8);
    decode_case(256, 4, 1, 0, 64, 2, KV_FORM_BF16);
}

static void decode_attention_follows_its_definition(void **state)
{
    (void)state;
    each_order(decode_once);
    decode_case(64, 14, 2, 0, 0, 4, KV_FORM_F16);  /* groups of 7 */
    decode_case(128, 24, 2, 0, 0, 1, KV_FORM_F16); /* groups of 12: two chunks */
    decode_case(128, 2, 1, 0, 0, 5, KV_FORM_BF16);
    decode_case(256, 2, 1, 0, 0, 1, KV_FORM_I8);
    decode_case(64, 5, 2, 1, 0, 2, KV_FORM_F16); /* a tensor rank that begins inside a group */
    decode_case(16, 4, 1, 0, 0, 1, KV_FORM_F8);
    decode_case(32, 2, 2, 0, 0, 2, KV_FORM_I8);
}

static void prefill_case(uint32_t dim, uint32_t heads, uint32_t kv_heads, uint32_t first,
                         uint32_t window, uint32_t form)
{
    /* A chunk of 70 rows that starts at position 50 (two tiles), and a prompt of 5. */
    enum { CHUNK = 70, START = 50, SHORT = 5, ROWS = CHUNK + SHORT };
    struct cache c = cache_new(2, CHUNK + START, kv_heads, dim, false, form);
    cache_fill(&c, 0, CHUNK + START, false);
    cache_fill(&c, 1, SHORT, false);
    uint16_t *q = queries(&c, (size_t)ROWS * heads * dim, 2 / sqrtf((float)dim)),
             *out = room((size_t)ROWS * heads * dim * 2);
    struct attn_tile *tiles = room(3 * sizeof *tiles);
    tiles[0] = (struct attn_tile){0, 64, START, 0};
    tiles[1] = (struct attn_tile){64, CHUNK - 64, START + 64, 0};
    tiles[2] = (struct attn_tile){CHUNK, SHORT, 0, 1};
    struct prefill_attention_args a = {.q = q,
                                       .out = out,
                                       .tiles = tiles,
                                       .kv = c.view,
                                       .heads = heads,
                                       .kv_heads = kv_heads,
                                       .first = first,
                                       .group = (first + heads) / kv_heads,
                                       .window = window};
    OK(gpu_prefill_attention(gpu, &a, 3, dim, &err));
    finish();
    double want[512];
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t h = 0; h < heads; h++) {
            size_t at = ((size_t)r * heads + h) * dim;
            attend(&c, r < CHUNK ? 0 : 1, r < CHUNK ? START + r : r - CHUNK, window, q + at,
                   (first + h) / a.group, 0, want);
            for (uint32_t i = 0; i < dim; i++)
                near(bf16(out[at + i]), want[i], 5e-3, "prefill attention", at + i);
        }
    give(q), give(out), give(tiles);
    cache_free(&c);
}

static void prefill_once(void)
{
    prefill_case(64, 3, 1, 0, 0, KV_FORM_F16);
    prefill_case(128, 2, 1, 0, 33, KV_FORM_I8);
}

static void prefill_attention_follows_its_definition(void **state)
{
    (void)state;
    each_order(prefill_once);
    prefill_case(256, 1, 1, 0, 0, KV_FORM_F8);
    prefill_case(64, 5, 2, 1, 0, KV_FORM_BF16);
    prefill_case(16, 2, 1, 0, 40, KV_FORM_I8);
    prefill_case(32, 2, 1, 0, 0, KV_FORM_F8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_attention_follows_its_definition),
        cmocka_unit_test(prefill_attention_follows_its_definition),
    };
    RUN(tests);
}
