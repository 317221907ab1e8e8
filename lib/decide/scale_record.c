/* One table says how each struct is written and read, so that the two can't drift apart. */
#include "lib/decide/scale_record.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#define PODS_MAX 65536

enum kind { K_I32, K_U32, K_U64, K_F64, K_BOOL, K_ENUM, K_STR, K_HEX };
struct field {
    const char *key;
    enum kind kind;
    size_t at;
    int most; /* K_ENUM: how many values */
};
#define F(T, k, m)                                                                                 \
    {                                                                                              \
#m, k, offsetof(struct T, m), 0                                                            \
    }
#define FE(T, m, most)                                                                             \
    {                                                                                              \
#m, K_ENUM, offsetof(struct T, m), most                                                    \
    }

static const struct field sample_fields[] = {
    F(scale_sample, K_STR, pod_uid),         F(scale_sample, K_HEX, incarnation),
    FE(scale_sample, role, REC_ROLES + 1),   F(scale_sample, K_BOOL, ready),
    F(scale_sample, K_BOOL, draining),       F(scale_sample, K_BOOL, warmup),
    F(scale_sample, K_U64, age_ns),          F(scale_sample, K_U32, running),
    F(scale_sample, K_U32, waiting),         F(scale_sample, K_U64, waiting_tokens),
    F(scale_sample, K_U64, resident_tokens), F(scale_sample, K_U32, kv_blocks),
    F(scale_sample, K_U32, kv_blocks_used),  F(scale_sample, K_F64, prefill_tokens_per_s),
    F(scale_sample, K_F64, decode_step_s),   {0}};
static const struct field pod_fields[] = {F(scale_pod, K_STR, uid),
                                          F(scale_pod, K_STR, revision),
                                          F(scale_pod, K_HEX, incarnation),
                                          F(scale_pod, K_U32, rank),
                                          F(scale_pod, K_BOOL, ready),
                                          F(scale_pod, K_BOOL, placed),
                                          F(scale_pod, K_BOOL, unschedulable),
                                          {0}};
static const struct field input_fields[] = {FE(scale_input, role, SCALE_ROLES),
                                            FE(scale_input, source, SCALE_FROM_QUERY + 1),
                                            F(scale_input, K_I32, current),
                                            F(scale_input, K_I32, min),
                                            F(scale_input, K_I32, max),
                                            F(scale_input, K_BOOL, heard),
                                            F(scale_input, K_U64, fresh_ns),
                                            F(scale_input, K_F64, arrival_tokens_per_s),
                                            F(scale_input, K_U32, held_requests),
                                            F(scale_input, K_U64, held_tokens),
                                            F(scale_input, K_F64, value),
                                            F(scale_input, K_F64, target),
                                            F(scale_input, K_F64, ttft_s),
                                            F(scale_input, K_F64, tpot_s),
                                            F(scale_input, K_U64, down_window_ns),
                                            F(scale_input, K_F64, lead_s),
                                            FE(scale_input, rung, SCALE_RUNGS),
                                            F(scale_input, K_I32, hot),
                                            F(scale_input, K_I32, group_pods),
                                            {0}};
static const struct field memory_fields[] = {F(scale_memory, K_I32, current),
                                             F(scale_memory, K_U64, above_since_ns),
                                             F(scale_memory, K_U64, below_since_ns),
                                             F(scale_memory, K_I32, trough),
                                             F(scale_memory, K_I32, peak),
                                             F(scale_memory, K_U64, trend_at_ns),
                                             F(scale_memory, K_F64, arrival),
                                             F(scale_memory, K_F64, arrival_slope),
                                             F(scale_memory, K_F64, kv),
                                             F(scale_memory, K_F64, kv_slope),
                                             F(scale_memory, K_F64, rate),
                                             F(scale_memory, K_F64, blocks),
                                             {0}};
static const struct field limit_fields[] = {F(scale_limits, K_F64, ratio_min),
                                            F(scale_limits, K_F64, ratio_max),
                                            F(scale_limits, K_I32, budget),
                                            {0}};

/* jansson has no NaN or infinity: what is not finite was not measured. */
static json_t *real(double v)
{
    return json_real(isfinite(v) ? v : 0);
}

static json_t *value(const struct field *f, const char *base)
{
    const void *p = base + f->at;
    switch (f->kind) {
    case K_I32: return json_integer(*(const int32_t *)p);
    case K_U32: return json_integer(*(const uint32_t *)p);
    case K_U64: return json_integer((json_int_t)(*(const uint64_t *)p & INT64_MAX));
    case K_F64: return real(*(const double *)p);
    case K_BOOL: return json_boolean(*(const bool *)p);
    case K_ENUM: return json_integer((json_int_t) * (const unsigned *)p);
    case K_STR: return json_string(*(const char *const *)p ? *(const char *const *)p : "");
    case K_HEX: return json_sprintf("%016llx", (unsigned long long)*(const uint64_t *)p);
    }
    return NULL;
}
_Static_assert(sizeof(enum rec_role) == sizeof(unsigned), "enums are written as unsigned");

static json_t *write_fields(const struct field *f, const void *base)
{
    json_t *o = json_object();
    for (; f->key; f++)
        json_object_set_new(o, f->key, value(f, base));
    return o;
}

static uint64_t hex(const char *s)
{
    return strtoull(s, NULL, 16);
}

static void read_field(const struct field *f, const json_t *o, char *base)
{
    void *p = base + f->at;
    const json_t *v = json_object_get(o, f->key);
    json_int_t n = json_integer_value(v);
    switch (f->kind) {
    case K_I32: *(int32_t *)p = n < INT32_MIN || n > INT32_MAX ? 0 : (int32_t)n; break;
    case K_U32: *(uint32_t *)p = n < 0 || n > UINT32_MAX ? 0 : (uint32_t)n; break;
    case K_U64: *(uint64_t *)p = n < 0 ? 0 : (uint64_t)n; break;
    case K_F64: *(double *)p = json_number_value(v); break;
    case K_BOOL: *(bool *)p = json_is_true(v); break;
    case K_ENUM: *(unsigned *)p = n < 0 || n >= f->most ? 0 : (unsigned)n; break;
    case K_STR: *(const char **)p = json_is_string(v) ? json_string_value(v) : ""; break;
    case K_HEX: *(uint64_t *)p = json_is_string(v) ? hex(json_string_value(v)) : 0; break;
    }
}

static void read_fields(const struct field *f, const json_t *o, void *base)
{
    for (; f->key; f++)
        read_field(f, o, base);
}

static json_t *write_list(const struct field *f, const void *items, size_t n, size_t size)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, write_fields(f, (const char *)items + i * size));
    return list;
}

/* On the heap; strings are borrowed from the JSON. */
static void *read_list(const struct field *f, const json_t *list, size_t size, size_t *n)
{
    *n = json_array_size(list) < PODS_MAX ? json_array_size(list) : PODS_MAX;
    char *items = calloc(*n + 1, size);
    ASSERT(items);
    for (size_t i = 0; i < *n; i++)
        read_fields(f, json_array_get(list, i), items + i * size);
    return items;
}

static json_t *write_memory(const struct scale_memory *m)
{
    json_t *o = write_fields(memory_fields, m), *fit = json_array();
    for (size_t i = 0; i < sizeof m->fit / sizeof *m->fit; i++)
        json_array_append_new(fit, real(m->fit[i]));
    json_object_set_new(o, "fit", fit);
    return o;
}

static void read_memory(const json_t *o, struct scale_memory *m)
{
    read_fields(memory_fields, o, m);
    for (size_t i = 0; i < sizeof m->fit / sizeof *m->fit; i++)
        m->fit[i] = json_number_value(json_array_get(json_object_get(o, "fit"), i));
}

static json_t *write_decision(const struct scale_decision *d)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:o, s:s, s:b, s:s, s:s}", "from", d->from, "to", d->to,
                     "need_up", d->need_up, "need_down", d->need_down, "load", real(d->load),
                     "code", scale_code_name(d->code), "capacity_limited", d->capacity_limited,
                     "reason", d->reason, "inputs", d->inputs);
}

static json_t *write_role(const struct scale_role *r)
{
    json_t *in = write_fields(input_fields, &r->in);
    json_object_set_new(in, "pods",
                        write_list(pod_fields, r->in.pods, r->in.n_pods, sizeof *r->in.pods));
    json_object_set_new(
        in, "samples",
        write_list(sample_fields, r->in.samples, r->in.n_samples, sizeof *r->in.samples));
    return json_pack("{s:o, s:o, s:o}", "input", in, "memory", write_memory(&r->before), "decision",
                     write_decision(&r->out));
}

static json_t *write_space(const struct scale_space *s)
{
    json_t *classes = json_array();
    for (size_t i = 0; i < s->n; i++)
        json_array_append_new(classes,
                              json_pack("[I, I, I, I]", (json_int_t)s->c[i].nodes,
                                        (json_int_t)s->c[i].fits[0], (json_int_t)s->c[i].fits[1],
                                        (json_int_t)s->c[i].fits[2]));
    return json_pack("{s:b, s:o}", "known", s->known, "nodes_and_fits", classes);
}

static uint32_t count(const json_t *row, size_t i)
{
    json_int_t n = json_integer_value(json_array_get(row, i));
    return n < 0 || n > 1000000 ? 0 : (uint32_t)n;
}

static void read_space(const json_t *o, struct scale_space *s)
{
    const json_t *classes = json_object_get(o, "nodes_and_fits");
    s->known = json_is_true(json_object_get(o, "known"));
    for (size_t i = 0; i < json_array_size(classes) && i < SCALE_CLASSES_MAX; i++) {
        const json_t *row = json_array_get(classes, i);
        s->c[s->n++] =
            (struct scale_class){{count(row, 1), count(row, 2), count(row, 3)}, count(row, 0)};
    }
}

json_t *scale_record(const struct scale_plan *p, const struct scale_about *about)
{
    json_t *roles = json_array();
    for (int i = 0; i < SCALE_ROLES; i++)
        if (p->role[i].on)
            json_array_append_new(roles, write_role(&p->role[i]));
    json_t *limits = write_fields(limit_fields, &p->limits);
    json_object_set_new(limits, "min", json_pack("[i, i]", p->limits.min[0], p->limits.min[1]));
    json_object_set_new(limits, "max", json_pack("[i, i]", p->limits.max[0], p->limits.max[1]));
    return json_pack("{s:i, s:s, s:s, s:s, s:s, s:I, s:b, s:o, s:o, s:o}", "version",
                     SCALE_RECORD_VERSION, "at", about->at, "namespace", about->namespace, "infd",
                     about->infd, "instance", about->instance, "now_ns", (json_int_t)p->now_ns,
                     "flips", p->flips, "limits", limits, "space", write_space(&p->space), "roles",
                     roles);
}

int scale_record_write(const json_t *record, struct buf *out)
{
    return json_write(record, true, out);
}

static void read_limits(const json_t *o, struct scale_limits *l)
{
    read_fields(limit_fields, o, l);
    for (size_t i = 0; i < 2; i++) {
        l->min[i] = (int32_t)json_integer_value(json_array_get(json_object_get(o, "min"), i));
        l->max[i] = (int32_t)json_integer_value(json_array_get(json_object_get(o, "max"), i));
    }
}

static int read_role(const json_t *o, struct scale_plan *p, struct err *e)
{
    const json_t *in = json_object_get(o, "input");
    struct scale_input tmp = {0};
    read_fields(input_fields, in, &tmp);
    struct scale_role *r = &p->role[tmp.role];
    if (!json_is_object(in) || r->on)
        return err_set(e, EINVAL, "a role without an input, or twice");
    r->in = tmp;
    r->in.pods =
        read_list(pod_fields, json_object_get(in, "pods"), sizeof *r->in.pods, &r->in.n_pods);
    r->in.samples = read_list(sample_fields, json_object_get(in, "samples"), sizeof *r->in.samples,
                              &r->in.n_samples);
    read_memory(json_object_get(o, "memory"), &r->memory);
    r->on = true;
    return 0;
}

static int read_plan(const json_t *record, struct scale_plan *p, struct err *e)
{
    size_t i;
    const json_t *roles = json_object_get(record, "roles"), *o;
    json_int_t now = json_integer_value(json_object_get(record, "now_ns"));
    if (json_integer_value(json_object_get(record, "version")) != SCALE_RECORD_VERSION)
        return err_set(e, EINVAL, "no scaling record of version %d", SCALE_RECORD_VERSION);
    p->now_ns = now < 0 ? 0 : (uint64_t)now;
    p->flips = json_is_true(json_object_get(record, "flips"));
    read_limits(json_object_get(record, "limits"), &p->limits);
    read_space(json_object_get(record, "space"), &p->space);
    json_array_foreach (roles, i, o)
        if (read_role(o, p, e))
            return -EINVAL;
    return 0;
}

json_t *scale_replay(const json_t *record, struct err *e)
{
    struct scale_plan *p = calloc(1, sizeof *p);
    json_t *again = NULL;
    ASSERT(p);
    if (!read_plan(record, p, e)) {
        struct scale_about about = {
            json_str_at(record, "at", ""), json_str_at(record, "namespace", ""),
            json_str_at(record, "infd", ""), json_str_at(record, "instance", "")};
        scale_plan(p);
        again = scale_record(p, &about);
    }
    for (int i = 0; i < SCALE_ROLES; i++) {
        free((void *)(uintptr_t)p->role[i].in.pods);
        free((void *)(uintptr_t)p->role[i].in.samples);
    }
    free(p);
    return again;
}
