/* Filling an image: GGUF tensors are read group by group, decoded and interleaved. */
#include "worker/model/blocks.h"
#include "worker/model/config.h"
#include "worker/model/plan.h"
#include "worker/model/slots.h"

#include <errno.h>
#include <stdlib.h>

/* Scratch for 16 whole rows of one tensor; columns from col0 on are packed. */
struct group {
    uint8_t *raw, *codes;
    float *scales, *mins;
    uint32_t cols_padded, col0;
};

static int group_init(struct group *g, uint64_t row_bytes, uint32_t cols, struct err *e)
{
    g->cols_padded = (cols + BLOCK_COLS - 1) / BLOCK_COLS * BLOCK_COLS;
    size_t n = (size_t)g->cols_padded * GROUP_ROWS;
    g->raw = malloc(row_bytes * GROUP_ROWS);
    g->codes = malloc(n);
    g->scales = calloc(n / 16, sizeof *g->scales);
    g->mins = calloc(n / 32, sizeof *g->mins);
    if (!g->raw || !g->codes || !g->scales || !g->mins)
        return err_set(e, ENOMEM, "no memory to repack a tensor");
    return 0;
}

static void group_fini(struct group *g)
{
    free(g->raw);
    free(g->codes);
    free(g->scales);
    free(g->mins);
}

static void put_scale(uint8_t *at, bool f32, size_t i, float v)
{
    uint16_t h = f32_to_f16(v);
    if (f32)
        memcpy(at + 4 * i, &v, 4);
    else
        memcpy(at + 2 * i, &h, 2);
}

static void interleave_codes(const struct group *g, const struct mat_shape *s, uint32_t lane,
                             uint8_t *rec)
{
    const uint8_t *codes = g->codes + (size_t)lane * g->cols_padded + g->col0;
    for (uint32_t b = 0; b < s->blocks; b++, codes += BLOCK_COLS, rec += s->code_bytes)
        for (uint32_t v = 0; v < 8; v++) {
            uint8_t *to = rec + (s->code_bytes == 256 ? v % 4 : v) * 64u + lane * 4u;
            for (uint32_t i = 0; i < 4; i++) {
                uint8_t c = codes[v * 4 + i];
                if (s->code_bytes != 256)
                    to[i] = c;
                else
                    to[i] = v < 4 ? c : (uint8_t)(to[i] | c << 4);
            }
        }
}

/* Row `lane` of a quantised group into its record. */
static void pack_row(const struct group *g, enum mat_form form, const struct mat_shape *s,
                     uint32_t lane, uint8_t *rec)
{
    bool f32 = s->scale_bytes >= 64;
    uint32_t per_block = form == MAT_I8B16 ? 2 : 1;
    const float *scales =
        g->scales + (size_t)lane * g->cols_padded / 16 + g->col0 / BLOCK_COLS * per_block;
    const float *mins = g->mins + (size_t)lane * g->cols_padded / 32 + g->col0 / BLOCK_COLS;
    interleave_codes(g, s, lane, rec);
    for (uint32_t i = 0; i < s->blocks * per_block; i++)
        put_scale(rec + s->scales_at, f32, (size_t)i * 16 + lane, scales[i]);
    for (uint32_t i = 0; s->mins_at && i < s->blocks; i++)
        put_scale(rec + s->mins_at, f32, (size_t)i * 16 + lane, mins[i]);
}

static void pack_float_row(const uint8_t *raw, size_t elt, uint32_t cols, uint32_t lane,
                           uint8_t *rec)
{
    for (uint32_t k = 0; k < cols; k++)
        memcpy(rec + ((size_t)k * GROUP_ROWS + lane) * elt, raw + k * elt, elt);
}

static int fill_mat(const struct gguf *f, const struct gguf_tensor *t, const struct image_entry *en,
                    const struct slot_spec *spec, uint8_t *out, struct err *e)
{
    struct group g = {.col0 = spec->col0};
    struct mat_shape s;
    uint64_t row_bytes = t->bytes / spec->rows_all, elt = row_bytes / spec->cols_all;
    mat_shape(en->form, en->rows, en->cols, &s);
    int rc = group_init(&g, row_bytes, spec->cols_all, e);
    for (uint32_t i = 0; rc == 0 && i < s.groups; i++, out += s.group_bytes) {
        uint32_t row = i * GROUP_ROWS,
                 n = en->rows - row < GROUP_ROWS ? en->rows - row : GROUP_ROWS;
        rc = gguf_read(f, t, (spec->row0 + row) * row_bytes, g.raw, n * row_bytes, e);
        memset(out, 0, s.group_bytes);
        for (uint32_t lane = 0; rc == 0 && lane < n; lane++) {
            const uint8_t *raw = g.raw + lane * row_bytes;
            if (mat_form_is_float(en->form)) {
                pack_float_row(raw + spec->col0 * elt, elt, en->cols, lane, out);
                continue;
            }
            block_decode(t->type, raw, spec->cols_all, g.codes + (size_t)lane * g.cols_padded,
                         g.scales + (size_t)lane * g.cols_padded / 16,
                         g.mins + (size_t)lane * g.cols_padded / 32);
            pack_row(&g, en->form, &s, lane, out);
        }
    }
    group_fini(&g);
    return rc;
}

static int fill_vec(const struct gguf *f, const struct gguf_tensor *t, uint8_t *out, uint32_t n,
                    struct err *e)
{
    return gguf_read(f, t, 0, out, (size_t)n * sizeof(float), e);
}

static int fill_entries(const struct plan *p, uint8_t *image, struct err *e)
{
    for (uint32_t i = 0; i < p->n_entries; i++) {
        const struct image_entry *en = &p->entries[i];
        if (!en->bytes)
            continue;
        struct slot_spec spec;
        shard_spec(&p->config, &p->part, i, &spec);
        uint64_t used =
            en->form ? mat_bytes(en->form, en->rows, en->cols) : (uint64_t)en->cols * sizeof(float);
        int rc = en->form ? fill_mat(p->file, p->tensors[i], en, &spec, image + en->offset, e)
                          : fill_vec(p->file, p->tensors[i], image + en->offset, en->cols, e);
        if (rc < 0)
            return rc;
        memset(image + en->offset + used, 0, en->bytes - used);
    }
    return 0;
}

static int fill(const struct plan *p, uint8_t *image, uint64_t bytes, struct err *e)
{
    if ((uintptr_t)image % 64)
        return err_set(e, EINVAL, "the weight image is not 64-byte aligned");
    if (bytes < p->bytes)
        return err_set(e, EINVAL, "the weight image needs %llu bytes, there are %llu",
                       (unsigned long long)p->bytes, (unsigned long long)bytes);
    struct image_header h;
    memset(&h, 0, sizeof h);
    memset(image, 0, p->head_bytes); /* not valid until all of it is there */
    int rc = fill_entries(p, image, e);
    if (rc < 0)
        return rc;
    memcpy(h.magic, IMAGE_MAGIC, sizeof h.magic);
    h.version = IMAGE_VERSION;
    h.n_entries = p->n_entries;
    memcpy(h.form, IMAGE_FORM, sizeof IMAGE_FORM);
    h.bytes = p->bytes;
    h.shard = p->shard;
    h.config = p->config;
    memcpy(image + IMAGE_ENTRIES_AT, p->entries, p->n_entries * sizeof *p->entries);
    image_head_sha(&h, p->entries, h.head_sha);
    h.checksum = image_checksum(image, p->head_bytes, p->bytes);
    memcpy(image, &h, sizeof h);
    return 0;
}

int model_shard_fill(const char *path, const char *isa, const struct model_shard *s, void *image,
                     uint64_t bytes, struct err *e)
{
    const struct kernel_ops *ops;
    struct plan p;
    int rc = cpu_ops(isa, &ops, e);
    if (rc < 0 || (rc = plan_open(&p, path, s, e)) < 0)
        return rc;
    rc = fill(&p, image, bytes, e);
    plan_close(&p);
    return rc;
}

int model_image_fill(const char *path, const char *isa, void *image, uint64_t bytes, struct err *e)
{
    return model_shard_fill(path, isa, NULL, image, bytes, e);
}

int model_shard_bytes(const char *path, const char *isa, const struct model_shard *s,
                      uint64_t *bytes, struct err *e)
{
    const struct kernel_ops *ops;
    struct plan p;
    int rc = cpu_ops(isa, &ops, e);
    if (rc < 0 || (rc = plan_open(&p, path, s, e)) < 0)
        return rc;
    *bytes = p.bytes;
    plan_close(&p);
    return 0;
}

int model_image_bytes(const char *path, const char *isa, uint64_t *bytes, struct err *e)
{
    return model_shard_bytes(path, isa, NULL, bytes, e);
}
