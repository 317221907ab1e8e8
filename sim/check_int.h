/* check_int.h: what the checks of every write (check.c) know, for the checks of a settled state
 * (settle.c). */
#pragma once
#include "sim/sim.h"

enum { PREFILL, DECODE, UNIFIED, STANDBY, ROLES };
extern const char *const role_names[ROLES];

#define HIST_MAX 64
struct moment {
    uint64_t at;
    int64_t v;
};
/* Values of a number over time, the latest HIST_MAX. */
struct hist {
    struct moment v[HIST_MAX];
    unsigned n;
};
void hist_set(struct hist *h, int64_t v);

struct deploy {
    struct deploy *next;
    char *name, *uid;
    bool gone;               /* deleted or being deleted */
    struct hist want[ROLES]; /* groups, by its WorkerPool */
    struct hist said[ROLES]; /* replicas in its own spec; -1: absent */
    struct hist lost[ROLES]; /* ready groups lost by accident: a running number */
    struct hist unavailable, surge, generation;
    uint64_t losses;
    unsigned late; /* made for it when it was gone */
};

struct vpod {
    struct vpod *next;
    char name[64], uid[40], owner[40], group[64], revision[20], replaces[64];
    int role; /* -1: none */
    bool first, started, deleting, failed, at_role, ready;
    bool whole; /* all pods of its group were there once */
    bool gated; /* no node and no device yet */
    int64_t size, epoch, failed_epoch;
    uint64_t ready_ns; /* since when */
};

struct deploy *check_deploy(const char *uid);
struct vpod *check_pods(void);
int64_t check_groups(const struct deploy *d, int role, bool ready);
