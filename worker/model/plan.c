#include "worker/model/plan.h"
#include "worker/model/blocks.h"
#include "worker/model/config.h"
#include "worker/model/slots.h"

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

static int check_tensor(const struct gguf_tensor *t, const struct slot_spec *s,
                        struct image_entry *en, struct err *e)
{
    enum mat_form form = 0;
    bool shape =
        t->ne[0] == s->cols_all && t->ne[1] == s->rows_all && t->ne[2] == 1 && t->ne[3] == 1;
    if (!shape)
        return err_set(e, EINVAL, "tensor %s is %llu x %llu, the model needs %u x %u", s->name,
                       (unsigned long long)t->ne[1], (unsigned long long)t->ne[0], s->rows_all,
                       s->cols_all);
    if (s->vector ? t->type != GGUF_F32 : !block_form(t->type, &form))
        return err_set(e, EINVAL, "tensor %s has type %s (%u), which is not supported there",
                       s->name, gguf_type_name(t->type), t->type);
    *en = (struct image_entry){.form = form, .rows = s->rows, .cols = s->cols};
    en->bytes =
        page_up(s->vector ? (uint64_t)s->cols * sizeof(float) : mat_bytes(form, s->rows, s->cols));
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
        const struct gguf_tensor *t = gguf_tensor(p->file, s.name);
        if (!t && s.optional)
            continue;
        if (!t)
            return err_set(e, EINVAL, "the model file lacks the tensor %s", s.name);
        int rc = check_tensor(t, &s, &p->entries[i], e);
        if (rc < 0)
            return rc;
        p->tensors[i] = t;
        p->entries[i].offset = at;
        at += p->entries[i].bytes;
    }
    p->bytes = at;
    return 0;
}

static int plan_make(struct plan *p, struct err *e)
{
    int rc = config_from_gguf(p->file, &p->config, e);
    rc = rc ? rc : model_shard_check(&p->config, &p->shard, e);
    if (rc < 0)
        return rc;
    model_part_of(&p->config, &p->shard, &p->part);
    p->n_entries = slots_count(&p->config);
    p->head_bytes = image_head_bytes(p->n_entries);
    p->entries = xcalloc(p->n_entries, sizeof *p->entries);
    p->tensors = xcalloc(p->n_entries, sizeof *p->tensors);
    return plan_entries(p, e);
}

int plan_open(struct plan *p, const char *gguf_path, const struct model_shard *s, struct err *e)
{
    memset(p, 0, sizeof *p);
    if (s)
        p->shard = *s;
    int rc = gguf_open(gguf_path, &p->file, e);
    if (rc < 0)
        return rc;
    rc = plan_make(p, e);
    if (rc < 0) {
        rc = err_wrap(e, "%s", gguf_path);
        plan_close(p);
    }
    return rc;
}

void plan_close(struct plan *p)
{
    free(p->entries);
    free((void *)p->tensors);
    gguf_free(p->file);
    memset(p, 0, sizeof *p);
}
