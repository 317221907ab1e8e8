/* Attention over paged KV: windows of 32 positions, online softmax (Milakov and Gimelshein, arXiv
 * 1805.02867). */
#include "kernels/cpu/scalar.h"

struct state {
    float max, sum;
    uint32_t lo, hi; /* positions seen */
};

static float kv_at(const struct attn *a, uint64_t at, uint32_t pos, uint32_t d)
{
    const uint8_t *block = a->pool + a->blocks[pos / a->block_tokens] * a->block_bytes + at;
    return kv_load(a->kv, block, a->head_dim, a->block_tokens, pos % a->block_tokens, d);
}

static uint32_t value_dim(const struct attn *a)
{
    return a->v_dim ? a->v_dim : a->head_dim;
}

/* One window's contribution to one query: positions [t0, t1) after `base`. */
static void window(const struct attn *a, const float *q, float *out, struct state *s, uint32_t base,
                   uint32_t t0, uint32_t t1)
{
    float p[ATTN_WINDOW], max = s->max, lanes[16];
    for (uint32_t t = 0; t < ATTN_WINDOW; t++)
        p[t] = -INFINITY;
    for (uint32_t t = t0; t < t1; t++) {
        float dot = 0;
        for (uint32_t d = 0; d < a->head_dim; d++)
            dot = fmaf(q[d], kv_at(a, a->k_at, base + t, d), dot);
        p[t] = dot;
        max = dot > max ? dot : max;
    }
    float factor = scalar_exp(s->max - max);
    for (uint32_t t = 0; t < ATTN_WINDOW; t++)
        p[t] = scalar_exp(p[t] - max);
    for (uint32_t i = 0; i < 16; i++)
        lanes[i] = p[i] + p[i + 16];
    s->sum = fmaf(s->sum, factor, scalar_lanes(lanes));
    s->max = max;
    for (uint32_t d = 0; d < value_dim(a); d++) {
        float acc = out[d] * factor;
        for (uint32_t t = t0; t < t1; t++)
            acc = fmaf(p[t], kv_at(a, a->v_at, base + t, d), acc);
        out[d] = acc;
    }
}

static void query(const struct attn *a, const float *q, float *out, uint32_t pos)
{
    struct state s = {-INFINITY, 0, 0, pos + 1};
    s.lo = a->window && s.hi > a->window ? s.hi - a->window : 0;
    memset(out, 0, value_dim(a) * sizeof *out);
    for (uint32_t base = s.lo / ATTN_WINDOW * ATTN_WINDOW; base < s.hi; base += ATTN_WINDOW) {
        uint32_t t0 = s.lo > base ? s.lo - base : 0, left = s.hi - base;
        window(a, q, out, &s, base, t0, left < ATTN_WINDOW ? left : ATTN_WINDOW);
    }
    float inv = 1.0f / s.sum;
    for (uint32_t d = 0; d < value_dim(a); d++)
        out[d] *= inv;
}

void scalar_attention(const struct attn *a)
{
    struct attn one = *a; /* with the blocks of the row's sequence */
    for (uint32_t r = 0; r < a->rows; r++) {
        struct attn_row at = a->each ? a->each[r] : (struct attn_row){r, a->start + r, a->blocks};
        one.blocks = at.blocks;
        for (uint32_t h = 0; h < a->group; h++)
            query(&one, a->q + at.row * a->ldq + (size_t)h * a->head_dim,
                  a->out + at.row * a->ldo + (size_t)h * value_dim(a), at.pos);
    }
}
