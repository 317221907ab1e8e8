/* simd_matmul_float.h: products with F32, F16 and BF16 matrices: fma over the columns in order.
 * Compiled once a backend, after its v16_*.h. */

#define TOKENS 8u

INLINE v16 weights(enum mat_form form, const uint8_t *rec, uint32_t k)
{
    if (form == MAT_F32)
        return v_load((const float *)(const void *)rec + (size_t)k * 16);
    const uint16_t *h = (const uint16_t *)(const void *)rec + (size_t)k * 16;
    return form == MAT_F16 ? v_load_f16(h) : v_load_bf16(h);
}

/* One group of rows by up to 8 tokens (nt is a constant where it is 8). */
INLINE void tile(enum mat_form form, const uint8_t *rec, uint32_t cols, const float *x, size_t ldx,
                 uint32_t nt, float *y, size_t ldy, uint32_t rows)
{
    v16 acc[TOKENS];
    UNROLL
    for (uint32_t t = 0; t < TOKENS; t++)
        acc[t] = v_set1(0);
    for (uint32_t k = 0; k < cols; k++) {
        v16 w = weights(form, rec, k);
        UNROLL
        for (uint32_t t = 0; t < nt; t++)
            acc[t] = v_fma(w, v_set1(x[t * ldx + k]), acc[t]);
    }
    UNROLL
    for (uint32_t t = 0; t < nt; t++)
        v_store_n(y + t * ldy, acc[t], rows);
}

INLINE void groups(enum mat_form form, const struct mat *m, uint32_t g0, uint32_t g1,
                   const struct acts *x, uint32_t n, float *y, size_t ldy)
{
    struct mat_shape s;
    mat_shape(form, m->rows, m->cols, &s);
    for (uint32_t g = g0; g < g1; g++) {
        const uint8_t *rec = m->data + g * s.group_bytes;
        uint32_t rows = m->rows - g * GROUP_ROWS;
        uint32_t t = 0;
        for (; t + TOKENS <= n; t += TOKENS)
            tile(form, rec, m->cols, x->x + t * x->ldx, x->ldx, TOKENS,
                 y + t * ldy + g * GROUP_ROWS, ldy, rows);
        for (; t < n; t++)
            tile(form, rec, m->cols, x->x + t * x->ldx, x->ldx, 1, y + t * ldy + g * GROUP_ROWS,
                 ldy, rows);
    }
}

/* FP8: codes, a 256th of their value, are summed up for 128 columns; then their scale counts. */
INLINE void tile_f8(const struct mat *m, const struct mat_shape *s, const uint8_t *rec,
                    const float *x, size_t ldx, uint32_t nt, float *y, size_t ldy, uint32_t rows)
{
    const float *scales = (const float *)(const void *)(rec + s->scales_at);
    v16 sum[TOKENS];
    UNROLL
    for (uint32_t t = 0; t < TOKENS; t++)
        sum[t] = v_set1(0);
    for (uint32_t k = 0; k < m->cols; k += F8_COLS, scales += 16) {
        uint32_t end = m->cols - k < F8_COLS ? m->cols : k + F8_COLS;
        v16 acc[TOKENS], scale = v_mul(v_load(scales), v_set1(256.0f));
        UNROLL
        for (uint32_t t = 0; t < TOKENS; t++)
            acc[t] = v_set1(0);
        for (uint32_t i = k; i < end; i++) {
            v16 w = v_load_f8(rec + (size_t)i * 16);
            UNROLL
            for (uint32_t t = 0; t < nt; t++)
                acc[t] = v_fma(w, v_set1(x[t * ldx + i]), acc[t]);
        }
        UNROLL
        for (uint32_t t = 0; t < nt; t++)
            sum[t] = v_fma(acc[t], scale, sum[t]);
    }
    UNROLL
    for (uint32_t t = 0; t < nt; t++)
        v_store_n(y + t * ldy, sum[t], rows);
}

static void groups_f8(const struct mat *m, uint32_t g0, uint32_t g1, const struct acts *x,
                      uint32_t n, float *y, size_t ldy)
{
    struct mat_shape s;
    mat_shape(m->form, m->rows, m->cols, &s);
    for (uint32_t g = g0; g < g1; g++) {
        const uint8_t *rec = m->data + g * s.group_bytes;
        uint32_t rows = m->rows - g * GROUP_ROWS, t = 0;
        for (; t + TOKENS <= n; t += TOKENS)
            tile_f8(m, &s, rec, x->x + t * x->ldx, x->ldx, TOKENS, y + t * ldy + g * GROUP_ROWS,
                    ldy, rows);
        for (; t < n; t++)
            tile_f8(m, &s, rec, x->x + t * x->ldx, x->ldx, 1, y + t * ldy + g * GROUP_ROWS, ldy,
                    rows);
    }
}

void ISA(matmul_float)(const struct mat *m, uint32_t g0, uint32_t g1, const struct acts *x,
                       uint32_t n, float *y, size_t ldy)
{
    if (m->form == MAT_F8)
        groups_f8(m, g0, g1, x, n, y, ldy);
    else if (m->form == MAT_F32)
        groups(MAT_F32, m, g0, g1, x, n, y, ldy);
    else if (m->form == MAT_F16)
        groups(MAT_F16, m, g0, g1, x, n, y, ldy);
    else
        groups(MAT_BF16, m, g0, g1, x, n, y, ldy);
}
