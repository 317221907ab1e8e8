/* Filling an image: tensors are read group by group, decoded and interleaved. */
#include "worker/model/blocks.h"
#include "worker/model/plan.h"

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

static void free_floats(float **p)
{
    free(*p);
}

/* A float as one of the float forms, nearest even. */
static void put_float(uint8_t *rec, enum mat_form form, size_t i, float v)
{
    uint32_t bits;
    uint16_t h = f32_to_f16(v);
    memcpy(&bits, &v, 4);
    if (form == MAT_BF16)
        h = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    if (form == MAT_F32)
        memcpy(rec + 4 * i, &v, 4);
    else
        memcpy(rec + 2 * i, &h, 2);
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

/* One matrix being read: which, from where. */
struct part {
    const struct plan *plan;
    const struct slot_spec *spec;
    const struct image_entry *entry;
    struct slot_part from;
    struct source_tensor tensor;
    struct mat_shape shape; /* of the matrix in the image */
};

/* A row of FP8 with its scales. Codes of NaN would read as 480: such a file is damaged. */
static int pack_f8_row(const struct part *p, const struct group *g, uint64_t row, uint32_t lane,
                       uint8_t *rec, struct err *e)
{
    const uint8_t *raw = g->raw + lane * p->tensor.row_bytes + g->col0;
    float scales[MODEL_COLS_MAX / SOURCE_F8_BLOCK];
    int rc = source_scales(p->plan->source, &p->tensor, row, scales, e);
    if (rc < 0)
        return rc;
    for (uint32_t k = 0; k < p->entry->cols; k++) {
        if ((raw[k] & 0x7f) == 0x7f)
            return err_set(e, EINVAL, "tensor %s holds a NaN", p->from.name);
        rec[(size_t)k * GROUP_ROWS + lane] = raw[k];
    }
    uint32_t first = g->col0 / SOURCE_F8_BLOCK;
    for (uint32_t i = 0; i * SOURCE_F8_BLOCK < p->entry->cols; i++)
        memcpy(rec + p->shape.scales_at + ((size_t)i * GROUP_ROWS + lane) * sizeof(float),
               &scales[first + i], sizeof(float));
    return 0;
}

/* A row of FP8 as floats, where its columns are cut inside of a scale's. */
static int pack_f8_floats(const struct part *p, struct group *g, uint64_t row, uint32_t lane,
                          uint8_t *rec, struct err *e)
{
    const uint8_t *raw = g->raw + lane * p->tensor.row_bytes;
    float scales[MODEL_COLS_MAX / SOURCE_F8_BLOCK];
    int rc = source_scales(p->plan->source, &p->tensor, row, scales, e);
    for (uint32_t k = 0; rc == 0 && k < p->entry->cols; k++) {
        uint32_t at = g->col0 + k;
        put_float(rec, MAT_F32, (size_t)k * GROUP_ROWS + lane,
                  f8_to_f32(raw[at]) * scales[at / SOURCE_F8_BLOCK]);
    }
    return rc;
}

/* Rows [row, row + n) of the part, which is not transposed, into a record. */
static int fill_group(const struct part *p, struct group *g, uint32_t row, uint32_t n, uint8_t *rec,
                      struct err *e)
{
    const struct source_tensor *t = &p->tensor;
    uint64_t from = p->from.row0 + p->spec->row0 + row, elt = t->row_bytes / t->cols;
    int rc = source_rows(p->plan->source, t, from, n, g->raw, e);
    for (uint32_t lane = 0; rc == 0 && lane < n; lane++) {
        const uint8_t *raw = g->raw + lane * t->row_bytes;
        if (p->entry->form == MAT_F8) {
            rc = pack_f8_row(p, g, from + lane, lane, rec, e);
        } else if (t->type == SOURCE_F8) {
            rc = pack_f8_floats(p, g, from + lane, lane, rec, e);
        } else if (mat_form_is_float(p->entry->form)) {
            pack_float_row(raw + g->col0 * elt, elt, p->entry->cols, lane, rec);
        } else {
            block_decode(t->type, raw, (uint32_t)t->cols, g->codes + (size_t)lane * g->cols_padded,
                         g->scales + (size_t)lane * g->cols_padded / 16,
                         g->mins + (size_t)lane * g->cols_padded / 32);
            pack_row(g, p->entry->form, &p->shape, lane, rec);
        }
    }
    return rc;
}

/* A row of the tensor as floats. */
static int float_row(const struct part *p, struct group *g, uint64_t row, float *out, struct err *e)
{
    const struct source_tensor *t = &p->tensor;
    float scales[MODEL_COLS_MAX / SOURCE_F8_BLOCK];
    int rc = source_rows(p->plan->source, t, row, 1, g->raw, e);
    if (rc == 0 && t->type == SOURCE_F8)
        rc = source_scales(p->plan->source, t, row, scales, e);
    if (rc < 0)
        return rc;
    for (uint64_t k = 0; t->type == SOURCE_F8 && k < t->cols; k++)
        out[k] = f8_to_f32(g->raw[k]) * scales[k / SOURCE_F8_BLOCK];
    if (t->type != SOURCE_F8)
        block_floats(t->type, g->raw, (uint32_t)t->cols, out);
    return 0;
}

/* The tensor's rows are the matrix' columns: each is read once and spread over the records. */
static int fill_transposed(const struct part *p, struct group *g, uint8_t *out, struct err *e)
{
    CLEANUP(free_floats) float *row = malloc(p->tensor.cols * sizeof *row);
    if (!row)
        return err_set(e, ENOMEM, "no memory to transpose a tensor");
    for (uint32_t k = 0; k < p->entry->cols; k++) {
        int rc = float_row(p, g, p->from.row0 + p->spec->col0 + k, row, e);
        if (rc < 0)
            return rc;
        for (uint32_t r = 0; r < p->spec->rows; r++) {
            uint8_t *rec = out + r / GROUP_ROWS * p->shape.group_bytes;
            size_t at = (size_t)k * GROUP_ROWS + r % GROUP_ROWS;
            put_float(rec, p->entry->form, at, row[p->spec->row0 + r]);
        }
    }
    return 0;
}

static int fill_part(struct part *p, uint32_t number, uint8_t *out, uint32_t entry, struct err *e)
{
    struct group g = {.col0 = p->spec->col0};
    int rc = plan_part(p->plan, entry, p->spec, number, &p->from, &p->tensor, e);
    if (rc < 0)
        return rc;
    mat_shape(p->entry->form, p->spec->rows, p->entry->cols, &p->shape);
    rc = group_init(&g, p->tensor.row_bytes, (uint32_t)p->tensor.cols, e);
    if (rc == 0)
        memset(out, 0, p->shape.groups * p->shape.group_bytes);
    if (rc == 0 && p->from.transposed) {
        rc = fill_transposed(p, &g, out, e);
    } else {
        for (uint32_t row = 0; rc == 0 && row < p->spec->rows; row += GROUP_ROWS) {
            uint32_t left = p->spec->rows - row;
            rc = fill_group(p, &g, row, left < GROUP_ROWS ? left : GROUP_ROWS,
                            out + row / GROUP_ROWS * p->shape.group_bytes, e);
        }
    }
    group_fini(&g);
    return rc;
}

static int fill_mat(const struct plan *plan, const struct slot_spec *spec, uint32_t entry,
                    uint8_t *out, struct err *e)
{
    struct part p = {.plan = plan, .spec = spec, .entry = &plan->entries[entry]};
    size_t bytes = mat_bytes(p.entry->form, spec->rows, spec->cols);
    int rc = 0;
    for (uint32_t n = 0; rc == 0 && n < spec->parts; n++)
        rc = fill_part(&p, spec->part0 + n, out + n * bytes, entry, e);
    return rc;
}

static int fill_vec(const struct plan *plan, const struct slot_spec *spec, uint32_t entry,
                    uint8_t *out, struct err *e)
{
    struct part p = {.plan = plan, .spec = spec};
    struct group g = {0};
    int rc = plan_part(plan, entry, spec, 0, &p.from, &p.tensor, e);
    if (rc < 0)
        return rc;
    CLEANUP(free_floats) float *all = malloc(p.tensor.cols * sizeof *all);
    rc = group_init(&g, p.tensor.row_bytes, (uint32_t)p.tensor.cols, e);
    if (rc == 0 && !all)
        rc = err_set(e, ENOMEM, "no memory for tensor %s", p.from.name);
    if (rc == 0)
        rc = float_row(&p, &g, p.from.row0, all, e);
    for (uint32_t k = 0; rc == 0 && k < spec->cols; k++) {
        float v = all[spec->col0 + k] + (p.from.plus_one ? 1.0f : 0.0f);
        memcpy(out + k * sizeof v, &v, sizeof v);
    }
    group_fini(&g);
    return rc;
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
        int rc = en->form ? fill_mat(p, &spec, i, image + en->offset, e)
                          : fill_vec(p, &spec, i, image + en->offset, e);
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
