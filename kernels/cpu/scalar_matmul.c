/* Quantisation of activations and matrix products. */
#include "kernels/cpu/scalar.h"

#define TOKENS 16u

static void quantize_block(const float *x, uint32_t n, int8_t *codes, struct act_block *b)
{
    float max = 0;
    for (uint32_t i = 0; i < n; i++)
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    float inv = max > 1e-30f ? ACT_STEPS / max : 0.0f, scale = inv > 0.0f ? max / ACT_STEPS : 0.0f;
    int32_t sum[2] = {0, 0};
    for (uint32_t i = 0; i < BLOCK_COLS; i++) {
        float v = i < n ? rintf(x[i] * inv) : 0.0f;
        v = v < ACT_STEPS ? v : ACT_STEPS;
        v = v > -ACT_STEPS ? v : -ACT_STEPS;
        int32_t q = (int32_t)v, h = (q + 64) >> 7;
        codes[i] = (int8_t)h;
        codes[BLOCK_COLS + i] = (int8_t)(q - h * 128);
        sum[i / 16] += q;
    }
    *b = (struct act_block){.scale = scale,
                            .scaled_sum = scale * (float)(sum[0] + sum[1]),
                            .neg_sum = -(sum[0] + sum[1]),
                            .neg_low = -sum[0]};
}

void scalar_quantize(const float *x, uint32_t n, int8_t *codes, struct act_block *blocks)
{
    for (uint32_t i = 0; i < n; i += BLOCK_COLS)
        quantize_block(x + i, n - i < BLOCK_COLS ? n - i : BLOCK_COLS, codes + (size_t)i * 2,
                       &blocks[i / BLOCK_COLS]);
}

static float scale_at(const uint8_t *p, bool f32, size_t i)
{
    float f;
    uint16_t h;
    if (f32) {
        memcpy(&f, p + 4 * i, 4);
        return f;
    }
    memcpy(&h, p + 2 * i, 2);
    return f16_to_f32(h);
}

/* Codes of one row in one block, in column order. */
static void row_codes(const uint8_t *p, bool nibbles, uint32_t lane, int16_t out[BLOCK_COLS])
{
    for (uint32_t c = 0; c < BLOCK_COLS; c++) {
        uint32_t v = c / 4;
        uint8_t b = p[(nibbles ? v % 4 : v) * 64u + lane * 4u + c % 4];
        out[c] = (int16_t)(!nibbles ? b : v >= 4 ? b >> 4 : b & 15);
    }
}

/* The integer product of 16 columns. */
static int32_t dot_16(const int16_t *w, const int8_t *x)
{
    int32_t h = 0, l = 0;
    for (int c = 0; c < 16; c++) {
        h += w[c] * (int16_t)x[c];
        l += w[c] * (int16_t)x[BLOCK_COLS + (uint32_t)c];
    }
    return h * 128 + l;
}

/* One row of a block by one token, added to acc. */
static float block_product(const struct mat *m, const struct mat_shape *s, const uint8_t *rec,
                           uint32_t lane, uint32_t b, const int16_t *w, const int8_t *codes,
                           const struct act_block *x, float acc)
{
    bool f32 = s->scale_bytes >= 64;
    int32_t zero = m->form == MAT_N4 ? 8 : s->mins_at ? 0 : 128;
    int32_t low = dot_16(w, codes), high = dot_16(w + 16, codes + 16);
    if (m->form == MAT_I8B16) {
        const uint8_t *scales = rec + s->scales_at;
        float d0 = scale_at(scales, true, b * 32u + lane),
              d1 = scale_at(scales, true, b * 32u + 16u + lane);
        acc = fmaf((float)(low + zero * x->neg_low), d0 * x->scale, acc);
        return fmaf((float)(high + zero * (x->neg_sum - x->neg_low)), d1 * x->scale, acc);
    }
    float d = scale_at(rec + s->scales_at, f32, b * 16u + lane) * x->scale;
    acc = fmaf((float)(low + high + zero * x->neg_sum), d, acc);
    if (s->mins_at)
        acc = fmaf(scale_at(rec + s->mins_at, f32, b * 16u + lane), x->scaled_sum, acc);
    return acc;
}

/* One row by up to TOKENS tokens: the row's codes are taken apart once. */
static void quantised_row(const struct mat *m, const struct mat_shape *s, const uint8_t *rec,
                          uint32_t lane, const struct acts *x, uint32_t t0, uint32_t n,
                          float acc[TOKENS])
{
    bool nibbles = s->code_bytes == 256;
    int16_t w[BLOCK_COLS];
    for (uint32_t t = 0; t < n; t++)
        acc[t] = 0;
    for (uint32_t b = 0; b < s->blocks; b++) {
        row_codes(rec + (size_t)b * s->code_bytes, nibbles, lane, w);
        for (uint32_t t = 0; t < n; t++) {
            size_t at = (size_t)(t0 + t) * s->blocks + b;
            acc[t] = block_product(m, s, rec, lane, b, w, x->codes + at * ACT_BLOCK_BYTES,
                                   x->blocks + at, acc[t]);
        }
    }
}

static float float_row(const struct mat *m, const uint8_t *rec, uint32_t lane, const float *x)
{
    float acc = 0;
    for (uint32_t k = 0; k < m->cols; k++) {
        size_t i = (size_t)k * GROUP_ROWS + lane;
        float w;
        if (m->form == MAT_BF16) {
            uint32_t bits = (uint32_t)rec[2 * i] << 16 | (uint32_t)rec[2 * i + 1] << 24;
            memcpy(&w, &bits, 4);
        } else {
            w = scale_at(rec, m->form == MAT_F32, i);
        }
        acc = fmaf(w, x[k], acc);
    }
    return acc;
}

/* Codes, a 256th of their value, are summed up for 128 columns; then their scale counts. */
static float f8_row(const struct mat *m, const struct mat_shape *s, const uint8_t *rec,
                    uint32_t lane, const float *x)
{
    float sum = 0;
    for (uint32_t k = 0; k < m->cols; k += F8_COLS) {
        uint32_t end = m->cols - k < F8_COLS ? m->cols : k + F8_COLS;
        float acc = 0, scale;
        for (uint32_t i = k; i < end; i++)
            acc = fmaf(f8_to_f32(rec[(size_t)i * GROUP_ROWS + lane]) * 0x1p-8f, x[i], acc);
        memcpy(&scale, rec + s->scales_at + (k / F8_COLS * GROUP_ROWS + lane) * sizeof scale,
               sizeof scale);
        sum = fmaf(acc, scale * 256.0f, sum);
    }
    return sum;
}

void scalar_matmul(const struct mat *m, uint32_t g0, uint32_t g1, const struct acts *x, uint32_t n,
                   float *y, size_t ldy)
{
    struct mat_shape s;
    mat_shape(m->form, m->rows, m->cols, &s);
    for (uint32_t row = g0 * GROUP_ROWS; row < g1 * GROUP_ROWS && row < m->rows; row++) {
        const uint8_t *rec = m->data + row / GROUP_ROWS * s.group_bytes;
        uint32_t lane = row % GROUP_ROWS;
        for (uint32_t t = 0; t < n; t += TOKENS) {
            uint32_t some = n - t < TOKENS ? n - t : TOKENS;
            float acc[TOKENS];
            if (!mat_form_is_float(m->form))
                quantised_row(m, &s, rec, lane, x, t, some, acc);
            for (uint32_t i = 0; i < some; i++)
                y[(t + i) * ldy + row] =
                    m->form == MAT_F8            ? f8_row(m, &s, rec, lane, x->x + (t + i) * x->ldx)
                    : mat_form_is_float(m->form) ? float_row(m, rec, lane, x->x + (t + i) * x->ldx)
                                                 : acc[i];
        }
    }
}
