#include "lib/cost/predict.h"

#include <math.h>

void cost_model_init(struct cost_model *m, const struct cost_shape *s, double flops,
                     double bytes_per_s, double link_bytes_per_s)
{
    double kv_bytes = 2.0 * s->layers * s->kv_heads * s->head_dim * s->kv_element_bytes;
    *m = (struct cost_model){
        .prefill_start_s = s->weight_bytes / bytes_per_s,
        .prefill_token_s = 2.0 * s->params / flops,
        .prefill_pair_s = 4.0 * s->layers * s->heads * s->head_dim / flops,
        .step_start_s = s->weight_bytes / bytes_per_s,
        .step_row_s = 2.0 * s->params / flops,
        .step_kv_token_s = kv_bytes / bytes_per_s,
        .transfer_start_s = 500e-6,
        .transfer_bytes_per_s = link_bytes_per_s,
        .kv_bytes_per_token = kv_bytes,
    };
}

static double prefill(const struct cost_model *m, double n, double context)
{
    return m->prefill_start_s + n * m->prefill_token_s + n * (context + n / 2) * m->prefill_pair_s;
}

static double step(const struct cost_model *m, double batch, double kv_tokens)
{
    return m->step_start_s + batch * m->step_row_s + kv_tokens * m->step_kv_token_s;
}

double cost_factor(const struct cost_fix *f)
{
    return f->n ? f->factor : 1;
}

double cost_prefill_s(const struct cost_worker *w, uint64_t n_tokens, uint64_t context_tokens)
{
    if (!n_tokens)
        return 0;
    return cost_factor(&w->prefill) * prefill(&w->m, (double)n_tokens, (double)context_tokens);
}

double cost_step_s(const struct cost_worker *w, double batch, double kv_tokens)
{
    return cost_factor(&w->step) * step(&w->m, batch, kv_tokens);
}

double cost_transfer_s(const struct cost_worker *w, double bytes)
{
    if (bytes <= 0)
        return 0;
    return cost_factor(&w->transfer) * (w->m.transfer_start_s + bytes / w->m.transfer_bytes_per_s);
}

void cost_observe(struct cost_fix *f, double predicted_s, double measured_s)
{
    if (!(predicted_s > 0) || !(measured_s > 0) || !isfinite(predicted_s) || !isfinite(measured_s))
        return;
    const double max = log(COST_FIX_MAX);
    double r = fmax(-max, fmin(max, log(measured_s / predicted_s)));
    double keep = exp2(-1.0 / COST_MEMORY), weight = 1 - keep;
    /* The first observations count as a plain mean, so that the prior is left quickly. */
    if (f->n < COST_MEMORY)
        weight = fmax(weight, 1.0 / (f->n + 1));
    f->log_ratio += weight * (r - f->log_ratio);
    f->factor = exp(f->log_ratio);
    if (f->n < UINT32_MAX)
        f->n++;
}

void cost_fade(struct cost_fix *f, double peer_log_ratio, double seconds)
{
    if (f->n == 0)
        *f = (struct cost_fix){.log_ratio = peer_log_ratio, .n = 1};
    else if (seconds > 0)
        f->log_ratio += (1 - exp2(-seconds / COST_FADE_S)) * (peer_log_ratio - f->log_ratio);
    f->factor = exp(f->log_ratio);
}

void cost_report_prefill(struct cost_worker *w, double tokens_per_s)
{
    if (!(tokens_per_s > 0))
        return;
    const double n = 256; /* a usual chunk */
    cost_observe(&w->prefill, prefill(&w->m, n, 0), n / tokens_per_s);
}

void cost_report_step(struct cost_worker *w, double batch, double kv_tokens, double step_s)
{
    if (batch >= 1)
        cost_observe(&w->step, step(&w->m, batch, kv_tokens), step_s);
}
