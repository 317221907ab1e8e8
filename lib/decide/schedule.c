#include "lib/decide/schedule.h"

#include "lib/base/err.h"

struct state {
    const struct schedule_limits *limits;
    const struct schedule_queue *queue;
    struct schedule_step *step;
    uint64_t now_ns;
    uint32_t rows_left, logits_left, running;
    uint32_t brief; /* prompts that need no more than this are short; 0: none is */
    struct rank {   /* of data-parallel attention: one else */
        uint32_t free, running, youngest, picks, owed;
    } ranks[SCHEDULE_RANKS_MAX];
};

static struct rank *rank_of(struct state *s, const struct schedule_seq *q)
{
    ASSERT(q->rank < SCHEDULE_RANKS_MAX);
    return &s->ranks[q->rank];
}

static uint32_t blocks_for(const struct state *s, uint32_t tokens)
{
    return (tokens + s->limits->block_tokens - 1) / s->limits->block_tokens;
}

static bool is_expired(const struct state *s, const struct schedule_seq *q)
{
    return q->deadline_ns && q->deadline_ns <= s->now_ns;
}

static bool is_preempted(const struct state *s, uint32_t index)
{
    for (uint32_t i = 0; i < s->step->n_preempted; i++)
        if (s->step->preempted[i] == index)
            return true;
    return false;
}

static uint32_t left(const struct schedule_seq *q)
{
    return q->tokens - q->computed;
}

static bool may_run(const struct state *s, uint32_t index)
{
    const struct schedule_seq *q = &s->queue->running[index];
    return !q->held && left(q) && !is_expired(s, q) && !is_preempted(s, index);
}

/* The most rows that q can have now, by rows and logits alone. */
static uint32_t chunk(const struct state *s, const struct schedule_seq *q)
{
    uint32_t n = left(q) < s->rows_left ? left(q) : s->rows_left;
    if (q->logits_everywhere)
        return n < s->logits_left ? n : s->logits_left;
    if (n == left(q) && !s->logits_left)
        n--; /* its last row would need logits */
    return n;
}

static void pick(struct state *s, const struct schedule_seq *q, uint32_t index, uint32_t n,
                 uint32_t blocks, bool admitted)
{
    struct schedule_step *t = s->step;
    uint32_t logits = q->logits_everywhere ? n : n == left(q);
    t->picks[t->n_picks++] = (struct schedule_pick){index, n, admitted};
    t->rows += n;
    t->logits += logits;
    t->blocks_taken += blocks;
    s->rows_left -= n;
    s->logits_left -= logits;
    rank_of(s, q)->free -= blocks;
    rank_of(s, q)->picks++;
}

/* The list stays in order: youngest first. */
static void add_preempted(struct schedule_step *t, uint32_t index)
{
    uint32_t at = t->n_preempted++;
    for (; at && t->preempted[at - 1] < index; at--)
        t->preempted[at] = t->preempted[at - 1];
    t->preempted[at] = index;
}

/* Preempts the youngest sequence of the same rank that is younger than `index`; false when there is
 * none. Sequences younger than the decode in turn have not been picked yet. */
static bool preempt_for(struct state *s, uint32_t index)
{
    uint32_t rank = s->queue->running[index].rank;
    struct rank *r = &s->ranks[rank];
    while (r->youngest > index + 1) {
        uint32_t v = r->youngest - 1;
        const struct schedule_seq *q = &s->queue->running[v];
        r->youngest = v;
        if (q->rank != rank || q->pinned || q->held || is_expired(s, q))
            continue;
        add_preempted(s->step, v);
        r->free += q->idle_blocks;
        r->running--;
        s->running--;
        return true;
    }
    return false;
}

static uint32_t missing(const struct state *s, const struct schedule_seq *q, uint32_t n)
{
    uint32_t need = blocks_for(s, q->computed + n);
    return need > q->blocks ? need - q->blocks : 0;
}

static void pick_decodes(struct state *s)
{
    for (uint32_t i = 0; i < s->queue->n_running && s->rows_left && s->logits_left; i++) {
        const struct schedule_seq *q = &s->queue->running[i];
        if (!may_run(s, i) || left(q) != 1)
            continue;
        uint32_t blocks = missing(s, q, 1);
        const struct rank *r = rank_of(s, q);
        while (blocks > r->free && preempt_for(s, i))
            ;
        if (blocks <= r->free)
            pick(s, q, i, 1, blocks, false);
    }
}

/* The longest chunk of q, at most n, that so many free blocks allow. */
static uint32_t fit(const struct state *s, const struct schedule_seq *q, uint32_t free, uint32_t n)
{
    uint64_t room = (uint64_t)(q->blocks + free) * s->limits->block_tokens;
    if (room <= q->computed)
        return 0;
    return room - q->computed < n ? (uint32_t)(room - q->computed) : n;
}

static bool is_picked(const struct state *s, uint32_t index, bool admitted)
{
    for (uint32_t i = 0; i < s->step->n_picks; i++)
        if (s->step->picks[i].index == index && s->step->picks[i].admitted == admitted)
            return true;
    return false;
}

static bool begun_waits(const struct state *s, uint32_t index)
{
    return may_run(s, index) && left(&s->queue->running[index]) > 1 && !is_picked(s, index, false);
}

/* The shortest begun prompt that is short and not picked yet; n_running: there is none. */
static uint32_t shortest_begun(const struct state *s)
{
    uint32_t best = s->queue->n_running, most = s->brief;
    for (uint32_t i = 0; i < s->queue->n_running; i++) {
        uint32_t n = left(&s->queue->running[i]);
        if (n > most || (n == most && best < s->queue->n_running) || !begun_waits(s, i))
            continue;
        best = i;
        most = n;
    }
    return best;
}

/* Short prompts that were begun, of at most `rows`; the rows that are left of these. They never
 * preempt: what does not fit is left to pick_begun. */
static uint32_t pick_begun_short(struct state *s, uint32_t rows)
{
    uint32_t all = s->rows_left - rows, i;
    s->rows_left = rows;
    while (s->rows_left && (i = shortest_begun(s)) < s->queue->n_running) {
        const struct schedule_seq *q = &s->queue->running[i];
        uint32_t n = fit(s, q, rank_of(s, q)->free, chunk(s, q));
        if (!n)
            break;
        pick(s, q, i, n, missing(s, q, n), false);
    }
    rows = s->rows_left;
    s->rows_left += all;
    return rows;
}

static void pick_begun(struct state *s)
{
    for (uint32_t i = 0; i < s->queue->n_running && s->rows_left; i++) {
        const struct schedule_seq *q = &s->queue->running[i];
        if (!begun_waits(s, i))
            continue;
        uint32_t n = chunk(s, q);
        if (!n)
            continue;
        const struct rank *r = rank_of(s, q);
        while (!fit(s, q, r->free, n) && !r->picks && preempt_for(s, i))
            ;
        n = fit(s, q, r->free, n);
        if (n)
            pick(s, q, i, n, missing(s, q, n), false);
    }
}

/* Blocks that begun prompts will still take: they are promised. */
static void promise(struct state *s)
{
    for (uint32_t r = 0; r < SCHEDULE_RANKS_MAX; r++)
        s->ranks[r].owed = 0;
    for (uint32_t i = 0; i < s->queue->n_running; i++) {
        const struct schedule_seq *q = &s->queue->running[i];
        if (!is_expired(s, q) && left(q) > 1)
            rank_of(s, q)->owed += missing(s, q, left(q));
    }
    for (uint32_t i = 0; i < s->step->n_picks; i++) {
        const struct schedule_seq *q = &s->queue->running[s->step->picks[i].index];
        uint32_t now = missing(s, q, s->step->picks[i].tokens), *owed = &rank_of(s, q)->owed;
        *owed -= left(q) > 1 && now < *owed ? now : 0;
    }
}

/* Rows for a new sequence, 0 when it has to wait; *blocks are taken from the free ones. What its
 * later chunks will take is owed. */
static uint32_t admit(struct state *s, const struct schedule_seq *q, uint32_t *blocks)
{
    struct rank *r = rank_of(s, q);
    uint32_t n = chunk(s, q);
    uint32_t whole = missing(s, q, left(q)) + q->idle_blocks;
    uint64_t reserve = r->owed + (uint64_t)s->limits->spare_blocks * r->running;
    if (!n)
        return 0;
    if (whole + (r->running ? reserve : 0) <= r->free) {
        *blocks = q->pinned ? whole : missing(s, q, n) + q->idle_blocks;
        r->owed += whole - *blocks;
        return n;
    }
    if (r->running || q->pinned || q->idle_blocks > r->free)
        return 0;
    n = fit(s, q, r->free - q->idle_blocks, n);
    *blocks = missing(s, q, n) + q->idle_blocks;
    return n;
}

/* New prompts that are short, of at most `rows` together, in order of arrival: admitted, or only
 * counted. Blocks and places of those that they overtake are left to these. Returns their rows. */
static uint32_t new_short(struct state *s, uint32_t rows, bool counted)
{
    uint32_t passed[SCHEDULE_RANKS_MAX] = {0}, n_passed = 0, all = s->rows_left, given = 0;
    for (uint32_t i = 0; i < s->queue->n_waiting && given < rows; i++) {
        const struct schedule_seq *q = &s->queue->waiting[i];
        const struct rank *r = rank_of(s, q);
        uint32_t whole = missing(s, q, left(q)) + q->idle_blocks, blocks = 0, n = rows - given;
        uint64_t kept = passed[q->rank];
        if (q->held || is_expired(s, q))
            continue;
        kept += r->running ? r->owed + (uint64_t)s->limits->spare_blocks * r->running : 0;
        if (s->running + n_passed >= s->limits->max_running || whole + kept > r->free)
            break;
        if (left(q) > s->brief || counted) {
            passed[q->rank] += whole;
            n_passed++;
            given += left(q) > s->brief ? 0 : left(q) < n ? left(q) : n;
            continue;
        }
        s->rows_left = n;
        n = admit(s, q, &blocks);
        s->rows_left = all - given;
        if (!n)
            break;
        pick(s, q, i, n, blocks, true);
        rank_of(s, q)->running++;
        s->running++;
        given += n;
    }
    return given;
}

/* Drafts of the decodes that were picked: of what nobody else needs. */
static void pick_drafts(struct state *s)
{
    struct schedule_step *t = s->step;
    uint32_t logits = s->logits_left / 2;
    promise(s);
    for (uint32_t i = 0; i < t->n_picks && !t->n_preempted; i++) {
        const struct schedule_seq *q = &s->queue->running[t->picks[i].index];
        struct rank *r = rank_of(s, q);
        uint32_t n = q->drafts < logits ? q->drafts : logits, have = missing(s, q, 1), more;
        n = n < s->rows_left ? n : s->rows_left;
        more = missing(s, q, 1 + n) - have;
        if (more && more + r->owed + (uint64_t)s->limits->spare_blocks * r->running > r->free) {
            n = (q->blocks + have) * s->limits->block_tokens - q->computed - 1;
            more = 0;
        }
        t->picks[i].tokens += n;
        t->rows += n;
        t->logits += n;
        t->blocks_taken += more;
        s->rows_left -= n;
        s->logits_left -= n;
        r->free -= more;
        logits -= n;
    }
}

/* So many of the rows are kept for new prompts that are short. */
static void pick_new(struct state *s, uint32_t short_rows)
{
    promise(s);
    if (short_rows)
        new_short(s, short_rows, false);
    for (uint32_t i = 0; i < s->queue->n_waiting && s->rows_left; i++) {
        const struct schedule_seq *q = &s->queue->waiting[i];
        if (q->held || is_expired(s, q) || is_picked(s, i, true))
            continue;
        uint32_t blocks = 0;
        if (s->running >= s->limits->max_running)
            return;
        uint32_t n = admit(s, q, &blocks);
        if (!n)
            return; /* first come, first served: nobody overtakes */
        pick(s, q, i, n, blocks, true);
        rank_of(s, q)->running++;
        s->running++;
    }
}

/* Begun prompts and new ones in the rows that decodes left. */
static void pick_prompts(struct state *s)
{
    uint32_t oldest = 0, rows = 0;
    while (oldest < s->queue->n_running && !begun_waits(s, oldest))
        oldest++;
    if (oldest < s->queue->n_running && left(&s->queue->running[oldest]) > s->rows_left) {
        s->brief = left(&s->queue->running[oldest]) / 2;
        rows = pick_begun_short(s, s->rows_left / 2);
        promise(s);
        rows = s->step->n_preempted ? 0 : new_short(s, rows, true);
    }
    s->rows_left -= rows;
    pick_begun(s);
    s->rows_left += rows;
    if (!s->step->n_preempted)
        pick_new(s, rows);
}

static void find_expired(struct state *s)
{
    for (uint32_t i = 0; i < s->queue->n_running; i++)
        if (is_expired(s, &s->queue->running[i]))
            s->step->expired[s->step->n_expired++] = (struct schedule_pick){.index = i};
    for (uint32_t i = 0; i < s->queue->n_waiting; i++)
        if (is_expired(s, &s->queue->waiting[i]))
            s->step->expired[s->step->n_expired++] =
                (struct schedule_pick){.index = i, .admitted = true};
}

void schedule(const struct schedule_limits *limits, const struct schedule_queue *queue,
              const struct schedule_kv *kv, uint64_t now_ns, struct schedule_step *step)
{
    ASSERT(limits->step_tokens && limits->logit_rows && limits->block_tokens);
    struct state s = {.limits = limits,
                      .queue = queue,
                      .step = step,
                      .now_ns = now_ns,
                      .rows_left = limits->step_tokens,
                      .logits_left = limits->logit_rows,
                      .running = queue->n_running};
    for (uint32_t r = 0; r < SCHEDULE_RANKS_MAX; r++) {
        s.ranks[r].free = kv->free_blocks[r];
        s.ranks[r].youngest = queue->n_running;
    }
    for (uint32_t i = 0; i < queue->n_running; i++)
        rank_of(&s, &queue->running[i])->running++;
    step->n_picks = step->n_preempted = step->n_expired = 0;
    step->rows = step->logits = step->blocks_taken = 0;
    find_expired(&s);
    pick_decodes(&s);
    pick_drafts(&s);
    pick_prompts(&s);
}
