#include "lib/decide/replicas.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct state {
    const float *load;
    uint32_t experts, ranks, room, fixed;
    uint64_t *at;     /* [experts] ranks that have it */
    uint32_t *copies; /* [experts] */
    bool *full;       /* [experts] no rank can have another copy */
    uint32_t free[REPLICAS_RANKS_MAX];
};

static double share(const struct state *s, uint32_t expert)
{
    return (double)s->load[expert] / s->copies[expert];
}

static void rank_loads(const struct state *s, double loads[REPLICAS_RANKS_MAX])
{
    memset(loads, 0, REPLICAS_RANKS_MAX * sizeof *loads);
    for (uint32_t x = 0; x < s->experts; x++)
        for (uint64_t at = s->at[x]; at; at &= at - 1)
            loads[__builtin_ctzll(at)] += share(s, x);
}

/* The least loaded rank with room that lacks the expert, or `ranks`. */
static uint32_t rank_for(const struct state *s, uint32_t expert)
{
    double loads[REPLICAS_RANKS_MAX];
    uint32_t best = s->ranks;
    rank_loads(s, loads);
    for (uint32_t r = 0; r < s->ranks; r++)
        if (s->free[r] && !(s->at[expert] >> r & 1) && (best == s->ranks || loads[r] < loads[best]))
            best = r;
    return best;
}

/* One more copy; false when no expert can have one. */
static bool add_one(struct state *s)
{
    for (;;) {
        uint32_t best = s->experts;
        for (uint32_t x = 0; x < s->experts; x++)
            if (!s->full[x] && s->load[x] > 0 &&
                (best == s->experts || share(s, x) > share(s, best)))
                best = x;
        if (best == s->experts)
            return false;
        uint32_t rank = rank_for(s, best);
        s->full[best] = rank == s->ranks; /* room only gets less */
        if (s->full[best])
            continue;
        s->at[best] |= 1ull << rank;
        s->copies[best]++;
        s->free[rank]--;
        return true;
    }
}

/* The fixed places of all ranks. */
static void keep(struct state *s, const uint32_t *now)
{
    for (uint32_t r = 0; r < s->ranks; r++) {
        s->free[r] -= s->fixed;
        for (uint32_t i = 0; i < s->fixed; i++) {
            uint32_t x = now[(size_t)r * s->room + i];
            if (x >= s->experts || s->at[x] >> r & 1)
                continue;
            s->at[x] |= 1ull << r;
            s->copies[x]++;
        }
    }
}

/* Chosen experts of one rank into its places: those that are there stay. */
static void settle(const struct state *s, const uint8_t *home, uint32_t rank, const uint32_t *now,
                   uint32_t *places)
{
    for (uint32_t i = 0; i < s->room; i++) {
        uint32_t x = now ? now[i] : REPLICAS_NONE;
        places[i] = x < s->experts && home[x] != rank && s->at[x] >> rank & 1 ? x : REPLICAS_NONE;
    }
    for (uint32_t x = 0; x < s->experts; x++) {
        uint32_t free = s->room;
        bool there = home[x] == rank || !(s->at[x] >> rank & 1);
        for (uint32_t i = 0; i < s->room && !there; i++) {
            there = places[i] == x;
            if (places[i] == REPLICAS_NONE && free == s->room && i >= s->fixed)
                free = i;
        }
        if (!there && free < s->room)
            places[free] = x;
    }
}

static int check(const float *load, const uint8_t *home, uint32_t experts, uint32_t ranks,
                 struct err *e)
{
    if (ranks < 1 || ranks > REPLICAS_RANKS_MAX)
        return err_set(e, EINVAL, "replicas over %u ranks: 1 to %u", ranks, REPLICAS_RANKS_MAX);
    for (uint32_t x = 0; x < experts; x++)
        if (home[x] >= ranks || !(load[x] >= 0) || !isfinite(load[x]))
            return err_set(e, EINVAL, "expert %u has no usable load or home", x);
    return 0;
}

int replicas_choose(const float *load, const uint8_t *home, uint32_t experts, uint32_t ranks,
                    uint32_t room, uint32_t fixed, const uint32_t *now, uint32_t *places,
                    struct err *e)
{
    int rc = check(load, home, experts, ranks, e);
    if (rc)
        return rc;
    ASSERT(fixed <= room && (now || !fixed));
    struct state s = {
        .load = load, .experts = experts, .ranks = ranks, .room = room, .fixed = fixed};
    s.at = xcalloc(experts, sizeof *s.at);
    s.copies = xcalloc(experts, sizeof *s.copies);
    s.full = xcalloc(experts, sizeof *s.full);
    for (uint32_t x = 0; x < experts; x++) {
        s.at[x] = 1ull << home[x];
        s.copies[x] = 1;
    }
    for (uint32_t r = 0; r < ranks; r++)
        s.free[r] = room;
    if (fixed)
        keep(&s, now);
    for (uint32_t i = 0; i < ranks * room && add_one(&s); i++)
        continue;
    for (uint32_t r = 0; r < ranks; r++)
        settle(&s, home, r, now ? now + (size_t)r * room : NULL, places + (size_t)r * room);
    free(s.at);
    free(s.copies);
    free(s.full);
    return 0;
}

uint32_t replicas_cover(const uint8_t *home, uint32_t experts, uint32_t ranks, uint32_t room,
                        uint32_t *places)
{
    uint32_t count[REPLICAS_RANKS_MAX] = {0}, turn[REPLICAS_RANKS_MAX] = {0}, most = 0;
    if (ranks < 2 || ranks > REPLICAS_RANKS_MAX)
        return 0;
    for (int write = 0; write < 2; write++) {
        memset(count, 0, sizeof count);
        memset(turn, 0, sizeof turn);
        for (uint32_t x = 0; x < experts; x++) {
            uint32_t from = home[x], to = (from + 1 + turn[from]++ % (ranks - 1)) % ranks;
            if (write)
                places[(size_t)to * room + count[to]] = x;
            count[to]++;
            most = count[to] > most ? count[to] : most;
        }
        if (most > room)
            return 0;
        for (uint32_t i = 0; !write && i < ranks * room; i++)
            places[i] = REPLICAS_NONE;
    }
    return most;
}

double replicas_imbalance(const float *load, const uint8_t *home, uint32_t experts, uint32_t ranks,
                          uint32_t room, const uint32_t *places)
{
    uint32_t *copies = xcalloc(experts, sizeof *copies);
    double most = 0, total = 0, sum[REPLICAS_RANKS_MAX] = {0};
    for (uint32_t x = 0; x < experts; x++)
        copies[x] = 1;
    for (uint32_t i = 0; i < ranks * room; i++)
        if (places[i] < experts)
            copies[places[i]]++;
    for (uint32_t x = 0; x < experts; x++)
        sum[home[x]] += (double)load[x] / copies[x];
    for (uint32_t i = 0; i < ranks * room; i++)
        if (places[i] < experts)
            sum[i / room] += (double)load[places[i]] / copies[places[i]];
    for (uint32_t r = 0; r < ranks; r++) {
        most = sum[r] > most ? sum[r] : most;
        total += sum[r];
    }
    free(copies);
    return total > 0 ? most * ranks / total : 1;
}
