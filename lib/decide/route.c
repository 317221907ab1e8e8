#include "lib/decide/route.h"
#include "lib/decide/guard.h"

#include <errno.h>
#include <math.h>

static const char *const reason_names[] = {"split", "alone", "no_worker", "no_decode",
                                           "no_prefill"};

const char *route_reason_name(enum route_reason r)
{
    return reason_names[r];
}

struct context {
    const struct route_request *req;
    const struct route_worker *w;
    const uint32_t *cached;
    size_t n;
    uint64_t now_ns;
    double cap_prefill, cap_decode; /* requests */
    bool paired;                    /* only workers of `pair` make a split */
    uint64_t pair;
};

static bool takes(const struct route_worker *w, bool prefill)
{
    return w->role == ROUTE_UNIFIED || w->role == (prefill ? ROUTE_PREFILL : ROUTE_DECODE);
}

static bool alive(const struct context *c, size_t i)
{
    const struct route_worker *w = &c->w[i];
    return w->incarnation && w->ready && !w->draining &&
           (w->heard_ns > c->now_ns || c->now_ns - w->heard_ns <= ROUTE_FRESH_NS);
}

static double held(const struct route_worker *w, bool prefill)
{
    return (double)w->waiting + (prefill ? w->sent_prefills : w->running + w->sent_decodes);
}

/* The bound on the requests that one worker may hold. */
static double load_cap(const struct context *c, bool prefill)
{
    double sum = 0, n = 0;
    for (size_t i = 0; i < c->n; i++)
        if (alive(c, i) && takes(&c->w[i], prefill)) {
            sum += held(&c->w[i], prefill);
            n++;
        }
    return n > 0 ? ROUTE_CAP_FACTOR * (sum + 1) / n + ROUTE_CAP_SPARE : 0;
}

static uint64_t uncached(const struct context *c, size_t i)
{
    uint32_t have = c->cached[i] < c->req->prompt_tokens ? c->cached[i] : c->req->prompt_tokens;
    return c->req->prompt_tokens - have;
}

static double wait_s(const struct route_worker *w)
{
    return cost_prefill_s(&w->cost, w->waiting_tokens + w->sent_prefill_tokens, 0);
}

/* At least one token runs through the model even when every block is cached. */
static double prefill_s(const struct context *c, size_t i)
{
    uint64_t n = uncached(c, i);
    if (n == 0)
        n = 1;
    return cost_prefill_s(&c->w[i].cost, n, c->req->prompt_tokens - n);
}

static double expected_tokens(const struct route_request *r)
{
    return r->max_tokens < ROUTE_EXPECTED_TOKENS ? r->max_tokens : ROUTE_EXPECTED_TOKENS;
}

/* Running requests give their KV back at resident / (remaining steps); a shortage waits for that.
 */
static double kv_wait_s(const struct context *c, size_t i, double step_s)
{
    const struct route_worker *w = &c->w[i];
    double room =
        ((double)w->kv_blocks - w->kv_blocks_used) * w->block_tokens - (double)w->sent_kv_tokens;
    double need = c->req->prompt_tokens + c->req->n * expected_tokens(c->req);
    if (!w->kv_blocks || need <= room)
        return 0;
    double resident = (double)w->resident_tokens + (double)w->sent_kv_tokens + 1;
    return (need - room) / resident * ROUTE_EXPECTED_TOKENS / 2 * step_s;
}

static double decode_s(const struct context *c, size_t i)
{
    const struct route_worker *w = &c->w[i];
    double batch = (double)w->running + w->sent_decodes;
    double kv = (double)w->resident_tokens + (double)w->sent_kv_tokens;
    double tokens = expected_tokens(c->req);
    double before = cost_step_s(&w->cost, batch, kv);
    double after = cost_step_s(&w->cost, batch + c->req->n,
                               kv + c->req->prompt_tokens + c->req->n * tokens / 2);
    return kv_wait_s(c, i, after) + tokens * (after + batch * (after - before));
}

static double transfer_s(const struct context *c, size_t d)
{
    const struct cost_worker *w = &c->w[d].cost;
    return cost_transfer_s(w, (double)uncached(c, d) * w->m.kv_bytes_per_token);
}

static double price_prefill(const struct context *c, size_t i)
{
    return wait_s(&c->w[i]) + prefill_s(c, i);
}

static double price_decode(const struct context *c, size_t i)
{
    return transfer_s(c, i) + decode_s(c, i);
}

static double price_alone(const struct context *c, size_t i)
{
    double p = prefill_s(c, i), batch = (double)c->w[i].running + c->w[i].sent_decodes;
    return wait_s(&c->w[i]) + p + batch * p + decode_s(c, i);
}

struct best {
    int at;
    double price;
};

/* The cheapest worker but `skip`; ties at random. The first pass leaves out what failed before and
 * what is over the cap, the second only what failed, the last takes any. */
static struct best cheapest(const struct context *c, bool prefill, int skip,
                            double (*price)(const struct context *, size_t), struct rng *rng)
{
    double cap = prefill ? c->cap_prefill : c->cap_decode;
    bool split = price == price_prefill || price == price_decode;
    for (int pass = 0; pass < 3; pass++) {
        double lowest = INFINITY;
        for (int round = 0, chosen = -1; round < 2; round++) {
            uint64_t ties = 0;
            for (size_t i = 0; i < c->n; i++) {
                const struct route_worker *w = &c->w[i];
                if ((int)i == skip || !alive(c, i) || !takes(w, prefill) ||
                    (split && c->paired && w->pair != c->pair) || (pass < 2 && w->avoid) ||
                    (pass < 1 && held(w, prefill) + 1 > cap))
                    continue;
                double p = price(c, i);
                if (round == 0)
                    lowest = p < lowest ? p : lowest;
                else if (p <= lowest * (1 + ROUTE_TIE) + ROUTE_TIE_S && !rng_below(rng, ++ties))
                    chosen = (int)i;
            }
            if (chosen >= 0)
                return (struct best){chosen, price(c, (size_t)chosen)};
        }
    }
    return (struct best){-1, INFINITY};
}

static enum route_reason why_not(const struct context *c)
{
    bool any = false, decode = false;
    for (size_t i = 0; i < c->n; i++) {
        any |= alive(c, i) && c->w[i].role != ROUTE_STANDBY;
        decode |= alive(c, i) && takes(&c->w[i], false);
    }
    return !any ? ROUTE_NO_WORKER : !decode ? ROUTE_NO_DECODE : ROUTE_NO_PREFILL;
}

/* Ready workers of a role: of one pairing key, or of all. */
static double count(const struct context *c, bool prefill, bool all, uint64_t pair)
{
    double n = 0;
    for (size_t i = 0; i < c->n; i++)
        n += alive(c, i) && takes(&c->w[i], prefill) && (all || c->w[i].pair == pair);
    return n;
}

/* What of the whole work pairs of one key can do: as much as its scarcer role. */
static double weight(const struct context *c, uint64_t pair)
{
    double p = count(c, true, true, 0), d = count(c, false, true, 0);
    if (p <= 0 || d <= 0)
        return 0;
    double wp = count(c, true, false, pair) / p, wd = count(c, false, false, pair) / d;
    if (!GUARD(scarcer_role))
        return wp;
    return wp < wd ? wp : wd;
}

/* Is worker i the first alive one of its key? */
static bool first_of_key(const struct context *c, size_t i)
{
    if (!alive(c, i) || c->w[i].role == ROUTE_STANDBY)
        return false;
    for (size_t k = 0; k < i; k++)
        if (alive(c, k) && c->w[k].role != ROUTE_STANDBY && c->w[k].pair == c->w[i].pair)
            return false;
    return true;
}

/* Draws the pairing key for this request. False when no key has both roles: no split then. */
static bool draw_pair(struct context *c, struct rng *rng)
{
    double sum = 0;
    size_t keys = 0;
    for (size_t i = 0; i < c->n; i++)
        if (first_of_key(c, i)) {
            keys++;
            sum += weight(c, c->w[i].pair);
        }
    if (keys <= 1 || !GUARD(pair_revision))
        return true;
    c->paired = true;
    double at = rng_unit(rng) * sum;
    for (size_t i = 0; i < c->n && sum > 0; i++) {
        double w = first_of_key(c, i) ? weight(c, c->w[i].pair) : 0;
        if (w <= 0)
            continue;
        c->pair = c->w[i].pair; /* the last one, should rounding leave a rest */
        if ((at -= w) < 0)
            break;
    }
    return sum > 0;
}

/* P and D must be two workers; when one worker is the best for both, the cheaper of the two ways to
 * part them. */
static double best_split(const struct context *c, struct rng *rng, struct best *p, struct best *d)
{
    *p = cheapest(c, true, -1, price_prefill, rng);
    *d = cheapest(c, false, -1, price_decode, rng);
    if (p->at >= 0 && p->at == d->at) {
        struct best p2 = cheapest(c, true, d->at, price_prefill, rng);
        struct best d2 = cheapest(c, false, p->at, price_decode, rng);
        if (p2.price + d->price <= p->price + d2.price)
            *p = p2;
        else
            *d = d2;
    }
    return p->at < 0 || d->at < 0 ? INFINITY : p->price + d->price;
}

static uint32_t cached_at(const struct context *c, int i)
{
    return c->req->prompt_tokens - (uint32_t)uncached(c, (size_t)i);
}

int route(const struct route_request *req, const struct route_worker *workers, size_t n,
          const uint32_t *cached, uint64_t now_ns, struct rng *rng, struct route_pick *out)
{
    struct context c = {.req = req, .w = workers, .cached = cached, .n = n, .now_ns = now_ns};
    c.cap_prefill = load_cap(&c, true);
    c.cap_decode = load_cap(&c, false);
    struct best p = {-1, INFINITY}, d = {-1, INFINITY}, alone = {-1, INFINITY};
    double split = INFINITY;
    if (req->policy != ROUTE_NEVER && draw_pair(&c, rng))
        split = best_split(&c, rng, &p, &d);
    if (req->policy != ROUTE_ALWAYS || req->continued)
        alone = cheapest(&c, false, -1, price_alone, rng);
    *out =
        (struct route_pick){.prefill = -1, .decode = -1, .split_s = split, .alone_s = alone.price};
    if (split < alone.price) {
        out->prefill = p.at;
        out->decode = d.at;
        out->reason = ROUTE_SPLIT;
        out->price_s = split;
        out->ttft_s = p.price + transfer_s(&c, (size_t)d.at);
        out->prefill_cached = cached_at(&c, p.at);
    } else if (alone.at >= 0) {
        out->decode = alone.at;
        out->reason = ROUTE_ALONE;
        out->price_s = alone.price;
        out->ttft_s = wait_s(&workers[alone.at]) + prefill_s(&c, (size_t)alone.at);
        out->prefill_cached = cached_at(&c, alone.at);
    } else {
        out->reason = why_not(&c);
        return -ENOENT;
    }
    out->decode_cached = cached_at(&c, out->decode);
    return 0;
}
