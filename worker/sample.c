#include "worker/sample.h"

#include "lib/base/rng.h"
#include "worker/model/model.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define GREEDY_BELOW 1e-5f
#define BUCKETS      4096u /* of positive floats, by exponent and 3 bits of mantissa */

struct candidate {
    float p; /* relative to the best token's */
    uint32_t id;
};

struct sampler {
    uint32_t vocab;
    float *row;
    uint32_t *count; /* all 0 between calls */
    struct candidate *candidates;
    uint32_t bucket_n[BUCKETS];
    double bucket_mass[BUCKETS];
};

struct sampler *sampler_new(uint32_t vocab)
{
    ASSERT(vocab > 0);
    struct sampler *s = xcalloc(1, sizeof *s);
    s->vocab = vocab;
    s->row = xcalloc(vocab, sizeof *s->row);
    s->count = xcalloc(vocab, sizeof *s->count);
    s->candidates = xcalloc(vocab, sizeof *s->candidates);
    return s;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    free(s->row);
    free(s->count);
    free(s->candidates);
    free(s);
}

static bool has(const uint32_t *ids, uint32_t n, uint32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

bool sample_is_stop(const struct sample_in *in, uint32_t id)
{
    const struct wire_request *p = in->params;
    return has(p->stop_ids, p->n_stop_ids, id) ||
           (!(p->flags & WIRE_IGNORE_EOS) && has(in->eog, in->n_eog, id));
}

static bool masks_stops(const struct sample_in *in)
{
    return in->n_tokens - in->params->n_prompt < in->params->min_tokens;
}

static bool changes_logits(const struct sample_in *in)
{
    const struct wire_request *p = in->params;
    return p->n_bias || p->repetition_penalty != 1 || p->presence_penalty != 0 ||
           p->frequency_penalty != 0 || masks_stops(in);
}

static void mask(struct sampler *s, const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < s->vocab)
            s->row[ids[i]] = -INFINITY;
}

static void apply_bias(struct sampler *s, const struct sample_in *in)
{
    const struct wire_request *p = in->params;
    for (uint32_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].id < s->vocab)
            s->row[p->bias[i].id] += p->bias[i].bias;
    if (!masks_stops(in))
        return;
    mask(s, p->stop_ids, p->n_stop_ids);
    if (!(p->flags & WIRE_IGNORE_EOS))
        mask(s, in->eog, in->n_eog);
}

/* Each token once: the first visit of an id applies, count[] remembers, and the last loop clears
 * it. */
static void apply_penalties(struct sampler *s, const struct sample_in *in)
{
    const struct wire_request *p = in->params;
    for (uint32_t i = 0; i < in->n_tokens && p->repetition_penalty != 1; i++) {
        uint32_t id = in->tokens[i];
        if (id >= s->vocab || s->count[id]++)
            continue;
        float x = s->row[id];
        s->row[id] = x > 0 ? x / p->repetition_penalty : x * p->repetition_penalty;
    }
    for (uint32_t i = 0; i < in->n_tokens; i++)
        if (in->tokens[i] < s->vocab)
            s->count[in->tokens[i]] = 0;
    if (p->presence_penalty == 0 && p->frequency_penalty == 0)
        return;
    for (uint32_t i = p->n_prompt; i < in->n_tokens; i++)
        if (in->tokens[i] < s->vocab)
            s->count[in->tokens[i]]++;
    for (uint32_t i = p->n_prompt; i < in->n_tokens; i++) {
        uint32_t id = in->tokens[i];
        if (id >= s->vocab || !s->count[id])
            continue;
        s->row[id] -= p->frequency_penalty * (float)s->count[id];
        s->row[id] -= p->presence_penalty;
        s->count[id] = 0;
    }
}

static int best_of(const float *row, uint32_t n, uint32_t *best)
{
    uint32_t at = 0;
    float max = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (row[i] > max) {
            max = row[i];
            at = i;
        }
    }
    if (!isfinite(max))
        return -EIO;
    *best = at;
    return 0;
}

static uint32_t bucket_of(float p)
{
    uint32_t bits;
    memcpy(&bits, &p, sizeof bits);
    return bits >> 20;
}

static int by_p(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->p != y->p)
        return x->p > y->p ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Row becomes probabilities relative to the best token's, min-p applied; returns their sum. */
static double to_probabilities(struct sampler *s, const struct wire_request *p, float max)
{
    double total = 0;
    float inverse = 1 / p->temperature;
    for (uint32_t i = 0; i < s->vocab; i++) {
        float x = expf((s->row[i] - max) * inverse);
        x = x >= p->min_p ? x : 0;
        s->row[i] = x;
        total += (double)x;
    }
    return total;
}

/* The candidates that top-k and top-p can keep (and a few more), best first. */
static uint32_t gather(struct sampler *s, uint32_t top_k, double mass_wanted)
{
    memset(s->bucket_n, 0, sizeof s->bucket_n);
    memset(s->bucket_mass, 0, sizeof s->bucket_mass);
    for (uint32_t i = 0; i < s->vocab; i++) {
        uint32_t b = bucket_of(s->row[i]);
        s->bucket_n[b]++;
        s->bucket_mass[b] += (double)s->row[i];
    }
    uint32_t from = BUCKETS, seen = 0, n = 0;
    double mass = 0;
    while (from > 1 && seen < top_k && mass < mass_wanted) {
        from--;
        seen += s->bucket_n[from];
        mass += s->bucket_mass[from];
    }
    for (uint32_t i = 0; i < s->vocab; i++)
        if (s->row[i] > 0 && bucket_of(s->row[i]) >= from)
            s->candidates[n++] = (struct candidate){s->row[i], i};
    qsort(s->candidates, n, sizeof *s->candidates, by_p);
    return n;
}

static uint32_t cut_top_k(const struct candidate *c, uint32_t n, uint32_t top_k)
{
    uint32_t keep = n < top_k ? n : top_k;
    while (keep < n && c[keep].p == c[keep - 1].p)
        keep++;
    return keep;
}

/* Keeps candidates while the mass before them is below top_p of the whole. */
static uint32_t cut_top_p(const struct candidate *c, uint32_t n, double top_p, double total)
{
    double before = 0;
    uint32_t keep = 0;
    while (keep < n && (keep == 0 || before < top_p * total))
        before += (double)c[keep++].p;
    return keep;
}

static uint32_t draw_sorted(struct sampler *s, const struct wire_request *p, double total, double u)
{
    bool k = p->top_k > 0 && p->top_k < s->vocab;
    const struct candidate *c = s->candidates;
    /* With top-k, top-p is relative to what top-k keeps: gather by count alone. */
    uint32_t n = gather(s, k ? p->top_k : UINT32_MAX, k ? INFINITY : (double)p->top_p * total);
    if (k) {
        n = cut_top_k(c, n, p->top_k);
        total = 0;
        for (uint32_t i = 0; i < n; i++)
            total += (double)c[i].p;
    }
    if (p->top_p < 1)
        n = cut_top_p(c, n, (double)p->top_p, total);
    double kept = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        kept += (double)c[i].p;
    for (uint32_t i = 0; i + 1 < n; i++) {
        sum += (double)c[i].p;
        if (sum > u * kept)
            return c[i].id;
    }
    return c[n - 1].id;
}

static uint32_t draw_any(const struct sampler *s, double total, double u)
{
    double sum = 0;
    uint32_t last = 0;
    for (uint32_t i = 0; i < s->vocab; i++) {
        if (s->row[i] <= 0)
            continue;
        last = i;
        sum += (double)s->row[i];
        if (sum > u * total)
            break;
    }
    return last;
}

bool sample_as_draw(const struct sample_in *in, struct model_draw *out)
{
    const struct wire_request *p = in->params;
    if (changes_logits(in) || (p->flags & (WIRE_LOGPROBS | WIRE_PROMPT_LOGPROBS)))
        return false;
    *out = (struct model_draw){.token = MODEL_NO_TOKEN};
    if (p->temperature < GREEDY_BELOW)
        return true;
    out->u = rng_unit_at(p->seed, in->choice, in->n_tokens);
    out->temperature = p->temperature;
    out->min_p = p->min_p;
    return !p->top_k && p->top_p >= 1;
}

int sample_token(struct sampler *s, const struct sample_in *in, const float *logits, uint32_t *id)
{
    const struct wire_request *p = in->params;
    uint32_t best;
    bool changed = changes_logits(in);
    if (!changed && p->temperature < GREEDY_BELOW)
        return best_of(logits, s->vocab, id);
    memcpy(s->row, logits, s->vocab * sizeof *s->row);
    if (changed) {
        apply_bias(s, in);
        apply_penalties(s, in);
    }
    int rc = best_of(s->row, s->vocab, &best);
    if (rc)
        return rc;
    if (p->temperature < GREEDY_BELOW) {
        *id = best;
        return 0;
    }
    double u = rng_unit_at(p->seed, in->choice, in->n_tokens);
    double total = to_probabilities(s, p, s->row[best]);
    bool sorted = (p->top_k > 0 && p->top_k < s->vocab) || p->top_p < 1;
    *id = sorted ? draw_sorted(s, p, total, u) : draw_any(s, total, u);
    return 0;
}
