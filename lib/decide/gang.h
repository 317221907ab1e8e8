/* gang.h: all-or-nothing placement of groups of several pods where the API server has no API for
 * it. Pods of such groups are made with a scheduling gate. One group at a time in a namespace has
 * its gates lifted, oldest first; it keeps the turn until each of its pods has a node. A group that
 * is not placed as a whole within GANG_PATIENCE_NS is taken back (deleted; made again with a
 * back-off, at the end of the line), so that two half-placed groups never wait for each other's
 * nodes. Pure: what it needs to know is in the pods themselves. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GANG_PATIENCE_NS (60ull * 1000000000)

struct gang_group {
    const char *name;             /* unique in its namespace */
    uint64_t created_ns;          /* of its oldest pod */
    uint64_t lifted_ns;           /* when its first gate was lifted; 0: not, or not known */
    uint64_t not_before_ns;       /* end of its back-off */
    int32_t size;                 /* pods that it should have */
    int32_t there, gated, placed; /* pods that exist; carry the gate; have a node */
};

struct gang_turn {
    const char *group;      /* whose gates are to be lifted now; NULL: nobody's */
    const char *take_back;  /* a group that was not placed in time; NULL: none */
    uint64_t look_again_ns; /* nothing changes before then by time alone; 0: never */
};

/* Groups of one namespace: whole ones only (none of their pods failed or is being deleted). */
struct gang_turn gang_next(const struct gang_group *groups, size_t n, uint64_t now_ns);
