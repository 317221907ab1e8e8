#include "lib/decide/scale.h"

#include <math.h>
#include <stdio.h>

#define PREFILL_UP   0.8
#define PREFILL_DOWN 0.6
#define KV_UP        0.7
#define KV_DOWN      0.5

/* What the samples say together. */
struct sums {
    uint32_t live, heard_of, running, waiting;
    uint64_t waiting_tokens, used_blocks;
    double rate, blocks, step_s; /* per worker: mean of those measured; the slowest step */
};

static const struct scale_sample *freshest(const struct scale_input *in, const char *uid)
{
    const struct scale_sample *best = NULL;
    for (size_t i = 0; i < in->n_samples; i++) {
        const struct scale_sample *s = &in->samples[i];
        if (strcmp(s->pod_uid, uid) == 0 && (!best || s->age_ns < best->age_ns))
            best = s;
    }
    return best;
}

/* Going over the live pods, not over the samples: a sample of a dead or foreign pod can't count. */
static struct sums sum(const struct scale_input *in)
{
    struct sums s = {.live = (uint32_t)in->n_live};
    uint32_t rated = 0, sized = 0;
    for (size_t i = 0; i < in->n_live; i++) {
        const struct scale_sample *x = freshest(in, in->live[i]);
        if (!x || x->age_ns > SCALE_FRESH_NS || x->role != in->role)
            continue;
        s.heard_of++;
        if (x->draining)
            continue;
        s.running += x->running;
        s.waiting += x->waiting;
        s.waiting_tokens += x->waiting_tokens;
        s.used_blocks += x->kv_blocks_used;
        if (x->kv_blocks) {
            s.blocks += x->kv_blocks;
            sized++;
        }
        if (x->warmup)
            continue;
        if (x->prefill_tokens_per_s > 0) {
            s.rate += x->prefill_tokens_per_s;
            rated++;
        }
        if (x->decode_step_s > s.step_s)
            s.step_s = x->decode_step_s;
    }
    s.rate = rated ? s.rate / rated : 0;
    s.blocks = sized ? s.blocks / sized : 0;
    return s;
}

static int32_t up_to(double v)
{
    return v <= 0 ? 0 : v > 100000 ? 100000 : (int32_t)ceil(v - 1e-9);
}

/* -1: nothing is known (no rate was measured while tokens wait). */
static int32_t prefill_need(const struct scale_input *in, const struct sums *s, double use)
{
    double slack = (in->ttft_s > 0 ? in->ttft_s : SCALE_TTFT_S) / 2;
    double queued = (double)(s->waiting_tokens + in->held_tokens);
    double load = in->arrival_tokens_per_s + queued / slack;
    if (load <= 0)
        return 0;
    return s->rate > 0 ? up_to(load / (use * s->rate)) : -1;
}

static int32_t decode_need(const struct scale_input *in, const struct sums *s, double use)
{
    /* Those who wait count as KV only where KV is short: else they wait for a prefill worker's
     * turn. */
    double each = s->running ? (double)s->used_blocks / s->running : 1;
    bool is_short = (double)s->used_blocks >= KV_UP * s->blocks * s->heard_of;
    double blocks =
        (double)s->used_blocks + (is_short ? each * (s->waiting + in->held_requests) : 0);
    if (blocks <= 0)
        return 0;
    if (s->blocks <= 0)
        return -1;
    int32_t need = up_to(blocks / (use * s->blocks));
    double slow = in->tpot_s > 0 && s->running ? s->step_s / in->tpot_s : 0;
    if (slow > 1) {
        int32_t n = up_to((slow < 2 ? slow : 2) * (s->heard_of ? s->heard_of : 1));
        need = need > n ? need : n;
    }
    return need;
}

static int32_t need(const struct scale_input *in, const struct sums *s, bool up)
{
    int32_t p = prefill_need(in, s, up ? PREFILL_UP : PREFILL_DOWN);
    int32_t d = decode_need(in, s, up ? KV_UP : KV_DOWN);
    switch (in->role) {
    case REC_PREFILL: return p;
    case REC_DECODE: return d;
    default: return p < 0 || d < 0 ? -1 : p > d ? p : d;
    }
}

static int32_t clamp(const struct scale_input *in, int32_t n)
{
    return n < in->min ? in->min : n > in->max ? in->max : n;
}

static void describe(const struct scale_input *in, const struct sums *s, struct scale_decision *out)
{
    snprintf(out->inputs, sizeof out->inputs,
             "{\"current\":%d,\"min\":%d,\"max\":%d,\"live\":%u,\"heard_of\":%u,\"running\":%u,"
             "\"waiting\":%u,"
             "\"waiting_tokens\":%llu,\"held_requests\":%u,\"held_tokens\":%llu,\"arrival_tokens_"
             "per_s\":%.1f,"
             "\"prefill_tokens_per_s\":%.1f,\"kv_blocks_used\":%llu,\"kv_blocks_each\":%.0f,"
             "\"decode_step_s\":%.6f,"
             "\"ttft_s\":%.3f,\"tpot_s\":%.3f,\"need_up\":%d,\"need_down\":%d}",
             in->current, in->min, in->max, s->live, s->heard_of, s->running, s->waiting,
             (unsigned long long)s->waiting_tokens, in->held_requests,
             (unsigned long long)in->held_tokens, in->arrival_tokens_per_s, s->rate,
             (unsigned long long)s->used_blocks, s->blocks, s->step_s, in->ttft_s, in->tpot_s,
             out->need_up, out->need_down);
}

/* The two clocks: how long the need has been above, or below, what is asked for. */
static void remember(const struct scale_input *in, struct scale_memory *m, uint64_t now, int32_t up,
                     int32_t down)
{
    if (m->current != in->current)
        *m = (struct scale_memory){.current = in->current};
    if (up <= in->current)
        m->above_since_ns = 0;
    else if (!m->above_since_ns)
        m->above_since_ns = now, m->trough = up;
    else if (up < m->trough)
        m->trough = up;
    if (down >= in->current)
        m->below_since_ns = 0;
    else if (!m->below_since_ns)
        m->below_since_ns = now, m->peak = down;
    else if (down > m->peak)
        m->peak = down;
}

static void say(struct scale_decision *out, int32_t to, const char *why)
{
    out->to = to;
    snprintf(out->reason, sizeof out->reason, "%s", why);
}

static void choose(const struct scale_input *in, const struct sums *s, const struct scale_memory *m,
                   uint64_t now, struct scale_decision *out)
{
    const char *what = in->role == REC_PREFILL  ? "waiting and arriving prompt tokens"
                       : in->role == REC_DECODE ? "KV in use"
                                                : "waiting tokens and KV in use";
    if (m->above_since_ns && now - m->above_since_ns >= SCALE_UP_HOLD_NS) {
        if (in->unschedulable) {
            say(out, in->current, "more is needed, but a pod already finds no node");
            return;
        }
        out->to = m->trough;
        snprintf(out->reason, sizeof out->reason, "%s need %d groups%s; %d are asked for", what,
                 m->trough, out->need_up > in->max ? " or more than bounds.max" : "", in->current);
        return;
    }
    if (m->below_since_ns && now - m->below_since_ns >= in->down_window_ns) {
        if (s->heard_of < s->live) {
            say(out, in->current, "less would do, but not every live worker reports");
            return;
        }
        out->to = m->peak;
        snprintf(out->reason, sizeof out->reason, "%s needed at most %d groups for %llu s", what,
                 m->peak, (unsigned long long)(in->down_window_ns / 1000000000));
        return;
    }
    say(out, in->current,
        m->above_since_ns   ? "more is needed, but not for long enough yet"
        : m->below_since_ns ? "less would do, but not for long enough yet"
                            : "as many as needed");
}

void scale_decide(const struct scale_input *in, struct scale_memory *m, uint64_t now_ns,
                  struct scale_decision *out)
{
    struct sums s = sum(in);
    *out = (struct scale_decision){.from = in->current, .to = in->current};
    bool wake = in->current == 0 && (in->held_requests || in->held_tokens);
    out->need_up = wake ? 1 : need(in, &s, true);
    out->need_down = wake ? 1 : need(in, &s, false);
    describe(in, &s, out);
    if (in->current < in->min || in->current > in->max) {
        say(out, clamp(in, in->current), "outside its bounds");
        return;
    }
    if (!in->heard) {
        *m = (struct scale_memory){.current = in->current};
        say(out, in->current, "no router reports load");
        return;
    }
    if (out->need_up < 0) {
        *m = (struct scale_memory){.current = in->current};
        say(out, in->current, "nothing was measured yet that would tell the need");
        return;
    }
    remember(in, m, now_ns, clamp(in, out->need_up), clamp(in, out->need_down));
    if (wake && in->max > 0)
        say(out, clamp(in, 1), "requests wait for a role at zero");
    else
        choose(in, &s, m, now_ns, out);
    out->to = clamp(in, out->to);
}

static int32_t within(const struct scale_limits *l, int i, int32_t n)
{
    return n < l->min[i] ? l->min[i] : n > l->max[i] ? l->max[i] : n;
}

static void move(struct scale_decision *d, int32_t to, const char *why)
{
    size_t n = strlen(d->reason);
    if (d->to == to)
        return;
    d->to = to;
    snprintf(d->reason + n, sizeof d->reason - n, "; %s", why);
}

void scale_limit(const struct scale_limits *l, struct scale_decision *p, struct scale_decision *d)
{
    if (l->ratio_min > 0 && p->to < l->ratio_min * d->to) {
        move(p, within(l, 0, up_to(l->ratio_min * d->to)), "raised to keep scaling.ratio.min");
        if (p->to < l->ratio_min * d->to)
            move(d, within(l, 1, (int32_t)floor(p->to / l->ratio_min)),
                 "lowered to keep scaling.ratio.min");
    }
    if (l->ratio_max > 0 && p->to > l->ratio_max * d->to) {
        move(d, within(l, 1, up_to(p->to / l->ratio_max)), "raised to keep scaling.ratio.max");
        if (p->to > l->ratio_max * d->to)
            move(p, within(l, 0, (int32_t)floor(l->ratio_max * d->to)),
                 "lowered to keep scaling.ratio.max");
    }
    while (l->budget > 0 && p->to + d->to > l->budget) {
        struct scale_decision *more = p->to - l->min[0] >= d->to - l->min[1] ? p : d;
        int i = more == p ? 0 : 1;
        if (more->to <= l->min[i])
            break;
        more->to--;
        if (more->to + (more == p ? d : p)->to <= l->budget) {
            size_t n = strlen(more->reason);
            snprintf(more->reason + n, sizeof more->reason - n, "; lowered to keep scaling.budget");
        }
    }
}
