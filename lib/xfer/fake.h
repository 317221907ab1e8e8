/* fake.h: a transport in virtual time for the hand-over protocol: the state machines of the
 * product, on workers whose messages and pieces are lost, late, doubled, swapped, corrupted or cut
 * off, and which are killed at any step. Everything is a function of the seed. Used by tests; real
 * sockets are in loop.c.
 *
 * A worker (struct fake_node) lives in a slot (its host:port) with an incarnation; fake_kill ends
 * it, another may take the slot. What a dead worker sent may still arrive; its writes in place stop
 * with it. Ends of connections are noticed late but surely, unless cfg.deaf_p says that P may miss
 * them (then its lease must do). */
#pragma once
#include "lib/xfer/hand.h"

struct fake;
struct fake_node;

enum fake_fault {
    FAKE_NONE,
    FAKE_LOSE,
    FAKE_LATE,      /* by 1.5 leases */
    FAKE_VERY_LATE, /* by 5 leases: when all is over */
    FAKE_DOUBLE,    /* the copy comes up to 5 leases later */
    FAKE_SWAP,      /* behind the next ones */
    FAKE_CORRUPT,   /* a piece's data; messages are lost, as a frame's checksum fails */
    FAKE_CUT,       /* nothing gets through for 1.5 leases, one way or both */
    FAKE_FAULTS
};

struct fake_cfg {
    uint64_t seed, lease_ns;
    enum xfer_path path;
    double rate[FAKE_FAULTS]; /* probability of each at any send */
    uint64_t at;              /* and one scripted at this send (from 1); 0: none */
    enum fake_fault fault;
    bool deaf_p; /* half of the connection ends that D causes are not noticed by P */
};

/* What a worker's engine and memory do. */
struct fake_hooks {
    void (*event)(void *user, const struct xfer_event *e);
    uint64_t (*read)(void *user, const struct hand_push *p); /* P: a source piece leaves */
    void (*write)(void *user, uint64_t id, uint32_t block, uint32_t layer,
                  uint64_t word);        /* D: lands */
    void (*sent)(void *arg, uint64_t n); /* before the n-th message or piece goes out */
    void *arg;
};

struct fake *fake_new(const struct fake_cfg *cfg, const struct fake_hooks *hooks);
void fake_free(struct fake *f);
uint64_t fake_now_ns(const struct fake *f);
uint64_t fake_sends(const struct fake *f);
struct rng *fake_rng(struct fake *f);

/* A worker in a slot; user is what its hooks get. */
struct fake_node *fake_start(struct fake *f, uint32_t slot, uint64_t incarnation, uint32_t n_blocks,
                             uint32_t n_layers, void *user);
void fake_kill(struct fake *f, struct fake_node *n);
bool fake_alive(const struct fake_node *n);
struct hand_d *fake_d(struct fake_node *n);
struct hand_p *fake_p(struct fake_node *n);
/* D connects to (slot, incarnation), or takes the connection it has. */
struct hand_link *fake_link(struct fake *f, struct fake_node *d, uint32_t slot,
                            uint64_t incarnation);
/* Calls fn(user, a) at now + delay unless the worker is dead by then. */
void fake_after(struct fake *f, struct fake_node *n, uint64_t delay_ns,
                void (*fn)(void *user, uint64_t a), uint64_t a);
void fake_run(struct fake *f, uint64_t until_ns);
