/* Latent attention over the paged cache (bench.h). */
#include "tests/kernels/cuda/cache.h"

static void mla_case(uint32_t latent, uint32_t rope, uint32_t heads, uint32_t splits)
{
    enum { ROWS = 2 };
    static const uint32_t lengths[ROWS] = {75, 2};
    uint32_t width = latent + rope;
    struct cache c = cache_new(ROWS, 75, 1, width, true);
    uint32_t *positions = room(ROWS * 4), *sequences = room(ROWS * 4);
    uint16_t *q = halves((size_t)ROWS * heads * width, 0.06f, to_f16),
             *out = room((size_t)ROWS * heads * latent * 2);
    float *part = room((size_t)ROWS * heads * splits * latent * 4),
          *ml = room((size_t)ROWS * heads * splits * 8);
    for (uint32_t r = 0; r < ROWS; r++) {
        sequences[r] = r;
        positions[r] = lengths[r] - 1;
        cache_fill(&c, r, lengths[r], true);
    }
    struct mla_decode_args a = {.q = q,
                                .positions = positions,
                                .sequences = sequences,
                                .out = out,
                                .part = part,
                                .part_ml = ml,
                                .kv = c.view,
                                .heads = heads};
    OK(gpu_mla_decode(gpu, &a, ROWS, latent, rope, splits, &err));
    finish();
    double want[512];
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t h = 0; h<heads; h += heads> 16 ? 5 : 1) {
            size_t at = (size_t)r * heads + h;
            attend(&c, r, positions[r], 0, q + at * width, 0, latent, want);
            for (uint32_t i = 0; i < latent; i++)
                near(bf16(out[at * latent + i]), want[i], 5e-3, "MLA", i);
        }
    give(positions), give(sequences), give(q), give(out), give(part), give(ml);
    cache_free(&c);
}

static void mla_once(void)
{
    mla_case(512, 64, 32, 1);
    mla_case(512, 64, 20, 3); /* more splits than some rows have steps; heads that fill no tile */
    mla_case(64, 16, 4, 1);
}

static void mla_decode_follows_its_definition(void **state)
{
    (void)state;
    each_order(mla_once);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mla_decode_follows_its_definition),
    };
    RUN(tests);
}
