#include "lib/cost/plan_int.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#define RHO_PREFILL 0.7 /* of a prefill group's time that may be busy before queues grow */
#define RHO_KV      0.8 /* of KV that may be in use */
#define TIME(s)     plan_seconds(s, (char[32]){0})

static void advise(struct plan *p, enum advice_level level, const char *id, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
static void advise(struct plan *p, enum advice_level level, const char *id, const char *fmt, ...)
{
    if (p->n_advice == PLAN_MAX_ADVICE)
        return;
    struct plan_advice *a = &p->advice[p->n_advice++];
    va_list ap;
    a->level = level;
    snprintf(a->id, sizeof a->id, "%s", id);
    va_start(ap, fmt);
    vsnprintf(a->text, sizeof a->text, fmt, ap);
    va_end(ap);
}

static double context(const struct plan_input *in)
{
    return in->prompt_tokens + in->output_tokens / 2.0;
}

/* Tokens of KV that a group holds, 0 when the weights alone don't fit. */
static double kv_tokens(const struct plan_input *in, uint32_t tp)
{
    double room = plan_room_bytes(in, tp, model_weight_bytes(in->model));
    return room <= 0 ? 0 : room * tp / model_kv_bytes_per_token(in->model, in->kv_element_bytes);
}

static bool meets(const struct plan_input *in, uint32_t tp)
{
    return kv_tokens(in, tp) >= fmin(in->batch, 8) * context(in) &&
           (in->ttft_s <= 0 || plan_prefill_s(in, tp, in->prompt_tokens) <= in->ttft_s) &&
           (in->tpot_s <= 0 || plan_step_s(in, tp, 1, context(in)) <= in->tpot_s);
}

/* The narrowest group that fits (with KV for a few requests) and meets the targets; else the widest
 * of a server. */
static uint32_t choose_tensor(const struct plan_input *in, struct plan *p)
{
    uint32_t widest = in->device->devices_per_server;
    for (uint32_t tp = 1; tp <= widest; tp *= 2)
        if (meets(in, tp)) {
            advise(p, ADVICE_NOTE, "tensor",
                   "TP=%u: the narrowest group with room for the KV of %.0f requests of %.0f "
                   "tokens%s. Narrow groups spend less on all-reduces.",
                   tp, fmin(in->batch, 8), context(in),
                   in->ttft_s > 0 || in->tpot_s > 0 ? " that meets the TTFT and TPOT targets" : "");
            return tp;
        }
    if (kv_tokens(in, widest) < context(in))
        advise(p, ADVICE_WARNING, "does-not-fit",
               "No group within a server of %u x %s holds the weights and the KV of one request: "
               "use a device with more memory, FP8 weights, or pipeline parallelism across servers "
               "(one hand-over a stage instead of two all-reduces a layer).",
               widest, in->device->name);
    else
        advise(p, ADVICE_WARNING, "targets-missed",
               "No group within a server has room for KV of several requests and meets the "
               "targets: TP=%u predicts TTFT %s and TPOT %s before any queue.",
               widest, TIME(plan_prefill_s(in, widest, in->prompt_tokens)),
               TIME(plan_step_s(in, widest, 1, context(in))));
    return widest;
}

static void warn_layout(const struct plan_input *in, struct plan *p, uint32_t tp)
{
    const struct model_profile *m = in->model;
    const struct device_profile *d = in->device;
    if (tp > m->kv_heads && !m->mla_rank)
        advise(p, ADVICE_WARNING, "tp-above-kv-heads",
               "TP=%u is above the model's %u KV heads: each KV head is kept %u times, so wider "
               "groups add no room for KV. Add replicas instead.",
               tp, m->kv_heads, (tp + m->kv_heads - 1) / m->kv_heads);
    if (m->heads % tp)
        advise(p, ADVICE_WARNING, "tp-splits-heads",
               "TP=%u does not divide the model's %u attention heads: ranks would get unequal "
               "work, and most engines refuse it.",
               tp, m->heads);
    if (m->mla_rank && tp > 1)
        advise(p, ADVICE_WARNING, "tp-with-mla",
               "Latent attention keeps one KV for all heads: every rank of TP=%u keeps all of it. "
               "Prefer data-parallel attention with expert parallelism.",
               tp);
    if (tp > d->devices_per_server) {
        double bytes = plan_all_reduce_bytes(in, tp, in->batch);
        advise(p, ADVICE_WARNING, "tp-across-servers",
               "TP=%u spans servers of %u devices: its all-reduces (%.3g MB a step) take about %s "
               "over NICs instead of %s on the server's links. Keep TP within a server; use "
               "pipeline parallelism across.",
               tp, d->devices_per_server, bytes / 1e6, TIME(bytes / d->nic_bytes_per_s),
               TIME(bytes / d->link_bytes_per_s));
    }
    if (kv_tokens(in, tp) <= 0)
        advise(p, ADVICE_WARNING, "weights-do-not-fit",
               "TP=%u: %.4g GB of weights a device do not fit into %.4g GB usable.", tp,
               model_weight_bytes(m) / tp / 1e9, d->memory_bytes * d->usable_fraction / 1e9);
    else if (kv_tokens(in, tp) < 2 * context(in))
        advise(p, ADVICE_WARNING, "little-kv",
               "TP=%u leaves KV for %.0f tokens: fewer than two requests of %.0f at a time. FP8 KV "
               "doubles it.",
               tp, kv_tokens(in, tp), context(in));
}

/* Prefill groups by busy time; decode groups by resident KV (Little's law) and by the step time. */
static void size_pools(const struct plan_input *in, struct plan_layout *l)
{
    double rate = in->requests_per_s, step = plan_step_s(in, l->tensor, in->batch, context(in));
    double resident = rate * in->output_tokens * step * context(in),
           room = kv_tokens(in, l->tensor);
    l->prefill_groups = (uint32_t)fmax(
        1, ceil(rate * plan_prefill_s(in, l->tensor, in->prompt_tokens) / RHO_PREFILL));
    l->decode_groups = (uint32_t)fmax(1, ceil(fmax(room > 0 ? resident / (RHO_KV * room) : 1,
                                                   rate * in->output_tokens * step / in->batch)));
}

/* One unified group serves the load when prefill and decode together leave it idle part of the
 * time. */
static double unified_busy(const struct plan_input *in, uint32_t tp)
{
    double step = plan_step_s(in, tp, in->batch, context(in));
    return in->requests_per_s *
           (plan_prefill_s(in, tp, in->prompt_tokens) + in->output_tokens * step / in->batch);
}

static void judge_disaggregation(const struct plan_input *in, struct plan *p)
{
    struct plan_layout *l = &p->layout;
    double busy = unified_busy(in, l->tensor),
           prefill = plan_prefill_s(in, l->tensor, in->prompt_tokens);
    double step = plan_step_s(in, l->tensor, in->batch, context(in));
    double kv = in->prompt_tokens * model_kv_bytes_per_token(in->model, in->kv_element_bytes);
    bool early = in->requests_per_s > 0 ? busy < RHO_PREFILL : prefill < 2 * step;
    bool asked = in->tensor > 0 && in->disaggregate;
    l->disaggregate = in->tensor > 0 ? in->disaggregate : !early;
    if (early && asked)
        advise(p, ADVICE_WARNING, "disaggregating-too-early",
               "Disaggregating too early: %s. A unified pool with chunked prefill serves this with "
               "half the groups; separate pools pay when prefills delay decodes.",
               in->requests_per_s > 0
                   ? "one unified group would be busy for less than 70 % of the time"
                   : "a prefill is shorter than two decode steps");
    else if (early)
        advise(p, ADVICE_NOTE, "unified",
               "Start unified: %s (a group is busy %.0f %% at the expected load, a prefill takes "
               "%s, a decode step %s). Separate the roles when prefills make decodes miss TPOT.",
               in->requests_per_s > 0 ? "one group carries the load"
                                      : "prefills are short beside decode steps",
               100 * busy, TIME(prefill), TIME(step));
    else
        advise(p, ADVICE_NOTE, "disaggregate",
               "%s: a prefill takes %s, so it %s hold up %.0f decode steps of %s each time; its KV "
               "(%.3g GB) moves in %s over all NICs, hidden behind the layers.",
               l->disaggregate ? "Separate prefill and decode"
                               : "Separate pools (--disaggregate) would pay here",
               TIME(prefill), l->disaggregate ? "would" : "will", prefill / step, TIME(step),
               kv / 1e9, TIME(kv / in->device->nic_bytes_per_s / in->device->nics_per_server));
}

void plan_advise(const struct plan_input *in, struct plan *p)
{
    struct plan_layout *l = &p->layout;
    l->tensor = in->tensor ? in->tensor : choose_tensor(in, p);
    warn_layout(in, p, l->tensor);
    judge_disaggregation(in, p);
    size_pools(in, l);
    l->unified_groups = (uint32_t)fmax(1, ceil(unified_busy(in, l->tensor) / RHO_PREFILL));
    l->ttft_s = plan_prefill_s(in, l->tensor, in->prompt_tokens);
    l->tpot_s = plan_step_s(in, l->tensor, in->batch, context(in));
    if (in->model->experts && in->model->experts >= 64)
        advise(p, ADVICE_NOTE, "expert-parallel",
               "%u experts, top-%u: spread them (EP) so that each expert sees enough rows; a token "
               "sends %.3g KB out and gets %.3g KB back a layer.",
               in->model->experts, in->model->experts_per_token,
               in->model->experts_per_token * in->model->d_model / 1e3,
               2.0 * in->model->experts_per_token * in->model->d_model / 1e3);
}
