#include "lib/decide/speculate.h"

#include "lib/base/err.h"

#define SHARE_FIRST   0.15 /* of a further row, before it was measured */
#define MEAN_FADE     0.9
#define COST_FADE     0.99
#define COST_SPREAD   4.0 /* of rows seen, at least, before they tell their cost */
#define COST_OUTLIER  3.0 /* times what was expected: somebody else had the machine */
#define SEQ_FADE      0.9f
#define PRIOR_FADE    0.99f
#define PRIOR_WEIGHT  4.0 /* tokens that the prior counts for in a sequence's chance */
#define FIRST_WEIGHT  2.0 /* and the first guess in the prior */
#define INTERVAL_MIN  16u
#define INTERVAL_MAX  256u
#define ACCEPT_AT_TOP 0.98

/* ---- cost ---- */

void speculate_cost_init(struct speculate_cost *c)
{
    *c = (struct speculate_cost){.share = SHARE_FIRST};
}

double speculate_cost_s(const struct speculate_cost *c, double rows)
{
    return c->one_s * (1 + c->share * (rows - 1));
}

void speculate_cost_observe(struct speculate_cost *c, uint32_t rows, double seconds)
{
    double expected = speculate_cost_s(c, rows), by = MEAN_FADE;
    if (!rows || !(seconds > 0))
        return;
    if (c->one_s <= 0)
        by = 0;
    else if (seconds > COST_OUTLIER * expected)
        seconds = COST_OUTLIER * expected;
    double more = rows - c->rows;
    if (by > 0) {
        double fade = more * more < 1 ? 1 - (1 - COST_FADE) * more * more : COST_FADE;
        c->spread = c->spread * fade + more * more;
        c->slope = c->slope * fade + more * (seconds - c->seconds) / c->one_s;
    }
    if (c->spread >= COST_SPREAD) {
        double share = c->slope / c->spread;
        c->share = share < 0 ? 0 : share > 1 ? 1 : share;
    }
    c->rows = c->rows * by + rows * (1 - by);
    c->seconds = c->seconds * by + seconds * (1 - by);
    c->one_s = c->seconds / (1 + c->share * (c->rows - 1));
}

/* ---- chances ---- */

uint32_t speculate_class(uint32_t match_tokens)
{
    return match_tokens < 3    ? 0
           : match_tokens < 4  ? 1
           : match_tokens < 7  ? 2
           : match_tokens < 12 ? 3
                               : 4;
}

static void fade(struct speculate_rate *r, float by, float right, float tried)
{
    r->right = r->right * by + right;
    r->tried = r->tried * by + tried;
}

void speculate_learn(struct speculate_history *h, struct speculate_prior *p, uint32_t class,
                     uint32_t drafted, uint32_t right)
{
    ASSERT(class < SPECULATE_CLASSES && right <= drafted);
    float tried = (float)right + (right < drafted);
    fade(&h->rates[class], SEQ_FADE, (float)right, tried);
    fade(&p->rates[class], PRIOR_FADE, (float)right, tried);
    if (right)
        h->interval = INTERVAL_MIN;
    else if (h->interval < INTERVAL_MAX)
        h->interval = h->interval ? 2 * h->interval : INTERVAL_MIN;
}

double speculate_accept(const struct speculate_history *h, const struct speculate_prior *p,
                        uint32_t class)
{
    static const double first[SPECULATE_CLASSES] = {.3, .45, .6, .75, .85};
    ASSERT(class < SPECULATE_CLASSES);
    const struct speculate_rate *all = &p->rates[class], *own = &h->rates[class];
    double prior =
        ((double)all->right + FIRST_WEIGHT * first[class]) / ((double)all->tried + FIRST_WEIGHT);
    double a = ((double)own->right + PRIOR_WEIGHT * prior) / ((double)own->tried + PRIOR_WEIGHT);
    return a < ACCEPT_AT_TOP ? a : ACCEPT_AT_TOP;
}

/* ---- drafts ---- */

/* The sequence whose next draft is most likely right. */
static struct speculate_seq *best_of(struct speculate_seq *s, uint32_t n)
{
    struct speculate_seq *best = NULL;
    for (uint32_t i = 0; i < n; i++)
        if (s[i].drafts < s[i].most && (!best || s[i].chance > best->chance))
            best = &s[i];
    return best;
}

/* A sequence whose matches were passed over for long enough has one tried. */
static void try_again(struct speculate_seq *s, uint32_t n, uint32_t room)
{
    for (uint32_t i = 0; i < n; i++) {
        struct speculate_history *h = s[i].history;
        if (s[i].drafts || !s[i].most) {
            h->skipped = s[i].drafts ? 0 : h->skipped;
            continue;
        }
        if (++h->skipped < (h->interval ? h->interval : INTERVAL_MIN) || !room)
            continue;
        h->skipped = 0;
        s[i].drafts = 1;
        room--;
    }
}

void speculate(const struct speculate_cost *c, struct speculate_seq *s, uint32_t n, uint32_t rows,
               uint32_t room)
{
    double tokens = rows, all = rows;
    for (uint32_t i = 0; i < n; i++) {
        s[i].drafts = 0;
        s[i].chance = s[i].accept;
    }
    for (; room; room--) {
        struct speculate_seq *best = best_of(s, n);
        if (!best || best->chance * (1 + c->share * (all - 1)) <= c->share * tokens)
            break;
        tokens += best->chance;
        all++;
        best->drafts++;
        best->chance *= best->accept;
    }
    try_again(s, n, room);
}
