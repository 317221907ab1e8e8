/* Latent attention over the paged cache (bench.h). */
#include "tests/kernels/cuda/cache.h"

static void mla_case(uint32_t latent, uint32_t rope, uint32_t heads, uint32_t splits, uint32_t form)
{
    enum { ROWS = 2 };
    static const uint32_t lengths[ROWS] = {75, 2};
    uint32_t width = latent + rope;
    struct cache c = cache_new(ROWS, 75, 1, width, true, form);
    uint32_t *positions = room(ROWS * 4), *sequences = room(ROWS * 4);
    uint16_t *q = queries(&c, (size_t)ROWS * heads * width, 0.06f),
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
    mla_case(512, 64, 32, 1, KV_FORM_F16);
    /* more splits than some rows have steps; heads that fill no tile */
    mla_case(512, 64, 20, 3, KV_FORM_I8);
    mla_case(64, 16, 4, 1, KV_FORM_BF16);
}

static void mla_decode_follows_its_definition(void **state)
{
    (void)state;
    each_order(mla_once);
    mla_case(512, 64, 4, 1, KV_FORM_F8);
    mla_case(64, 16, 17, 2, KV_FORM_I8);
}

/* Keys and values of a head from a token's latent, as the products of each head make them. */
struct expansion {
    uint32_t latent, rope, nope, v, heads;
    uint16_t *k_up, *v_up; /* [heads, latent, nope], [heads, v, latent] bf16 */
};

static double up(const struct expansion *x, bool value, uint32_t h, uint32_t i, const float *c)
{
    double sum = 0;
    for (uint32_t j = 0; j < x->latent; j++)
        sum += c[j] * (double)bf16(value ? x->v_up[(h * x->v + i) * x->latent + j]
                                         : x->k_up[(h * x->latent + j) * x->nope + i]);
    return sum;
}

/* Of one query row at `position` and head: what attention over the made keys and values gives. */
static void expanded(const struct cache *c, const struct expansion *x, uint32_t position,
                     uint32_t h, const uint16_t *q, double *out)
{
    double *s = calloc(position + 1, sizeof *s), most = -1e300, sum = 0;
    float token[80];
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t t = 0; t <= position; t++) {
            for (uint32_t i = 0; i < x->latent + x->rope; i++)
                token[i] = cell(c, 0, t, false, 0, i);
            for (uint32_t i = 0; !pass && i < x->nope + x->rope; i++)
                s[t] += (double)half(c, q[i]) *
                        (i < x->nope ? up(x, false, h, i, token) : token[x->latent + i - x->nope]);
            most = fmax(most, s[t]);
            double p = exp(s[t] - most);
            sum += pass ? p : 0;
            for (uint32_t i = 0; pass && i < x->v; i++)
                out[i] = (t ? out[i] : 0) + p * up(x, true, h, i, token);
        }
    for (uint32_t i = 0; i < x->v; i++)
        out[i] /= sum;
    free(s);
}

/* A chunk of `rows` whose last one sees `end` tokens, the context in pieces of `piece`. */
static void expand_case(uint32_t rows, uint32_t end, uint32_t piece, uint32_t form)
{
    struct expansion x = {.latent = 64, .rope = 16, .nope = 24, .v = 32, .heads = 3};
    uint32_t width = x.latent + x.rope, qk = x.nope + x.rope, n_tiles = (rows + 63) / 64;
    struct cache c = cache_new(1, end, 1, width, true, form);
    x.k_up = halves((size_t)x.heads * x.latent * x.nope, 0.1f, to_bf16);
    x.v_up = halves((size_t)x.heads * x.latent * x.v, 0.1f, to_bf16);
    uint16_t *q = queries(&c, (size_t)rows * x.heads * qk, 0.3f),
             *out = room((size_t)rows * x.heads * x.v * 2), *latent = room(piece * x.latent * 2),
             *turned = room(piece * x.rope * 2), *k = room((size_t)piece * x.heads * x.nope * 2),
             *v = room((size_t)piece * x.heads * x.v * 2);
    float *state = room((size_t)rows * x.heads * (x.v + 2) * 4);
    struct attn_tile *tiles = room(n_tiles * sizeof *tiles);
    cache_fill(&c, 0, end, true);
    for (uint32_t i = 0; i < n_tiles; i++)
        tiles[i] = (struct attn_tile){64 * i, rows - 64 * i < 64 ? rows - 64 * i : 64,
                                      end - rows + 64 * i, 0};
    for (uint32_t at = 0; at < end; at += piece) {
        uint32_t n = end - at < piece ? end - at : piece;
        struct mla_gather_args g = {.kv = c.view,
                                    .to_latent = latent,
                                    .to_rope = turned,
                                    .first = at,
                                    .tokens = n,
                                    .latent = x.latent,
                                    .rope = x.rope};
        struct head_gemm_args up_k = {.a = latent,
                                      .b = x.k_up,
                                      .out = k,
                                      .m = n,
                                      .n = x.nope,
                                      .k = x.latent,
                                      .lda = x.latent,
                                      .ldo = x.heads * x.nope,
                                      .o_head = x.nope,
                                      .f16 = form != KV_FORM_BF16,
                                      .turned = true,
                                      .scale = 1};
        struct head_gemm_args up_v = up_k;
        up_v.b = x.v_up, up_v.out = v, up_v.n = up_v.o_head = x.v, up_v.ldo = x.heads * x.v;
        up_v.turned = false;
        struct mla_prefill_args a = {.q = q,
                                     .k = k,
                                     .rope = turned,
                                     .v = v,
                                     .out = out,
                                     .state = state,
                                     .tiles = tiles,
                                     .heads = x.heads,
                                     .first = at,
                                     .tokens = n,
                                     .resume = at > 0,
                                     .last = at + n == end};
        OK(gpu_mla_gather(gpu, &g, &err));
        OK(gpu_head_gemm(gpu, &up_k, x.heads, &err));
        OK(gpu_head_gemm(gpu, &up_v, x.heads, &err));
        OK(gpu_mla_prefill(gpu, &a, n_tiles, x.nope, x.rope, x.v, form == KV_FORM_BF16, &err));
    }
    finish();
    double want[32];
    for (uint32_t r = 0; r < rows; r += r + 7 < rows ? 7 : 1) /* some of them, and the last */
        for (uint32_t h = 0; h < x.heads; h++) {
            size_t at = (size_t)r * x.heads + h;
            expanded(&c, &x, end - rows + r, h, q + at * qk, want);
            for (uint32_t i = 0; i < x.v; i++)
                near(bf16(out[at * x.v + i]), want[i], 1e-2, "an expanded latent", i);
        }
    give(x.k_up), give(x.v_up), give(q), give(out), give(latent), give(turned), give(k), give(v);
    give(state), give(tiles);
    cache_free(&c);
}

static void expand_once(void)
{
    expand_case(70, 110, 64, KV_FORM_F16);
}

static void mla_prefill_follows_its_definition(void **state)
{
    (void)state;
    each_order(expand_once);
    expand_case(20, 20, 32, KV_FORM_BF16);
    expand_case(66, 66, 32, KV_FORM_I8); /* tiles that see nothing of a piece */
    expand_case(5, 75, 96, KV_FORM_F8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mla_decode_follows_its_definition),
        cmocka_unit_test(mla_prefill_follows_its_definition),
    };
    RUN(tests);
}
