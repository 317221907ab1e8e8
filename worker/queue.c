/* Who waits and who runs (engine_int.h). */
#include "worker/engine_int.h"

#include <stdlib.h>

void queue_push(struct engine *g, struct seq *s)
{
    s->state = SEQ_WAITING;
    s->prev = g->waiting_tail;
    s->next = NULL;
    *(s->prev ? &s->prev->next : &g->waiting) = s;
    g->waiting_tail = s;
    g->n_waiting++;
}

void queue_push_head(struct engine *g, struct seq *s)
{
    s->state = SEQ_WAITING;
    s->prev = NULL;
    s->next = g->waiting;
    *(s->next ? &s->next->prev : &g->waiting_tail) = s;
    g->waiting = s;
    g->n_waiting++;
}

void queue_remove(struct engine *g, struct seq *s)
{
    *(s->prev ? &s->prev->next : &g->waiting) = s->next;
    *(s->next ? &s->next->prev : &g->waiting_tail) = s->prev;
    s->prev = s->next = NULL;
    g->n_waiting--;
}

void running_add(struct engine *g, struct seq *s)
{
    if (g->n_running == g->cap_running) {
        g->cap_running = g->cap_running ? 2 * g->cap_running : 16;
        g->running = xrealloc(g->running, g->cap_running * sizeof *g->running);
    }
    uint32_t at = g->n_running++;
    for (; at && g->running[at - 1]->req->arrived_ns > s->req->arrived_ns; at--)
        g->running[at] = g->running[at - 1];
    g->running[at] = s;
    s->state = SEQ_RUNNING;
}

void running_remove(struct engine *g, struct seq *s)
{
    uint32_t i = 0;
    while (g->running[i] != s)
        i++;
    memmove(&g->running[i], &g->running[i + 1], (--g->n_running - i) * sizeof *g->running);
}

void request_link(struct engine *g, struct request *r)
{
    r->prev = NULL;
    r->next = g->requests;
    if (r->next)
        r->next->prev = r;
    g->requests = r;
}

void request_stop(struct engine *g, struct request *r)
{
    for (uint16_t i = 0; i < r->wire.n; i++) {
        struct seq *s = &r->seqs[i];
        if (s->state == SEQ_WAITING)
            queue_remove(g, s);
        else if (s->state == SEQ_RUNNING)
            running_remove(g, s);
        seq_release(s, g->kv);
        s->state = SEQ_ENDED;
    }
    r->n_open = 0;
    r->ended = true;
}

void request_unlink_free(struct engine *g, struct request *r)
{
    *(r->prev ? &r->prev->next : &g->requests) = r->next;
    if (r->next)
        r->next->prev = r->prev;
    request_free(r);
}
