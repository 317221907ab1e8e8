#include "kernels/ops.h"
#include "lib/base/err.h"

#include <math.h>
#include <string.h>

static size_t pad64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

bool mat_form_ok(uint32_t form)
{
    return form >= MAT_N4 && form <= MAT_F8;
}

bool mat_form_is_float(enum mat_form form)
{
    return form >= MAT_F32;
}

void mat_shape(enum mat_form form, uint32_t rows, uint32_t cols, struct mat_shape *out)
{
    static const struct {
        uint32_t code, scale, min;
    } sizes[] = {
        [MAT_N4] = {256, 32, 0},     [MAT_N4M] = {256, 32, 32}, [MAT_N4MF] = {256, 64, 64},
        [MAT_I8] = {512, 32, 0},     [MAT_I8M] = {512, 32, 32}, [MAT_I8MF] = {512, 64, 64},
        [MAT_I8B16] = {512, 128, 0},
    };
    ASSERT(mat_form_ok(form));
    struct mat_shape s = {.groups = (rows + GROUP_ROWS - 1) / GROUP_ROWS,
                          .blocks = (cols + BLOCK_COLS - 1) / BLOCK_COLS};
    if (form == MAT_F8) {
        s.scales_at = pad64((size_t)cols * GROUP_ROWS);
        s.group_bytes = s.scales_at + (cols + F8_COLS - 1) / F8_COLS * GROUP_ROWS * sizeof(float);
    } else if (mat_form_is_float(form)) {
        s.group_bytes = pad64((size_t)cols * GROUP_ROWS * (form == MAT_F32 ? 4 : 2));
    } else {
        s.code_bytes = sizes[form].code;
        s.scale_bytes = sizes[form].scale;
        s.scales_at = (size_t)s.blocks * s.code_bytes;
        s.group_bytes = s.scales_at + pad64((size_t)s.blocks * s.scale_bytes);
        if (sizes[form].min) {
            s.mins_at = s.group_bytes;
            s.group_bytes += pad64((size_t)s.blocks * sizes[form].min);
        }
    }
    *out = s;
}

size_t mat_bytes(enum mat_form form, uint32_t rows, uint32_t cols)
{
    struct mat_shape s;
    mat_shape(form, rows, cols, &s);
    return s.groups * s.group_bytes;
}

size_t attn_scratch_floats(uint32_t rows, uint32_t group, uint32_t head_dim)
{
    size_t q = (size_t)rows * group;
    /* K and V of a window, then for each query: scores, four words of state, factor. */
    return 2u * ATTN_WINDOW * head_dim + q * (ATTN_WINDOW + 5u) + 64u;
}

/* ---- f16 ---- */

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31u, man = h & 1023u, bits;
    if (exp == 0) {
        float f = (float)man * 0x1p-24f;
        return sign ? -f : f;
    }
    bits = sign | (exp == 31 ? 0x7f800000u : (exp + 112) << 23) | man << 13;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

uint16_t f32_to_f16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    uint32_t sign = (bits >> 16) & 0x8000u, abs = bits & 0x7fffffffu;
    if (abs > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((abs >> 13) & 1023u));
    if (abs >= 0x477ff000u) /* rounds past 65504 */
        return (uint16_t)(sign | 0x7c00u);
    if (abs < 0x38800000u) { /* subnormal: a multiple of 2^-24, rounded by the addition */
        float v;
        memcpy(&v, &abs, 4);
        v += 0.5f;
        memcpy(&bits, &v, 4);
        return (uint16_t)(sign | (bits - 0x3f000000u));
    }
    abs += 0xfffu + ((abs >> 13) & 1u);
    return (uint16_t)(sign | ((abs - 0x38000000u) >> 13));
}

static float half_or_float(const uint8_t *p, bool f32, size_t i)
{
    uint16_t h;
    float f;
    if (f32) {
        memcpy(&f, p + 4 * i, 4);
        return f;
    }
    memcpy(&h, p + 2 * i, 2);
    return f16_to_f32(h);
}

/* ---- f8 ---- */

float f8_to_f32(uint8_t b)
{
    if ((b & 0x7f) == 0x7f)
        return NAN;
    return f16_to_f32((uint16_t)((b & 0x80u) << 8 | (b & 0x7fu) << 7)) * 256.0f;
}

uint8_t f32_to_f8(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80u);
    float abs = fabsf(f);
    if (!(abs < 464.0f)) /* past the middle of 448 and what would be next; NaN */
        return isnan(f) ? (uint8_t)(sign | 0x7f) : (uint8_t)(sign | 0x7e);
    if (abs < 0x1p-6f) /* subnormal: a multiple of 2^-9 */
        return (uint8_t)(sign | (uint8_t)rintf(abs * 512.0f));
    bits = (bits & 0x7fffffffu) + 0x7ffffu + (bits >> 20 & 1u);
    return (uint8_t)(sign | (uint8_t)((bits >> 20) - (120u << 3)));
}

/* ---- rows of K and V ---- */

bool kv_is_coded(enum kv_type t)
{
    return t == KV_I8 || t == KV_F8;
}

uint32_t kv_elt_bytes(enum kv_type t)
{
    return t == KV_F32 ? 4 : kv_is_coded(t) ? 1 : 2;
}

static uint32_t kv_groups(uint32_t head_dim)
{
    return (head_dim + KV_GROUP - 1) / KV_GROUP;
}

size_t kv_head_bytes(enum kv_type t, uint32_t head_dim, uint32_t block_tokens)
{
    size_t scales = kv_is_coded(t) ? kv_groups(head_dim) * sizeof(float) : 0;
    return block_tokens * ((size_t)head_dim * kv_elt_bytes(t) + scales);
}

uint16_t f32_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 64u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* Codes of up to KV_GROUP values; returns their scale. */
static float kv_codes(enum kv_type t, const float *x, uint32_t n, uint8_t *codes)
{
    float max = 0, most = t == KV_I8 ? 127.0f : 448.0f;
    for (uint32_t i = 0; i < n; i++)
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    float inv = max > 1e-30f ? most / max : 0.0f;
    for (uint32_t i = 0; i < n; i++)
        codes[i] = t == KV_I8 ? (uint8_t)(int8_t)rintf(x[i] * inv) : f32_to_f8(x[i] * inv);
    return inv > 0.0f ? max / most : 0.0f;
}

void kv_store(enum kv_type t, const float *x, uint32_t head_dim, uint32_t block_tokens,
              uint32_t token, uint8_t *head)
{
    uint8_t *to = head + (size_t)token * head_dim * kv_elt_bytes(t);
    uint8_t *scales = head + (size_t)block_tokens * head_dim +
                      (size_t)token * kv_groups(head_dim) * sizeof(float);
    for (uint32_t i = 0; i < head_dim; i += KV_GROUP) {
        uint32_t n = head_dim - i < KV_GROUP ? head_dim - i : KV_GROUP;
        if (kv_is_coded(t)) {
            float scale = kv_codes(t, x + i, n, to + i);
            memcpy(scales + i / KV_GROUP * sizeof scale, &scale, sizeof scale);
            continue;
        }
        for (uint32_t k = i; k < i + n; k++) {
            uint16_t h = t == KV_BF16 ? f32_to_bf16(x[k]) : f32_to_f16(x[k]);
            if (t == KV_F32)
                memcpy(to + 4 * (size_t)k, &x[k], 4);
            else
                memcpy(to + 2 * (size_t)k, &h, 2);
        }
    }
}

float kv_load(enum kv_type t, const uint8_t *head, uint32_t head_dim, uint32_t block_tokens,
              uint32_t token, uint32_t dim)
{
    size_t i = (size_t)token * head_dim + dim;
    if (!kv_is_coded(t)) {
        if (t != KV_BF16)
            return half_or_float(head, t == KV_F32, i);
        uint32_t bits = (uint32_t)head[2 * i] << 16 | (uint32_t)head[2 * i + 1] << 24;
        float f;
        memcpy(&f, &bits, 4);
        return f;
    }
    float scale;
    size_t group = (size_t)token * kv_groups(head_dim) + dim / KV_GROUP;
    memcpy(&scale, head + (size_t)block_tokens * head_dim + group * sizeof scale, sizeof scale);
    if (t == KV_I8)
        return (float)(int8_t)head[i] * scale;
    return f8_to_f32(head[i]) * 0x1p-8f * (scale * 256.0f);
}

/* ---- rotary embedding ---- */

void rope_freqs(double *freqs, uint32_t dims, float base, float scale, const float *factors)
{
    for (uint32_t i = 0; i < dims / 2; i++) {
        freqs[i] = pow((double)base, -2.0 * i / dims) / (double)scale;
        if (factors)
            freqs[i] /= (double)factors[i];
    }
}

void rope_table(float *cs, uint32_t pos, uint32_t dims, const double *freqs)
{
    for (uint32_t i = 0; i < dims / 2; i++) {
        cs[2 * i] = (float)cos(pos * freqs[i]);
        cs[2 * i + 1] = (float)sin(pos * freqs[i]);
    }
}

void rope_apply(float *x, const float *cs, uint32_t dims, bool neox)
{
    uint32_t half = dims / 2, far = neox ? half : 1, step = neox ? 1 : 2;
    for (uint32_t i = 0; i < half; i++) {
        float *a = x + (size_t)i * step, *b = a + far, c = cs[2 * i], s = cs[2 * i + 1];
        float u = *a * c - *b * s, v = *a * s + *b * c;
        *a = u;
        *b = v;
    }
}

/* ---- one row of a matrix ---- */

static void float_row(const struct mat *m, const uint8_t *rec, uint32_t lane, float *out)
{
    struct mat_shape s;
    mat_shape(m->form, m->rows, m->cols, &s);
    const uint8_t *scales = rec + s.scales_at; /* MAT_F8 */
    for (uint32_t k = 0; k < m->cols; k++) {
        size_t i = (size_t)k * GROUP_ROWS + lane;
        if (m->form == MAT_F8) {
            float scale;
            memcpy(&scale, scales + (k / F8_COLS * GROUP_ROWS + lane) * sizeof scale, sizeof scale);
            out[k] = f8_to_f32(rec[i]) * scale;
        } else if (m->form == MAT_BF16) {
            uint32_t bits = (uint32_t)rec[2 * i] << 16 | (uint32_t)rec[2 * i + 1] << 24;
            memcpy(&out[k], &bits, 4);
        } else {
            out[k] = half_or_float(rec, m->form == MAT_F32, i);
        }
    }
}

void mat_row(const struct mat *m, uint32_t row, float *out)
{
    struct mat_shape s;
    mat_shape(m->form, m->rows, m->cols, &s);
    const uint8_t *rec = m->data + row / GROUP_ROWS * s.group_bytes;
    uint32_t lane = row % GROUP_ROWS;
    if (mat_form_is_float(m->form)) {
        float_row(m, rec, lane, out);
        return;
    }
    bool f32 = s.scale_bytes >= 64, nibbles = s.code_bytes == 256;
    int zero = m->form == MAT_N4 ? 8 : s.mins_at ? 0 : 128;
    for (uint32_t k = 0; k < m->cols; k++) {
        uint32_t b = k / BLOCK_COLS, c = k % BLOCK_COLS, v = c / 4;
        size_t at = (size_t)b * s.code_bytes + (nibbles ? v % 4 : v) * 64u + lane * 4u + c % 4;
        int code = nibbles ? (v >= 4 ? rec[at] >> 4 : rec[at] & 15) : rec[at];
        size_t si = m->form == MAT_I8B16 ? (b * 2u + c / 16) * 16u + lane : b * 16u + lane;
        float w = half_or_float(rec + s.scales_at, f32, si) * (float)(code - zero);
        out[k] = s.mins_at ? w + half_or_float(rec + s.mins_at, f32, si) : w;
    }
}
