/* The ledger: what was sent to a worker and is not yet in its reports, so that requests between two
 * heartbeats see each other. Entries are in order of time. */
#include "lib/base/clock.h"
#include "router/fleet.h"

static void count(struct worker *w, const struct ledger_entry *e, int sign)
{
    struct route_worker *s = &w->d->state[w->slot];
    uint64_t prefill = e->prefill_tokens, kv = e->kv_tokens;
    s->sent_prefill_tokens += sign > 0 ? prefill : -prefill;
    s->sent_kv_tokens += sign > 0 ? kv : -kv;
    s->sent_prefills += sign > 0 ? e->prefill : -(uint32_t)e->prefill;
    s->sent_decodes += sign > 0 ? e->decode : -(uint32_t)e->decode;
}

void ledger_reserve(struct worker *w, struct ledger_entry *e, uint64_t now_ns)
{
    ASSERT(!e->worker);
    e->worker = w;
    e->at_ns = now_ns;
    e->next = NULL;
    e->prev = w->ledger_newest;
    if (e->prev)
        e->prev->next = e;
    else
        w->ledger_oldest = e;
    w->ledger_newest = e;
    count(w, e, 1);
}

void ledger_release(struct ledger_entry *e)
{
    struct worker *w = e->worker;
    if (!w)
        return;
    if (e->prev)
        e->prev->next = e->next;
    else
        w->ledger_oldest = e->next;
    if (e->next)
        e->next->prev = e->prev;
    else
        w->ledger_newest = e->prev;
    count(w, e, -1);
    e->worker = NULL;
    e->prev = e->next = NULL;
}

void ledger_reported(struct worker *w, uint64_t now_ns)
{
    while (w->ledger_oldest && w->ledger_oldest->at_ns + LEDGER_LAG_NS < now_ns)
        ledger_release(w->ledger_oldest);
}

void ledger_clear(struct worker *w)
{
    while (w->ledger_oldest)
        ledger_release(w->ledger_oldest);
}
