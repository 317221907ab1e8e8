#include "lib/decide/standby.h"

#include "lib/decide/guard.h"
#include "lib/decide/reconcile_int.h"
#include "lib/json/json.h"

#include <errno.h>
#include <stdlib.h>

static const char *const names[STANDBY_RUNGS] = {"cold", "cached", "warm", "hot"};

const char *standby_rung_name(enum standby_rung r)
{
    return r < STANDBY_RUNGS ? names[r] : "cold";
}

/* ---- rungs of pods ---- */

static int soonness(const struct rec_pod *p)
{
    if (!GUARD(standby_highest_rung))
        return 0;
    return (p->standby_ready ? 2 : 0) + (p->rung == REC_RUNG_WARM ? 0 : 1);
}

bool standby_sooner(const struct rec_pod *a, const struct rec_pod *b)
{
    int x = soonness(a), y = soonness(b);
    if (x != y)
        return x > y;
    if (a->created_ns != b->created_ns)
        return a->created_ns < b->created_ns;
    return strcmp(a->name, b->name) < 0;
}

const char *standby_told(const char *role, const char *rung)
{
    bool serves = role && strcmp(role, "standby") != 0;
    if (serves && GUARD(role_wakes))
        return "hot";
    return rec_rung_name(rec_rung_parse(rung) == REC_RUNG_WARM ? REC_RUNG_WARM : REC_RUNG_HOT);
}

void standby_want(struct rec *r)
{
    r->want[REC_STANDBY] =
        rec_bounded(rec_bounded(r->s->hot_standby) + rec_bounded(r->s->warm_standby));
}

/* A standby pod that stays one: a promoted one has its role already. */
static bool stays(const struct rec_slot *t)
{
    return t->role == REC_STANDBY && !t->gone && rec_live(t->pod);
}

static int32_t on_rung(const struct rec *r, const enum rec_rung *rung, enum rec_rung which)
{
    int32_t n = 0;
    for (size_t i = 0; i < r->n_slots; i++)
        n += stays(&r->slots[i]) && rung[i] == which;
    return n;
}

/* The pod of a rung that should go to another: up, the soonest; down, the latest. */
static size_t pick(const struct rec *r, const enum rec_rung *rung, enum rec_rung from, bool up)
{
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < r->n_slots; i++) {
        if (!stays(&r->slots[i]) || rung[i] != from)
            continue;
        if (best == SIZE_MAX || standby_sooner(r->slots[i].pod, r->slots[best].pod) == up)
            best = i;
    }
    return best;
}

static void shift(const struct rec *r, enum rec_rung *rung, enum rec_rung from, enum rec_rung to,
                  int32_t n)
{
    for (; n > 0; n--) {
        size_t i = pick(r, rung, from, to == REC_RUNG_HOT);
        if (i == SIZE_MAX)
            return;
        rung[i] = to;
    }
}

/* Hot is filled from warm, what hot has too many falls to warm; new pods take the rung that lacks.
 */
void standby_rungs(struct rec *r)
{
    size_t n = r->n_slots;
    int32_t hot = rec_bounded(r->s->hot_standby), warm = rec_bounded(r->s->warm_standby);
    enum rec_rung *rung = arena_calloc(r->arena, (n + 1) * sizeof *rung);
    if (!rung) {
        r->oom = true;
        return;
    }
    for (size_t i = 0; i < n; i++)
        rung[i] = r->slots[i].pod->rung;
    if (GUARD(standby_backfill))
        shift(r, rung, REC_RUNG_WARM, REC_RUNG_HOT, hot - on_rung(r, rung, REC_RUNG_HOT));
    shift(r, rung, REC_RUNG_NONE, REC_RUNG_HOT, hot - on_rung(r, rung, REC_RUNG_HOT));
    shift(r, rung, REC_RUNG_NONE, REC_RUNG_WARM, (int32_t)n);
    int32_t over = on_rung(r, rung, REC_RUNG_HOT) - hot;
    int32_t lack = warm - on_rung(r, rung, REC_RUNG_WARM);
    shift(r, rung, REC_RUNG_HOT, REC_RUNG_WARM, over < lack ? over : lack);
    for (size_t i = 0; i < n; i++) {
        const struct rec_pod *p = r->slots[i].pod;
        if (rung[i] == p->rung || !stays(&r->slots[i]))
            continue;
        struct rec_action a = {
            .kind = REC_RUNG_POD,
            .role = REC_STANDBY,
            .from_role = REC_NO_ROLE,
            .rung = rung[i],
            .why = rec_text(r, "%s: standby, %s", p->name, rec_rung_name(rung[i])),
        };
        rec_each_pod(r, &r->slots[i], &a);
    }
}

/* ---- nodes ---- */

struct ranked {
    const struct standby_node *nodes;
    uint32_t i;
    int rank; /* lower is better */
};

static int by_rank(const void *x, const void *y)
{
    const struct ranked *a = x, *b = y;
    const struct standby_node *p = &a->nodes[a->i], *q = &b->nodes[b->i];
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    if (p->room_bytes != q->room_bytes)
        return p->room_bytes > q->room_bytes ? -1 : 1;
    return strcmp(p->name, q->name);
}

static int by_name(const void *x, const void *y)
{
    const struct ranked *a = x, *b = y;
    return strcmp(a->nodes[a->i].name, b->nodes[b->i].name);
}

/* The best `want` of list as indices, in order of name. */
static int take(struct ranked *list, size_t n, size_t want, struct arena *a, uint32_t **picked)
{
    uint32_t *out = arena_calloc(a, (want + 1) * sizeof *out);
    if (!out)
        return -ENOMEM;
    qsort(list, n, sizeof *list, by_rank);
    n = n < want ? n : want;
    qsort(list, n, sizeof *list, by_name);
    for (size_t i = 0; i < n; i++)
        out[i] = list[i].i;
    *picked = out;
    return (int)n;
}

int standby_cache_nodes(const struct standby_node *nodes, size_t n, int32_t want,
                        uint64_t model_bytes, struct arena *a, uint32_t **picked)
{
    struct ranked *list = arena_calloc(a, (n + 1) * sizeof *list);
    size_t m = 0;
    if (!list)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const struct standby_node *x = &nodes[i];
        if (!x->usable || (!x->has && !x->wanted && x->room_bytes < model_bytes))
            continue;
        int rank = (x->serves ? 4 : 0) + (x->wanted && x->has ? 0 : x->has ? 1 : x->wanted ? 2 : 3);
        list[m++] = (struct ranked){nodes, (uint32_t)i, rank};
    }
    return take(list, m, want > 0 ? (size_t)want : 0, a, picked);
}

int standby_prefer_nodes(const struct standby_node *nodes, size_t n, size_t max, struct arena *a,
                         uint32_t **picked)
{
    struct ranked *list = arena_calloc(a, (n + 1) * sizeof *list);
    size_t m = 0;
    if (!list)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        if (nodes[i].usable && nodes[i].has && GUARD(prefer_cached_nodes))
            list[m++] = (struct ranked){nodes, (uint32_t)i, nodes[i].serves ? 1 : 0};
    return take(list, m, max < m ? max : m, a, picked);
}

/* ---- lead times ---- */

int standby_lead_parse(const char *text, struct standby_lead *out)
{
    CLEANUP(json_decrefp) json_t *o = text ? json_parse(str_c(text), 1024, 4, NULL) : NULL;
    const char *rung = json_str_at(o, "rung", "");
    double seconds = json_num_at(o, "seconds", -1);
    if (!(seconds >= 0) || seconds > 86400)
        return -EINVAL;
    for (int i = 0; i < STANDBY_RUNGS; i++) {
        if (strcmp(names[i], rung) != 0)
            continue;
        *out = (struct standby_lead){(enum standby_rung)i, seconds};
        return 0;
    }
    return -EINVAL;
}

static size_t rung_of(const struct standby_lead *samples, size_t n, int rung, size_t k, double *out)
{
    /* k-th smallest of the rung's samples by counting: there are few */
    size_t of_rung = 0;
    for (size_t i = 0; i < n; i++) {
        if ((int)samples[i].rung != rung)
            continue;
        of_rung++;
        size_t less = 0, equal = 0;
        for (size_t j = 0; j < n; j++) {
            if ((int)samples[j].rung != rung)
                continue;
            less += samples[j].seconds < samples[i].seconds;
            equal += !(samples[j].seconds < samples[i].seconds) &&
                     !(samples[j].seconds > samples[i].seconds);
        }
        if (out && less <= k && k < less + equal)
            *out = samples[i].seconds;
    }
    return of_rung;
}

void standby_leads(const struct standby_lead *samples, size_t n, const double prev[STANDBY_RUNGS],
                   double out[STANDBY_RUNGS])
{
    n = n < 256 ? n : 256; /* counting is quadratic */
    for (int r = 0; r < STANDBY_RUNGS; r++) {
        double known = prev ? prev[r] : -1;
        size_t of_rung = rung_of(samples, n, r, 0, NULL);
        if (of_rung)
            rung_of(samples, n, r, (of_rung - 1) / 2, &known);
        out[r] = known;
    }
}

double standby_lead_of(const double leads[STANDBY_RUNGS], const int32_t have[STANDBY_RUNGS],
                       int32_t groups)
{
    int r = STANDBY_HOT;
    for (int32_t left = groups; r > STANDBY_COLD && left > have[r]; r--)
        left -= have[r] > 0 ? have[r] : 0;
    for (int lower = r; lower >= 0; lower--)
        if (leads[lower] >= 0)
            return leads[lower];
    for (int higher = r + 1; higher < STANDBY_RUNGS; higher++)
        if (leads[higher] >= 0)
            return leads[higher];
    return -1;
}
