#include "lib/cost/plan_int.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

const char *plan_seconds(double s, char out[32])
{
    double a = fabs(s);
    snprintf(out, 32,
             a >= 1      ? "%.3g s"
             : a >= 1e-3 ? "%.3g ms"
                         : "%.3g us",
             a >= 1      ? s
             : a >= 1e-3 ? s * 1e3
                         : s * 1e6);
    return out;
}

static void text_of(double v, const char *unit, char out[32])
{
    static const struct {
        double from, div;
        const char *suffix;
    } bytes[] = {
        {1e12, 1e12, "TB"}, {1e9, 1e9, "GB"}, {1e6, 1e6, "MB"}, {1e3, 1e3, "KB"}, {0, 1, "B"}};
    double a = fabs(v);
    size_t i = 0;
    if (strcmp(unit, "bytes") == 0) {
        while (a < bytes[i].from)
            i++;
        snprintf(out, 32, "%.3g %s", v / bytes[i].div, bytes[i].suffix);
    } else if (strcmp(unit, "s") == 0) {
        plan_seconds(v, out);
    } else {
        snprintf(out, 32, a >= 1e4 ? "%.0f%s%s" : "%.4g%s%s", v, *unit ? " " : "", unit);
    }
}

static struct plan_number *add(struct plan *p, const char *section, const char *id, double value,
                               const char *unit, const char *label)
{
    ASSERT(p->n_numbers < PLAN_MAX_NUMBERS);
    struct plan_number *n = &p->numbers[p->n_numbers++];
    n->section = section;
    n->value = value;
    n->unit = unit;
    snprintf(n->id, sizeof n->id, "%s", id);
    snprintf(n->label, sizeof n->label, "%s", label);
    text_of(value, unit, n->text);
    return n;
}

#define FORMULA(n, ...) snprintf((n)->formula, sizeof(n)->formula, __VA_ARGS__)
#define ID(buf, ...)    (snprintf(buf, sizeof(buf), __VA_ARGS__), buf)

const struct plan_number *plan_find(const struct plan *p, const char *id)
{
    for (size_t i = 0; i < p->n_numbers; i++)
        if (strcmp(p->numbers[i].id, id) == 0)
            return &p->numbers[i];
    return NULL;
}

double plan_room_bytes(const struct plan_input *in, uint32_t tensor, double weight_bytes)
{
    return in->device->memory_bytes * in->device->usable_fraction - weight_bytes / tensor;
}

double plan_all_reduce_bytes(const struct plan_input *in, uint32_t tensor, double batch)
{
    return 2.0 * (tensor - 1) / tensor * batch * in->model->d_model * 2 * 2 * in->model->layers;
}

double plan_prefill_linear_s(const struct plan_input *in, uint32_t tensor, double tokens)
{
    return 2 * in->model->active_params * tokens /
           (in->device->flops_bf16 * in->device->efficiency * tensor);
}

/* And attention: 4 × layers × heads × head size × half the context, a token. */
double plan_prefill_s(const struct plan_input *in, uint32_t tensor, double tokens)
{
    const struct model_profile *m = in->model;
    double attention = 2.0 * m->layers * m->heads * m->head_dim * tokens * tokens;
    return plan_prefill_linear_s(in, tensor, tokens) +
           attention / (in->device->flops_bf16 * in->device->efficiency * tensor);
}

double plan_step_s(const struct plan_input *in, uint32_t tensor, double batch,
                   double context_tokens)
{
    const struct model_profile *m = in->model;
    double touched = m->experts ? fmin(1, batch * m->experts_per_token / m->experts) : 1;
    double weights = model_weight_bytes(m) * fmax(m->active_params / m->params, touched) / tensor;
    double kv = batch * context_tokens * model_kv_bytes_per_token(m, in->kv_element_bytes) / tensor;
    double link =
        tensor > 1 ? plan_all_reduce_bytes(in, tensor, batch) / in->device->link_bytes_per_s : 0;
    return (weights + kv) / in->device->memory_bytes_per_s + link;
}

static void kv_numbers(const struct plan_input *in, struct plan *p)
{
    const struct model_profile *m = in->model;
    double kv = model_kv_bytes_per_token(m, in->kv_element_bytes);
    struct plan_number *n =
        add(p, "KV cache", "kv_bytes_per_token", kv, "bytes", "KV of one token");
    snprintf(n->text, sizeof n->text, "%.6g KiB", kv / 1024);
    if (m->mla_rank)
        FORMULA(n, "%u layers x (%u latent + %u rope) x %g B = %.0f B", m->layers, m->mla_rank,
                m->mla_rope_dim, in->kv_element_bytes, kv);
    else
        FORMULA(n, "2 x %u layers x %u KV heads x %u head size x %g B = %.0f B", m->layers,
                m->kv_heads, m->head_dim, in->kv_element_bytes, kv);
    n = add(p, "KV cache", "kv_bytes_prompt", kv * in->prompt_tokens, "bytes", "KV of the prompt");
    FORMULA(n, "%u tokens x %.0f B", in->prompt_tokens, kv);
}

static void weight_numbers(const struct plan_input *in, struct plan *p, uint32_t tp,
                           double bytes_per_param, const char *tag)
{
    const struct model_profile *m = in->model;
    const struct device_profile *d = in->device;
    char id[48], label[96];
    bool own = *tag == 0;
    double total = own ? model_weight_bytes(m) : m->params * bytes_per_param, each = total / tp;
    double room = plan_room_bytes(in, tp, total),
           kv = model_kv_bytes_per_token(m, in->kv_element_bytes);
    struct plan_number *n =
        add(p, "memory", ID(id, "weights_per_device_tp%u%s", tp, tag), each, "bytes",
            ID(label, "TP=%u%s%s: weights a device", tp, *tag ? " " : "", own ? "" : "FP8"));
    if (own && m->file_bytes > 0)
        FORMULA(n, "%.0f B in the file / %u", total, tp);
    else
        FORMULA(n, "%.6g parameters x %g B / %u", m->params, bytes_per_param, tp);
    n = add(p, "memory", ID(id, "kv_room_per_device_tp%u%s", tp, tag), room, "bytes",
            ID(label, "TP=%u%s: room for KV a device", tp, own ? "" : " FP8"));
    FORMULA(n, "%.4g GB x %g usable - %.4g GB weights%s", d->memory_bytes / 1e9, d->usable_fraction,
            each / 1e9, room <= 0 ? ": does not fit" : "");
    if (room <= 0)
        return;
    n = add(p, "memory", ID(id, "kv_tokens_tp%u%s", tp, tag), floor(room * tp / kv), "tokens",
            ID(label, "TP=%u%s: tokens of KV in the group", tp, own ? "" : " FP8"));
    FORMULA(n, "%.4g GB x %u devices / %.0f B", room / 1e9, tp, kv);
}

static void decode_numbers(const struct plan_input *in, struct plan *p, uint32_t tp)
{
    char id[48], label[96];
    double each = model_weight_bytes(in->model) * in->model->active_params / in->model->params / tp;
    struct plan_number *n = add(p, "decode", ID(id, "decode_bound_batch1_tp%u", tp),
                                each / in->device->memory_bytes_per_s, "s",
                                ID(label, "TP=%u: lower bound of a step, batch 1", tp));
    FORMULA(n, "%.4g GB of weights read / %.4g GB/s of memory bandwidth", each / 1e9,
            in->device->memory_bytes_per_s / 1e9);
}

static void all_reduce_numbers(const struct plan_input *in, struct plan *p, uint32_t tp)
{
    const struct device_profile *d = in->device;
    double bytes = plan_all_reduce_bytes(in, tp, in->batch);
    struct plan_number *n = add(p, "all-reduce", "all_reduces_per_step", 2.0 * in->model->layers,
                                "", "all-reduces a step");
    FORMULA(n, "2 x %u layers (after attention, after the feed-forward part)", in->model->layers);
    n = add(p, "all-reduce", "all_reduce_bytes", bytes, "bytes", "bytes a device and step");
    FORMULA(n, "2 x (%u - 1) / %u x %u rows x %u wide x 2 B x %u all-reduces", tp, tp, in->batch,
            in->model->d_model, 2 * in->model->layers);
    n = add(p, "all-reduce", "all_reduce_s_link", bytes / d->link_bytes_per_s, "s",
            "on the server's own links");
    FORMULA(n, "%.4g MB / %.4g GB/s", bytes / 1e6, d->link_bytes_per_s / 1e9);
    n = add(p, "all-reduce", "all_reduce_s_nic", bytes / d->nic_bytes_per_s, "s",
            "across servers, one NIC a device");
    FORMULA(n, "%.4g MB / %.4g GB/s", bytes / 1e6, d->nic_bytes_per_s / 1e9);
}

static void hand_over_numbers(const struct plan_input *in, struct plan *p, uint32_t tp)
{
    const struct device_profile *d = in->device;
    double kv = model_kv_bytes_per_token(in->model, in->kv_element_bytes),
           bytes = kv * in->prompt_tokens;
    double prefill = plan_prefill_linear_s(in, tp, in->prompt_tokens),
           one = bytes / d->nic_bytes_per_s, all = one / d->nics_per_server;
    struct plan_number *n = add(p, "hand-over", "prefill_s", prefill, "s", "prefill of the prompt");
    FORMULA(n, "2 x %.4g parameters x %u tokens / (%u x %.4g TFLOP/s x %g of the peak)",
            in->model->active_params, in->prompt_tokens, tp, d->flops_bf16 / 1e12, d->efficiency);
    n = add(p, "hand-over", "prefill_with_attention_s", plan_prefill_s(in, tp, in->prompt_tokens),
            "s", "the same with attention");
    FORMULA(n, "and 2 x %u layers x %u heads x %u x %u^2 FLOP", in->model->layers, in->model->heads,
            in->model->head_dim, in->prompt_tokens);
    n = add(p, "hand-over", "transfer_s_one_nic", one, "s", "its KV over one NIC");
    FORMULA(n, "%.4g GB / %.4g GB/s", bytes / 1e9, d->nic_bytes_per_s / 1e9);
    n = add(p, "hand-over", "transfer_s_all_nics", all, "s", "its KV over all NICs of a server");
    FORMULA(n, "%.4g ms / %u NICs", one * 1e3, d->nics_per_server);
    n = add(p, "hand-over", "transfer_s_one_nic_fp8", one / in->kv_element_bytes, "s",
            "its KV over one NIC, FP8 KV");
    FORMULA(n, "%.4g ms / %g (1 B an element instead of %g)", one * 1e3, in->kv_element_bytes,
            in->kv_element_bytes);
    n = add(p, "hand-over", "ttft_overhead_unpipelined", one / prefill, "",
            "TTFT added on one NIC without pipelining");
    snprintf(n->text, sizeof n->text, "+%.0f %%", 100 * one / prefill);
    FORMULA(n,
            "%.4g ms / %.4g ms; pushing each layer while the next computes hides all but the last "
            "layer",
            one * 1e3, prefill * 1e3);
    n = add(p, "hand-over", "load_vs_recompute", prefill / one, "",
            "recompute against load over one NIC");
    snprintf(n->text, sizeof n->text, "%.2gx", prefill / one);
    FORMULA(n, "%.4g ms / %.4g ms", prefill * 1e3, one * 1e3);
    n = add(p, "hand-over", "load_500_tokens_s", 500 * kv / d->nic_bytes_per_s, "s",
            "load 500 cached tokens");
    FORMULA(n, "500 x %.0f B / %.4g GB/s", kv, d->nic_bytes_per_s / 1e9);
    n = add(p, "hand-over", "recompute_500_tokens_s", plan_prefill_linear_s(in, tp, 500), "s",
            "recompute 500 tokens");
    FORMULA(n, "2 x %.4g x 500 FLOP / (%u x %.4g TFLOP/s x %g)", in->model->active_params, tp,
            d->flops_bf16 / 1e12, d->efficiency);
}

static void expert_unit(const struct plan_input *in, struct plan *p, const char *phase, uint32_t ep)
{
    const struct model_profile *m = in->model;
    char id[48], label[96];
    uint32_t physical = m->experts + m->redundant_experts;
    struct plan_number *n =
        add(p, "experts", ID(id, "experts_per_device_ep%u", ep), (double)physical / ep, "",
            ID(label, "%s EP%u: routed experts a device", phase, ep));
    FORMULA(n, "(%u experts + %u redundant) / %u; and %u shared", m->experts, m->redundant_experts,
            ep, m->shared_experts);
    n = add(p, "experts", ID(id, "servers_ep%u", ep),
            ceil((double)ep / in->device->devices_per_server), "",
            ID(label, "%s EP%u: servers a unit", phase, ep));
    FORMULA(n, "%u / %u devices a server", ep, in->device->devices_per_server);
}

static void expert_numbers(const struct plan_input *in, struct plan *p)
{
    const struct model_profile *m = in->model;
    if (m->experts == 0)
        return;
    double out = (double)m->experts_per_token * m->d_model, back = 2 * out;
    struct plan_number *n =
        add(p, "experts", "dispatch_bytes", out, "bytes", "dispatch of a token and layer, FP8");
    FORMULA(n, "top-%u x %u wide x 1 B", m->experts_per_token, m->d_model);
    n = add(p, "experts", "combine_bytes", back, "bytes", "combine of a token and layer, BF16");
    FORMULA(n, "top-%u x %u wide x 2 B", m->experts_per_token, m->d_model);
    /* The units that DeepSeek reports for its own service (open-infra-index, day 6): 4 and 18
     * servers. */
    uint32_t physical = m->experts + m->redundant_experts;
    if (physical % 32 == 0)
        expert_unit(in, p, "prefill", 32);
    if (physical % 144 == 0)
        expert_unit(in, p, "decode", 144);
}

static int check(const struct plan_input *in, struct err *e)
{
    const struct model_profile *m = in->model;
    const struct device_profile *d = in->device;
    if (!m->layers || !m->d_model || !m->heads || !m->kv_heads || !m->head_dim || !(m->params > 0))
        return err_set(
            e, EINVAL,
            "model %s: layers, d_model, heads, kv_heads, head_dim and params must be above 0",
            m->name);
    if (!(d->memory_bytes > 0) || !(d->memory_bytes_per_s > 0) || !(d->flops_bf16 > 0) ||
        !(d->link_bytes_per_s > 0) || !(d->nic_bytes_per_s > 0) || !d->devices_per_server ||
        !d->nics_per_server || !(d->efficiency > 0))
        return err_set(
            e, EINVAL,
            "device %s: memory, bandwidths, FLOP/s, efficiency and counts must be above 0",
            d->name);
    if (!in->prompt_tokens || !in->batch || !(in->kv_element_bytes > 0))
        return err_set(e, EINVAL, "prompt tokens, batch and KV element size must be above 0");
    return 0;
}

int plan_compute(const struct plan_input *in, struct plan *out, struct err *e)
{
    int rc = check(in, e);
    if (rc)
        return rc;
    *out = (struct plan){0};
    uint32_t widest = in->device->devices_per_server;
    kv_numbers(in, out);
    for (uint32_t tp = widest > 1 ? 2 : 1; tp <= widest; tp *= 2) {
        weight_numbers(in, out, tp, in->model->weight_bytes, "");
        if (tp == 2 && in->model->weight_bytes > 1 && in->model->file_bytes <= 0)
            weight_numbers(in, out, tp, 1, "_fp8");
    }
    for (uint32_t tp = widest > 1 ? 2 : 1; tp <= widest; tp *= 2)
        decode_numbers(in, out, tp);
    if (widest > 1)
        all_reduce_numbers(in, out, widest);
    hand_over_numbers(in, out, widest);
    expert_numbers(in, out);
    plan_advise(in, out);
    return 0;
}
