#include "worker/model/plan.h"
#include "worker/model/blocks.h"

#include <errno.h>
#include <stdlib.h>

#define PAGE 4096u

static uint64_t page_up(uint64_t n)
{
    return (n + PAGE - 1) / PAGE * PAGE;
}

uint64_t image_head_bytes(uint32_t n_entries)
{
    return page_up(IMAGE_ENTRIES_AT + (uint64_t)n_entries * sizeof(struct image_entry));
}

/* Of every type that a slot's tensors may have; a transposed one is kept as floats, and FP8 that is
 * cut inside of a scale's columns. */
static bool form_of(const struct source_tensor *t, const struct slot_part *part,
                    const struct slot_spec *s, enum mat_form *form)
{
    bool floats = t->type == GGUF_F32 || t->type == GGUF_F16 || t->type == GGUF_BF16;
    if (t->type == SOURCE_F8) {
        *form = part->transposed || s->col0 % SOURCE_F8_BLOCK ? MAT_F32 : MAT_F8;
        return true;
    }
    if (part->transposed && !floats) {
        *form = MAT_F32;
        return block_form(t->type, &(enum mat_form){0});
    }
    return block_form(t->type, form);
}

static int find_part(const struct plan *p, uint32_t i, const struct slot_spec *s, uint32_t number,
                     struct slot_part *part, struct source_tensor *t, struct err *e)
{
    for (uint32_t way = 0; slots_part(&p->config, i, number, source_is_hf(p->source), way, part);
         way++)
        if (source_find(p->source, part->name, t))
            return 0;
    if (s->optional)
        return -ENOENT;
    (void)slots_part(&p->config, i, number, source_is_hf(p->source), 0, part);
    return err_set(e, EINVAL, "the model lacks the tensor %s", part->name);
}

int plan_part(const struct plan *p, uint32_t i, const struct slot_spec *s, uint32_t number,
              struct slot_part *part, struct source_tensor *t, struct err *e)
{
    int rc = find_part(p, i, s, number, part, t, e);
    if (rc < 0)
        return rc;
    uint64_t rows = part->transposed ? s->cols_all : s->rows_all,
             cols = part->transposed ? s->rows_all : s->cols_all;
    bool whole = part->row0 == 0 && s->parts_all == 1 && !part->transposed;
    bool shape = t->cols == cols &&
                 (whole ? t->rows == rows : part->row0 <= t->rows && rows <= t->rows - part->row0);
    if (!shape)
        return err_set(e, EINVAL, "tensor %s is %llu x %llu, the model needs %llu x %llu",
                       part->name, (unsigned long long)t->rows, (unsigned long long)t->cols,
                       (unsigned long long)rows, (unsigned long long)cols);
    return 0;
}

/* The entry of a slot: all its parts are there, of one type. -ENOENT: an optional one isn't. */
static int plan_entry(const struct plan *p, uint32_t i, const struct slot_spec *s,
                      struct image_entry *en, struct err *e)
{
    enum mat_form form = 0, first = 0;
    struct slot_part part;
    struct source_tensor t;
    /* GGUF stacks them in one tensor: the first and the last tell all. */
    uint32_t step = source_is_hf(p->source) || s->parts < 2 ? 1 : s->parts - 1;
    for (uint32_t n = 0; n < s->parts; n += step) {
        int rc = plan_part(p, i, s, s->part0 + n, &part, &t, e);
        if (rc < 0)
            return rc;
        bool known = s->vector ? t.type == GGUF_F32 || t.type == GGUF_F16 || t.type == GGUF_BF16
                               : form_of(&t, &part, s, &form);
        if (!known)
            return err_set(e, EINVAL, "tensor %s has type %s, which is not supported there",
                           part.name, source_type_name(&t));
        first = n ? first : form;
        if (form != first)
            return err_set(e, EINVAL, "tensor %s has another type than its fellows", part.name);
    }
    *en = (struct image_entry){.form = form, .rows = slot_rows(s), .cols = s->cols};
    en->bytes = page_up(s->vector ? (uint64_t)s->cols * sizeof(float)
                                  : mat_bytes(form, en->rows, en->cols));
    return 0;
}

static int plan_entries(struct plan *p, struct err *e)
{
    uint64_t at = p->head_bytes;
    for (uint32_t i = 0; i < p->n_entries; i++) {
        struct slot_spec s;
        shard_spec(&p->config, &p->part, i, &s);
        if (!s.wanted)
            continue;
        int rc = plan_entry(p, i, &s, &p->entries[i], e);
        if (rc == -ENOENT)
            continue;
        if (rc < 0)
            return rc;
        p->entries[i].offset = at;
        at += p->entries[i].bytes;
    }
    p->bytes = at;
    return 0;
}

static int plan_make(struct plan *p, struct err *e)
{
    p->config = *source_config(p->source);
    int rc = model_shard_check(&p->config, &p->shard, e);
    if (rc < 0)
        return rc;
    model_part_of(&p->config, &p->shard, &p->part);
    p->n_entries = slots_count(&p->config);
    p->head_bytes = image_head_bytes(p->n_entries);
    p->entries = xcalloc(p->n_entries, sizeof *p->entries);
    return plan_entries(p, e);
}

int plan_open(struct plan *p, const char *path, const struct model_shard *s, struct err *e)
{
    memset(p, 0, sizeof *p);
    if (s)
        p->shard = *s;
    int rc = source_open(path, &p->source, e);
    if (rc < 0)
        return rc;
    rc = plan_make(p, e);
    if (rc < 0) {
        plan_close(p);
        rc = e ? err_wrap(e, "%s", path) : rc;
    }
    return rc;
}

void plan_close(struct plan *p)
{
    free(p->entries);
    source_free(p->source);
    memset(p, 0, sizeof *p);
}
