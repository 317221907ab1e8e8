#include "lib/decide/gang.h"
#include "lib/decide/guard.h"

#include <string.h>

/* Some of its gates are lifted and not all of its pods have a node. */
static bool in_flight(const struct gang_group *g)
{
    return g->gated < g->there && g->placed < g->size;
}

/* All there, and none let go yet. */
static bool waiting(const struct gang_group *g)
{
    return g->there == g->size && g->gated == g->there;
}

static uint64_t since(const struct gang_group *g)
{
    return g->lifted_ns ? g->lifted_ns : g->created_ns;
}

static bool before(const struct gang_group *a, const struct gang_group *b)
{
    if (!b)
        return true;
    uint64_t ta = a->gated < a->there ? since(a) : a->created_ns;
    uint64_t tb = b->gated < b->there ? since(b) : b->created_ns;
    return ta != tb ? ta < tb : strcmp(a->name, b->name) < 0;
}

static void sooner(uint64_t *at, uint64_t t)
{
    if (!*at || t < *at)
        *at = t;
}

struct gang_turn gang_next(const struct gang_group *groups, size_t n, uint64_t now_ns)
{
    const struct gang_group *flying = NULL, *next = NULL;
    struct gang_turn t = {0};
    for (size_t i = 0; i < n; i++) {
        const struct gang_group *g = &groups[i];
        if (in_flight(g) && before(g, flying))
            flying = g;
        if (!waiting(g))
            continue;
        if (g->not_before_ns > now_ns)
            sooner(&t.look_again_ns, g->not_before_ns);
        else if (before(g, next))
            next = g;
    }
    if (flying && GUARD(gang_one_at_a_time)) {
        uint64_t end = since(flying) + GANG_PATIENCE_NS;
        if (now_ns >= end && GUARD(gang_take_back)) {
            t.take_back = flying->name;
            return t;
        }
        sooner(&t.look_again_ns, end);
        t.group = flying->gated ? flying->name : NULL;
        return t;
    }
    t.group = next ? next->name : NULL;
    return t;
}
