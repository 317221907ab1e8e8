/* What one role needs, and when to go there. */
#include "lib/decide/scale.h"

#include "lib/decide/guard.h"
#include "lib/decide/scale_int.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#define PREFILL_UP   0.8
#define PREFILL_DOWN 0.6
#define KV_UP        0.7
#define KV_DOWN      0.5
#define TPOT_DOWN    0.8  /* those who remain should stay this far below the target */
#define NOTHING      0.01 /* arrivals worth less of a group are the tail of an average, not load */
#define AHEAD_MAX    2.0  /* a trend never foretells more than so many times what is there */

const char *scale_code_name(enum scale_code c)
{
    static const char *const names[] = {
        "AsNeeded", "ScaledUp",       "ScaledDown",     "WaitingUp",       "WaitingDown",
        "Bounds",   "Woken",          "NoLoadReported", "NothingMeasured", "Unschedulable",
        "NoRoom",   "GaveUpUnplaced", "JointLimits",
    };
    _Static_assert(sizeof names / sizeof *names == SCALE_CODES, "a name for each code");
    return c < SCALE_CODES ? names[c] : "";
}

const char *scale_rung_name(enum scale_rung r)
{
    static const char *const names[] = {"hot", "warm", "cached", "cold"};
    return r < SCALE_RUNGS ? names[r] : "";
}

int32_t scale_up_to(double v)
{
    return v <= 0 ? 0 : v > SCALE_GROUPS_MAX ? SCALE_GROUPS_MAX : (int32_t)ceil(v - 1e-9);
}

void scale_note(struct scale_decision *d, const char *fmt, ...)
{
    size_t n = strlen(d->reason);
    va_list ap;
    va_start(ap, fmt);
    if (n && n + 3 < sizeof d->reason) {
        memcpy(d->reason + n, "; ", 3);
        n += 2;
    }
    vsnprintf(d->reason + n, sizeof d->reason - n, fmt, ap);
    va_end(ap);
}

static double ahead(double now, double slope, double lead_s)
{
    double more = slope > 0 ? slope * lead_s : 0, most = (AHEAD_MAX - 1) * now;
    return now + (more < most ? more : most);
}

/* Groups' worth of prompt tokens; < 0: nothing is known (no rate was ever measured while tokens
 * wait). */
static double prefill_load(const struct scale_input *in, const struct scale_sums *s,
                           const struct scale_memory *m, bool up)
{
    double slack = (in->ttft_s > 0 ? in->ttft_s : SCALE_TTFT_S) / 2;
    double queued = (double)(s->waiting_tokens + in->held_tokens);
    double arrival = in->arrival_tokens_per_s;
    if (up && GUARD(scale_lead))
        arrival = ahead(arrival, m->arrival_slope, in->lead_s);
    double tokens = arrival + queued / slack, use = up ? PREFILL_UP : PREFILL_DOWN;
    if (!GUARD(scale_consolidation))
        use = PREFILL_UP;
    if (tokens <= 0)
        return 0;
    if (m->rate <= 0)
        return -1;
    double load = tokens / (use * m->rate);
    return GUARD(scale_residue) && queued <= 0 && load < NOTHING ? 0 : load;
}

/* Least number of groups whose steps keep to the TPOT target with the load spread over them. */
static int32_t tpot_need(const struct scale_input *in, const struct scale_sums *s,
                         const struct scale_memory *m, double target)
{
    double heard = s->heard_of ? s->heard_of : 1, batch = s->running,
           tokens = (double)s->resident_tokens;
    if (in->tpot_s <= 0 || !s->running || s->step_s <= 0)
        return 0;
    if (scale_step_s(m, batch / heard, tokens / heard) < 0) { /* no fit yet: in proportion */
        double slow = s->step_s / target;
        return slow > 1 ? scale_up_to((slow < 2 ? slow : 2) * heard) : 0;
    }
    int32_t most = scale_up_to(2 * heard); /* a model of two weeks ago must not run away */
    for (int32_t n = 1; n < most; n++)
        if (scale_step_s(m, batch / n, tokens / n) <= target)
            return n;
    return most;
}

static double kv_load(const struct scale_input *in, const struct scale_sums *s,
                      const struct scale_memory *m, bool up)
{
    /* Those who wait count as KV only where KV is short: else they wait for a prefill worker's
     * turn. */
    double each = s->running ? (double)s->used_blocks / s->running : 1,
           used = (double)s->used_blocks;
    double use = up || !GUARD(scale_consolidation) ? KV_UP : KV_DOWN;
    bool is_short = used >= KV_UP * m->blocks * s->heard_of && s->heard_of;
    if (!GUARD(scale_quiet_decode))
        is_short = true;
    if (up && GUARD(scale_lead))
        used = ahead(used, m->kv_slope, in->lead_s);
    double blocks = used + (is_short ? each * (s->waiting + in->held_requests) : 0);
    if (blocks <= 0)
        return 0;
    return m->blocks > 0 ? blocks / (use * m->blocks) : -1;
}

static double decode_load(const struct scale_input *in, const struct scale_sums *s,
                          const struct scale_memory *m, bool up)
{
    double load = kv_load(in, s, m, up);
    int32_t n = tpot_need(in, s, m, (up ? 1 : TPOT_DOWN) * in->tpot_s);
    /* Slower than the target on one worker alone is not cured by fewer. */
    if (!up && n > (int32_t)s->heard_of)
        n = (int32_t)s->heard_of;
    return load < 0 ? load : load > n ? load : n;
}

static double role_load(const struct scale_input *in, const struct scale_sums *s,
                        const struct scale_memory *m, bool up)
{
    double p, d;
    if (in->source == SCALE_FROM_QUERY)
        return in->target > 0 && GUARD(scale_target) ? in->value / in->target : in->value;
    p = in->role == REC_DECODE ? 0 : prefill_load(in, s, m, up);
    d = in->role == REC_PREFILL ? 0 : decode_load(in, s, m, up);
    return p < 0 || d < 0 ? -1 : p > d ? p : d;
}

static int32_t clamp(const struct scale_input *in, int32_t n)
{
    return n < in->min ? in->min : n > in->max ? in->max : n;
}

/* Needs in groups, bounds kept; -1: not known. */
static void set_needs(const struct scale_input *in, const struct scale_sums *s,
                      const struct scale_memory *m, struct scale_decision *out)
{
    double up = role_load(in, s, m, true), down = role_load(in, s, m, false);
    bool someone =
        in->source != SCALE_FROM_QUERY && (in->held_requests || s->running || s->waiting);
    if (in->current == 0 && someone && up < 1)
        up = down = 1;
    if (someone && GUARD(scale_held)) {
        up = up >= 0 && up < 1 ? 1 : up;
        down = down >= 0 && down < 1 ? 1 : down;
    }
    out->load = up;
    out->need_up = out->need_down = -1;
    if (up < 0)
        return;
    out->need_up = clamp(in, scale_up_to(up));
    int32_t n = scale_up_to(down < 0 ? 0 : down);
    if (GUARD(scale_silent_full) && in->source != SCALE_FROM_QUERY)
        n += (int32_t)s->silent;
    out->need_down = clamp(in, n > out->need_up ? n : out->need_up);
}

static void describe(const struct scale_input *in, const struct scale_sums *s,
                     const struct scale_memory *m, struct scale_decision *out)
{
    static const char *const sources[] = {"routers", "prometheus", "query"};
    int n = snprintf(
        out->inputs, sizeof out->inputs,
        "{\"source\":\"%s\",\"current\":%d,\"min\":%d,\"max\":%d,\"live\":%u,\"heard_of\":%u,"
        "\"pending\":%u,\"running\":%u,\"waiting\":%u,\"waiting_tokens\":%llu,"
        "\"held_requests\":%u,\"held_tokens\":%llu,\"arrival_tokens_per_s\":%.1f,"
        "\"arrival_slope\":%.3f,\"prefill_tokens_per_s\":%.1f,\"kv_blocks_used\":%llu,"
        "\"kv_slope\":%.3f,\"kv_blocks_each\":%.0f,\"decode_step_s\":%.6f,\"ttft_s\":%.3f,"
        "\"tpot_s\":%.3f,\"lead_s\":%.1f,\"rung\":\"%s\",\"load\":%.3f,\"need_up\":%d,"
        "\"need_down\":%d",
        sources[in->source], in->current, in->min, in->max, s->live, s->heard_of, s->pending,
        s->running, s->waiting, (unsigned long long)s->waiting_tokens, in->held_requests,
        (unsigned long long)in->held_tokens, in->arrival_tokens_per_s, m->arrival_slope, m->rate,
        (unsigned long long)s->used_blocks, m->kv_slope, m->blocks, s->step_s, in->ttft_s,
        in->tpot_s, in->lead_s, scale_rung_name(in->rung), out->load, out->need_up, out->need_down);
    size_t at = (size_t)n < sizeof out->inputs ? (size_t)n : sizeof out->inputs - 1;
    if (in->source == SCALE_FROM_QUERY)
        at += (size_t)snprintf(out->inputs + at, sizeof out->inputs - at,
                               ",\"value\":%.6g,\"target\":%.6g", in->value, in->target);
    for (int i = 0; i < SCALE_DROPS; i++)
        if (s->dropped[i])
            at += (size_t)snprintf(out->inputs + at, sizeof out->inputs - at, ",\"dropped_%s\":%u",
                                   scale_drop_name((enum scale_drop)i), s->dropped[i]);
    snprintf(out->inputs + at, sizeof out->inputs - at, "}");
}

static void forget_clocks(struct scale_memory *m, int32_t current)
{
    m->current = current;
    m->above_since_ns = m->below_since_ns = 0;
    m->trough = m->peak = 0;
}

/* The two clocks: how long the need has been above, or below, what is asked for. */
static void remember(const struct scale_input *in, struct scale_memory *m, uint64_t now, int32_t up,
                     int32_t down)
{
    if (m->current != in->current)
        forget_clocks(m, in->current);
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

static void say(struct scale_decision *out, enum scale_code code, int32_t to)
{
    out->code = code;
    out->to = to;
}

static const char *what(const struct scale_input *in)
{
    if (in->source == SCALE_FROM_QUERY)
        return "the PromQL query's value";
    return in->role == REC_PREFILL  ? "waiting and arriving prompt tokens"
           : in->role == REC_DECODE ? "KV in use and the time per token"
                                    : "waiting tokens and KV in use";
}

static void go_up(const struct scale_input *in, const struct scale_sums *s,
                  const struct scale_memory *m, struct scale_decision *out)
{
    if (s->unschedulable && GUARD(scale_unschedulable)) {
        say(out, SCALE_UNSCHEDULABLE, in->current);
        out->capacity_limited = true;
        scale_note(out, "%s need %d groups, but a pod already finds no node; %d are asked for",
                   what(in), m->trough, in->current);
        return;
    }
    say(out, SCALE_UP, m->trough);
    scale_note(out, "%s need %d groups%s; %d are asked for", what(in), m->trough,
               out->load > in->max ? " or more than bounds.max" : "", in->current);
    if (m->arrival_slope > 0 && in->lead_s > 0 && in->role != REC_DECODE &&
        in->source != SCALE_FROM_QUERY)
        scale_note(out, "arrivals grow, and a group takes %.1f s (%s)", in->lead_s,
                   scale_rung_name(in->rung));
}

static void go_down(const struct scale_input *in, const struct scale_sums *s,
                    const struct scale_memory *m, struct scale_decision *out)
{
    say(out, SCALE_DOWN, m->peak);
    scale_note(out, "%s needed at most %d groups for %llu s", what(in), m->peak,
               (unsigned long long)(in->down_window_ns / 1000000000));
    if (s->silent)
        scale_note(out, "%u live workers that don't report count as fully used", s->silent);
}

static bool gives_up(const struct scale_input *in, const struct scale_sums *s,
                     const struct scale_memory *m, uint64_t now)
{
    return s->unschedulable && m->below_since_ns && now - m->below_since_ns >= SCALE_STUCK_NS &&
           (int32_t)s->live < in->current && GUARD(scale_give_up);
}

static void choose(const struct scale_input *in, const struct scale_sums *s,
                   const struct scale_memory *m, uint64_t now, struct scale_decision *out)
{
    bool window = m->below_since_ns && now - m->below_since_ns >= in->down_window_ns;
    if (m->above_since_ns && now - m->above_since_ns >= SCALE_UP_HOLD_NS) {
        go_up(in, s, m, out);
    } else if (window && (!s->unschedulable || GUARD(scale_down_while_stuck))) {
        go_down(in, s, m, out);
    } else if (gives_up(in, s, m, now)) {
        int32_t least = (int32_t)s->live > m->peak ? (int32_t)s->live : m->peak;
        say(out, SCALE_GIVE_UP, clamp(in, least));
        scale_note(out, "groups that find no node are no longer needed");
    } else {
        say(out,
            m->above_since_ns   ? SCALE_WAIT_UP
            : m->below_since_ns ? SCALE_WAIT_DOWN
                                : SCALE_AS_NEEDED,
            in->current);
        scale_note(out, "%s",
                   m->above_since_ns   ? "more is needed, but not for long enough yet"
                   : m->below_since_ns ? "less would do, but not for long enough yet"
                                       : "as many as needed");
    }
}

static void hold(const struct scale_input *in, struct scale_memory *m, enum scale_code code,
                 const char *why, struct scale_decision *out)
{
    forget_clocks(m, in->current);
    say(out, code, in->current);
    scale_note(out, "%s", why);
}

static const char *const unheard[] = {
    "no router reports load",
    "Prometheus does not answer",
    "the PromQL query gives no value",
};

void scale_decide(const struct scale_input *in, struct scale_memory *m, uint64_t now_ns,
                  struct scale_decision *out)
{
    struct scale_sums s;
    memset(out, 0, sizeof *out);
    out->from = out->to = in->current;
    scale_sum(in, m, &s);
    m->rate = s.rate > 0 ? s.rate : m->rate;
    m->blocks = s.blocks > 0 ? s.blocks : m->blocks;
    if (in->heard)
        scale_trend(in, &s, m, now_ns);
    set_needs(in, &s, m, out);
    out->live = s.live;
    out->heard_of = s.heard_of;
    out->pending = s.pending;
    out->running = s.running;
    out->waiting = s.waiting;
    out->waiting_tokens = s.waiting_tokens;
    out->used_blocks = s.used_blocks;
    out->blocks_each = m->blocks;
    memcpy(out->dropped, s.dropped, sizeof out->dropped);
    describe(in, &s, m, out);
    if (in->current < in->min || in->current > in->max) {
        say(out, SCALE_BOUNDS, clamp(in, in->current));
        scale_note(out, "%d is outside its bounds", in->current);
        return;
    }
    if (!in->heard) {
        hold(in, m, SCALE_UNHEARD, unheard[in->source], out);
        return;
    }
    if (out->need_up < 0) {
        hold(in, m, SCALE_UNMEASURED, "nothing was measured yet that would tell the need", out);
        return;
    }
    /* What is pending counts, since the need is compared with the number asked for; compared with
     * what is live, each look would ask for the same groups again. */
    int32_t up = GUARD(scale_pending) ? out->need_up
                                      : clamp(in, in->current + out->need_up - (int32_t)s.live);
    remember(in, m, now_ns, up, out->need_down);
    if (in->current == 0 && out->need_up > 0) {
        say(out, SCALE_WAKE, out->need_up);
        scale_note(out,
                   in->source == SCALE_FROM_QUERY ? "%s wakes a role at zero"
                                                  : "requests wait for a role at zero",
                   what(in));
        return;
    }
    choose(in, &s, m, now_ns, out);
    out->to = clamp(in, out->to);
}

void scale_plan(struct scale_plan *p)
{
    struct scale_role *r = p->role;
    for (int i = 0; i < SCALE_ROLES; i++) {
        if (!r[i].on)
            continue;
        r[i].before = r[i].memory;
        scale_decide(&r[i].in, &r[i].memory, p->now_ns, &r[i].out);
    }
    if (r[REC_PREFILL].on && r[REC_DECODE].on)
        scale_limit(&p->limits, &r[REC_PREFILL].out, &r[REC_DECODE].out);
    scale_trim(p);
}
