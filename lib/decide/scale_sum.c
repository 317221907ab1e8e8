/* Samples to sums: which samples count, the trends, the fitted step time. */
#include "lib/decide/guard.h"
#include "lib/decide/scale_int.h"

#include <math.h>
#include <stdlib.h>

#define FIT_FADE    0.98 /* a sample's weight falls to half in about 34 */
#define FIT_LEAST   12.0 /* weight below which nothing is concluded */
#define TREND_TAU_S 20.0

const char *scale_drop_name(enum scale_drop d)
{
    static const char *const names[] = {"no_id", "unknown_pod", "incarnation", "role", "stale"};
    return d < SCALE_DROPS ? names[d] : "";
}

/* A live worker: the first pod of a group, ready. Counting by pods would take a group of two for
 * two workers. */
static bool is_live(const struct scale_pod *p)
{
    if (GUARD(scale_rank0) && p->rank != 0)
        return false;
    return p->ready && p->uid && *p->uid;
}

static bool right_process(const struct scale_sample *s, const struct scale_pod *p)
{
    return !p->incarnation || !s->incarnation || p->incarnation == s->incarnation;
}

/* Pods by uid: open addressing, twice as many slots as pods. */
struct found {
    const struct scale_sample *best; /* the freshest usable one */
    enum scale_drop why;             /* why another was not; SCALE_DROPS: none was refused */
};
struct by_uid {
    const struct scale_pod *pods;
    size_t n, mask;
    uint32_t *slot; /* index + 1; 0: empty */
    struct found *found;
};

static size_t slot_of(const struct by_uid *t, const char *uid)
{
    uint64_t h = 14695981039346656037ull; /* FNV-1a */
    for (const char *c = uid; *c; c++)
        h = (h ^ (unsigned char)*c) * 1099511628211ull;
    size_t at = (size_t)(h ^ h >> 32) & t->mask;
    while (t->slot[at] && strcmp(t->pods[t->slot[at] - 1].uid, uid) != 0)
        at = (at + 1) & t->mask;
    return at;
}

static struct by_uid index_pods(const struct scale_input *in)
{
    struct by_uid t = {.pods = in->pods, .n = in->n_pods, .mask = 1};
    while (t.mask < 2 * in->n_pods)
        t.mask *= 2;
    t.slot = calloc(t.mask, sizeof *t.slot);
    t.found = calloc(in->n_pods + 1, sizeof *t.found);
    ASSERT(t.slot && t.found);
    t.mask--;
    for (size_t i = 0; i < in->n_pods; i++) {
        t.found[i].why = SCALE_DROPS;
        if (in->pods[i].uid)
            t.slot[slot_of(&t, in->pods[i].uid)] = (uint32_t)i + 1;
    }
    return t;
}

static void take(const struct scale_input *in, struct by_uid *t, size_t pod,
                 const struct scale_sample *s)
{
    struct found *f = &t->found[pod];
    if (GUARD(scale_incarnation) && !right_process(s, &t->pods[pod]))
        f->why = SCALE_DROP_INCARNATION;
    else if (GUARD(scale_actual_role) && s->role != in->role)
        f->why = SCALE_DROP_ROLE;
    else if (GUARD(scale_stale) && s->age_ns > (in->fresh_ns ? in->fresh_ns : SCALE_FRESH_NS))
        f->why = f->why == SCALE_DROPS ? SCALE_DROP_STALE : f->why;
    else if (!f->best || s->age_ns < f->best->age_ns)
        f->best = s;
}

/* Gives each pod its samples. What belongs to none is told, so that a worker that forgets its name
 * is seen; the caller sends each role its own samples and those of nobody. */
static void deal(const struct scale_input *in, struct by_uid *t, struct scale_sums *s)
{
    for (size_t i = 0; i < in->n_samples; i++) {
        const char *uid = in->samples[i].pod_uid;
        uint32_t pod = *uid ? t->slot[slot_of(t, uid)] : 0;
        if (pod)
            take(in, t, pod - 1, &in->samples[i]);
        else
            s->dropped[*uid ? SCALE_DROP_UNKNOWN_POD : SCALE_DROP_NO_ID]++;
    }
}

static void fit_add(struct scale_memory *m, double b, double k, double s)
{
    const double x[9] = {1, b, k, b * b, b * k, k * k, s, b * s, k * s};
    for (int i = 0; i < 9; i++)
        m->fit[i] = m->fit[i] * FIT_FADE + x[i];
}

static void add(struct scale_sums *s, struct scale_memory *m, const struct scale_sample *x,
                uint32_t *rated, uint32_t *sized)
{
    s->running += x->running;
    s->waiting += x->waiting;
    s->waiting_tokens += x->waiting_tokens;
    s->resident_tokens += x->resident_tokens;
    s->used_blocks += x->kv_blocks_used;
    if (x->kv_blocks) {
        s->blocks += x->kv_blocks;
        ++*sized;
    }
    if (GUARD(scale_warmup) && x->warmup)
        return;
    if (x->prefill_tokens_per_s > 0) {
        s->rate += x->prefill_tokens_per_s;
        ++*rated;
    }
    if (x->decode_step_s <= 0)
        return;
    s->step_s = x->decode_step_s > s->step_s ? x->decode_step_s : s->step_s;
    if (x->running)
        fit_add(m, x->running, (double)x->resident_tokens / 1000, x->decode_step_s);
}

static void count_pods(const struct scale_input *in, struct scale_sums *s)
{
    for (size_t i = 0; i < in->n_pods; i++) {
        const struct scale_pod *p = &in->pods[i];
        s->unschedulable |= p->unschedulable;
        s->unplaced += !p->placed;
        s->live += is_live(p);
    }
    s->pending = in->current > (int32_t)s->live ? (uint32_t)in->current - s->live : 0;
}

/* Going over the live pods, not over the samples: a sample of a dead or foreign pod can't count. */
void scale_sum(const struct scale_input *in, struct scale_memory *m, struct scale_sums *out)
{
    uint32_t rated = 0, sized = 0;
    *out = (struct scale_sums){0};
    count_pods(in, out);
    struct by_uid t = index_pods(in);
    deal(in, &t, out);
    for (size_t i = 0; i < in->n_pods; i++) {
        if (!is_live(&in->pods[i]))
            continue;
        const struct found *f = &t.found[i];
        if (!f->best) {
            if (f->why != SCALE_DROPS)
                out->dropped[f->why]++;
            continue;
        }
        out->heard_of++;
        if (!f->best->draining)
            add(out, m, f->best, &rated, &sized);
    }
    if (!GUARD(scale_live_only)) /* the failure: whatever was said counts */
        for (size_t i = 0; i < in->n_samples; i++)
            if (!t.slot[slot_of(&t, in->samples[i].pod_uid)])
                add(out, m, &in->samples[i], &rated, &sized);
    free(t.slot);
    free(t.found);
    out->silent = out->live - out->heard_of;
    out->rate = rated ? out->rate / rated : 0;
    out->blocks = sized ? out->blocks / sized : 0;
}

/* Double exponential smoothing (Holt), for uneven steps of time. */
static void follow(double *level, double *slope, double value, double dt)
{
    double a = 1 - exp(-dt / TREND_TAU_S), before = *level, ahead = before + *slope * dt;
    *level = ahead + a * (value - ahead);
    *slope += a * ((*level - before) / dt - *slope);
}

void scale_trend(const struct scale_input *in, const struct scale_sums *s, struct scale_memory *m,
                 uint64_t now_ns)
{
    double kv = (double)s->used_blocks;
    double dt = (double)(now_ns - m->trend_at_ns) / 1e9;
    if (!m->trend_at_ns || now_ns <= m->trend_at_ns || dt > 10 * TREND_TAU_S) {
        m->arrival = in->arrival_tokens_per_s;
        m->kv = kv;
        m->arrival_slope = m->kv_slope = 0;
    } else {
        follow(&m->arrival, &m->arrival_slope, in->arrival_tokens_per_s, dt);
        follow(&m->kv, &m->kv_slope, kv, dt);
    }
    m->trend_at_ns = now_ns;
}

/* Least squares with a little weight on "no influence", so that a batch and KV that always go
 * together don't tear the coefficients apart (Tikhonov). */
double scale_step_s(const struct scale_memory *m, double batch, double tokens)
{
    const double *f = m->fit, w = f[0];
    if (w < FIT_LEAST)
        return -1;
    double mb = f[1] / w, mk = f[2] / w, ms = f[6] / w;
    double bb = f[3] / w - mb * mb, bk = f[4] / w - mb * mk, kk = f[5] / w - mk * mk;
    double bs = f[7] / w - mb * ms, ks = f[8] / w - mk * ms;
    if (bb < 0.05 * mb * mb) /* all batches alike: nothing says how the step grows */
        return -1;
    bb += 0.01 * mb * mb + 1e-9;
    kk += 0.01 * mk * mk + 1e-9;
    double det = bb * kk - bk * bk;
    double b = (bs * kk - ks * bk) / det, k = (ks * bb - bs * bk) / det;
    if (b < 0 || k < 0) { /* time doesn't shrink with work: the other explains it alone */
        k = b < 0 && kk > 0 ? ks / kk : 0;
        b = b < 0 ? 0 : bs / bb;
        b = b > 0 ? b : 0;
        k = k > 0 ? k : 0;
    }
    double start = ms - b * mb - k * mk;
    return (start > 0 ? start : 0) + b * batch + k * tokens / 1000;
}
