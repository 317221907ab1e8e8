/* floats.h: writes a copy of a GGUF file with every matrix as bf16, its own weights rounded once,
 * so that tests have real models without quantised weights. */
#pragma once
#include "lib/base/buf.h"
#include "lib/llm/gguf.h"
#include "worker/model/image.h"
#include "worker/model/slots.h"

#include <stdio.h>
#include <stdlib.h>

static inline uint64_t floats_u64(FILE *f)
{
    uint64_t v = 0;
    if (fread(&v, 8, 1, f) != 1)
        abort();
    return v;
}

static inline uint32_t floats_u32(FILE *f)
{
    uint32_t v = 0;
    if (fread(&v, 4, 1, f) != 1)
        abort();
    return v;
}

static inline void floats_skip_value(FILE *f, uint32_t type)
{
    static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == 8) {
        fseek(f, (long)floats_u64(f), SEEK_CUR);
    } else if (type == 9) {
        uint32_t of = floats_u32(f);
        uint64_t n = floats_u64(f);
        for (uint64_t i = 0; i < n; i++)
            floats_skip_value(f, of);
    } else {
        fseek(f, sizes[type], SEEK_CUR);
    }
}

/* Header and metadata as they are. */
static inline void floats_head(FILE *from, FILE *to)
{
    char magic[4];
    if (fread(magic, 4, 1, from) != 1)
        abort();
    floats_u32(from);
    floats_u64(from);
    for (uint64_t n = floats_u64(from); n; n--) {
        fseek(from, (long)floats_u64(from), SEEK_CUR);
        floats_skip_value(from, floats_u32(from));
    }
    long end = ftell(from);
    char *all = malloc((size_t)end);
    rewind(from);
    if (fread(all, 1, (size_t)end, from) != (size_t)end ||
        fwrite(all, 1, (size_t)end, to) != (size_t)end)
        abort();
    free(all);
}

static inline void floats_pad(FILE *to)
{
    while (ftell(to) % 32)
        fputc(0, to);
}

static inline void floats_infos(const struct gguf *g, FILE *to)
{
    uint64_t at = 0;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        bool matrix = t->ne[1] > 1;
        uint64_t n = t->name.n, elements = t->ne[0] * t->ne[1];
        uint32_t dims = matrix ? 2 : 1, type = matrix ? GGUF_BF16 : GGUF_F32;
        fwrite(&n, 8, 1, to);
        fwrite(t->name.p, 1, n, to);
        fwrite(&dims, 4, 1, to);
        fwrite(t->ne, 8, dims, to);
        fwrite(&type, 4, 1, to);
        fwrite(&at, 8, 1, to);
        at += (elements * (matrix ? 2 : 4) + 31) / 32 * 32;
    }
}

static inline uint16_t floats_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* The entry of the image that was made from a tensor. */
static inline const struct image_entry *floats_entry(const struct model *m, struct str name)
{
    for (uint32_t i = 0; i < slots_count(&m->config); i++) {
        struct slot_spec s;
        char whole[80];
        slots_spec(&m->config, i, &s);
        snprintf(whole, sizeof whole, "%s.weight", s.name);
        if (str_eq_c(name, s.name) || str_eq_c(name, whole))
            return &m->entries[i];
    }
    return NULL;
}

static inline void floats_tensor(const struct model *m, const struct gguf_tensor *t, FILE *to)
{
    const struct image_entry *en = floats_entry(m, t->name);
    if (!en || !en->bytes)
        abort();
    if (!en->form) {
        fwrite(image_vec(m, en), sizeof(float), en->cols, to);
    } else {
        struct mat w = image_mat(m, en);
        float *row = malloc(en->cols * sizeof *row);
        uint16_t *half = malloc(en->cols * sizeof *half);
        for (uint32_t r = 0; r < en->rows; r++) {
            mat_row(&w, r, row);
            for (uint32_t k = 0; k < en->cols; k++)
                half[k] = floats_bf16(row[k]);
            fwrite(half, sizeof *half, en->cols, to);
        }
        free(row);
        free(half);
    }
    floats_pad(to);
}

static inline int floats_copy(const char *from, const char *to, struct err *e)
{
    struct model *m;
    struct gguf *g;
    int rc = model_load(from, NULL, &m, e);
    rc = rc ? rc : gguf_open(from, &g, e);
    if (rc)
        return rc;
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    if (!in || !out)
        abort();
    floats_head(in, out);
    floats_infos(g, out);
    floats_pad(out);
    for (size_t i = 0; i < gguf_n_tensors(g); i++)
        floats_tensor(m, gguf_tensor_at(g, i), out);
    fclose(in);
    rc = fclose(out) ? -1 : 0;
    gguf_free(g);
    model_free(m);
    return rc;
}
