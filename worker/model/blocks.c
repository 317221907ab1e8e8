#include "worker/model/blocks.h"
#include "lib/base/err.h"
#include "lib/llm/gguf.h"

#include <string.h>

static const struct {
    uint32_t type;
    enum mat_form form;
} forms[] = {
    {GGUF_F32, MAT_F32},  {GGUF_F16, MAT_F16},   {GGUF_BF16, MAT_BF16},  {GGUF_Q4_0, MAT_N4},
    {GGUF_Q4_1, MAT_N4M}, {GGUF_Q4_K, MAT_N4MF}, {GGUF_Q5_0, MAT_I8},    {GGUF_Q8_0, MAT_I8},
    {GGUF_Q5_1, MAT_I8M}, {GGUF_Q5_K, MAT_I8MF}, {GGUF_Q6_K, MAT_I8B16},
};

bool block_form(uint32_t gguf_type, enum mat_form *out)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (forms[i].type == gguf_type) {
            *out = forms[i].form;
            return true;
        }
    return false;
}

static float half_at(const uint8_t *p)
{
    return f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

static void nibbles(const uint8_t *qs, uint8_t *codes)
{
    for (int j = 0; j < 16; j++) {
        codes[j] = qs[j] & 15;
        codes[j + 16] = qs[j] >> 4;
    }
}

/* Adds the fifth bits, and `bias` for forms whose zero is 128. */
static void fifth_bits(const uint8_t *qh, uint8_t bias, uint8_t *codes)
{
    uint32_t bits;
    memcpy(&bits, qh, 4);
    for (int j = 0; j < 32; j++)
        codes[j] = (uint8_t)((codes[j] | ((bits >> j & 1u) << 4)) + bias);
}

/* Formats of 32 columns a block. */
static void decode_32(uint32_t type, const uint8_t *p, uint8_t *codes, float *scale, float *min)
{
    *scale = half_at(p);
    switch (type) {
    case GGUF_Q4_0: nibbles(p + 2, codes); break;
    case GGUF_Q4_1:
        *min = half_at(p + 2);
        nibbles(p + 4, codes);
        break;
    case GGUF_Q5_0:
        nibbles(p + 6, codes);
        fifth_bits(p + 2, 128 - 16, codes);
        break;
    case GGUF_Q5_1:
        *min = half_at(p + 2);
        nibbles(p + 8, codes);
        fifth_bits(p + 4, 0, codes);
        break;
    default: /* GGUF_Q8_0 */
        for (int j = 0; j < 32; j++)
            codes[j] = (uint8_t)(p[2 + j] ^ 0x80);
    }
}

static void scale_min(const uint8_t *sc, int j, int *s, int *m)
{
    if (j < 4) {
        *s = sc[j] & 63;
        *m = sc[j + 4] & 63;
    } else {
        *s = (sc[j + 4] & 15) | (sc[j - 4] >> 6) << 4;
        *m = (sc[j + 4] >> 4) | (sc[j] >> 6) << 4;
    }
}

/* Q4_K and Q5_K: 256 columns, eight sub-blocks with 6-bit scales and minima. */
static void decode_k45(bool five, const uint8_t *p, uint8_t *codes, float *scales, float *mins)
{
    float d = half_at(p), dmin = half_at(p + 2);
    const uint8_t *sc = p + 4, *qh = p + 16, *qs = five ? p + 48 : p + 16;
    for (int j = 0; j < 8; j++) {
        int s, m;
        scale_min(sc, j, &s, &m);
        scales[j] = d * (float)s;
        mins[j] = -(dmin * (float)m);
        for (int i = 0; i < 32; i++) {
            uint8_t b = qs[32 * (j / 2) + i];
            uint8_t code = j % 2 ? b >> 4 : b & 15;
            codes[32 * j + i] = five ? (uint8_t)(code | ((qh[i] >> j & 1) << 4)) : code;
        }
    }
}

/* Q6_K: 256 columns, sixteen sub-blocks with signed 8-bit scales. */
static void decode_k6(const uint8_t *p, uint8_t *codes, float *scales)
{
    const uint8_t *ql = p, *qh = p + 128, *sc = p + 192;
    float d = half_at(p + 208);
    for (int i = 0; i < 16; i++)
        scales[i] = d * (float)(int8_t)sc[i];
    for (int half = 0; half < 2; half++, ql += 64, qh += 32, codes += 128)
        for (int l = 0; l < 32; l++)
            for (int q = 0; q < 4; q++) {
                int low = q < 2 ? ql[l + 32 * (q & 1)] & 15 : ql[l + 32 * (q & 1)] >> 4;
                codes[l + 32 * q] = (uint8_t)((low | (qh[l] >> (2 * q) & 3) << 4) + (128 - 32));
            }
}

void block_decode(uint32_t gguf_type, const uint8_t *row, uint32_t cols, uint8_t *codes,
                  float *scales, float *mins)
{
    uint32_t step = 0, bytes = 0;
    ASSERT(gguf_type_block(gguf_type, &step, &bytes) && step > 1);
    for (uint32_t k = 0; k < cols; k += step, row += bytes, codes += step) {
        if (gguf_type == GGUF_Q6_K) {
            decode_k6(row, codes, scales + k / 16);
        } else if (step == 256) {
            decode_k45(gguf_type == GGUF_Q5_K, row, codes, scales + k / 32, mins + k / 32);
        } else {
            float min = 0;
            decode_32(gguf_type, row, codes, scales + k / 32, &min);
            if (gguf_type == GGUF_Q4_1 || gguf_type == GGUF_Q5_1)
                mins[k / 32] = min;
        }
    }
}

/* ---- as floats ---- */

static float float_at(uint32_t type, const uint8_t *row, uint32_t k)
{
    uint32_t bits = 0;
    float f;
    if (type == GGUF_F16)
        return half_at(row + 2 * (size_t)k);
    if (type == GGUF_BF16)
        bits = (uint32_t)row[2 * (size_t)k] << 16 | (uint32_t)row[2 * (size_t)k + 1] << 24;
    else
        memcpy(&bits, row + 4 * (size_t)k, 4);
    memcpy(&f, &bits, 4);
    return f;
}

static int zero_of(enum mat_form form)
{
    return form == MAT_N4 ? 8 : form == MAT_I8 || form == MAT_I8B16 ? 128 : 0;
}

void block_floats(uint32_t gguf_type, const uint8_t *row, uint32_t cols, float *out)
{
    enum mat_form form = 0;
    uint32_t step = 0, bytes = 0;
    ASSERT(block_form(gguf_type, &form) && gguf_type_block(gguf_type, &step, &bytes));
    if (step == 1) {
        for (uint32_t k = 0; k < cols; k++)
            out[k] = float_at(gguf_type, row, k);
        return;
    }
    uint32_t per = form == MAT_I8B16 ? 16 : 32;
    for (uint32_t k = 0; k < cols; k += step, row += bytes) {
        uint8_t codes[256];
        float scales[16], mins[8] = {0};
        block_decode(gguf_type, row, step, codes, scales, mins);
        for (uint32_t i = 0; i < step; i++)
            out[k + i] = scales[i / per] * (float)(codes[i] - zero_of(form)) + mins[i / 32];
    }
}
