/* models_int.h: what models.c (who wants what, fetches) and offer.c (serving peers) share. */
#pragma once
#include "agent/models.h"
#include "agent/secrets.h"
#include "agent/store.h"
#include "lib/fetch/fetch.h"
#include "lib/kube/cache.h"

#define SECRET_AGE_NS (60 * NS_PER_S)
#define SECRET_KEY    "secret" /* of <infd>-peer */

struct model_fetch { /* one model that is not here yet */
    struct models *m;
    char key[SOURCE_KEY_MAX];
    char *ns, *infd; /* whose token and peer secret */
    char *source, *sha256, *endpoint;
    /* who else has it, asked for before each try */
    bool peers_asked, peers_known;
    size_t n_peers;
    char *peer_urls[FETCH_PEERS_MAX], *peer_names[FETCH_PEERS_MAX];
    char peers_sha256[SHA_HEX]; /* under which they offer it */
    struct fetch *fetch;        /* NULL: waiting for secrets, or for the next try */
    struct fetch_progress seen;
    bool room_asked, failed;
    struct err why; /* failed, or waits for */
    unsigned failures;
    uint64_t retry_at_ns, told_at_ns, started_ns;
    int64_t told_percent;
    struct model_fetch *prev, *next;
};

struct offer; /* a peer's request that waits for Secrets */

struct models {
    struct agent *a;
    struct store *store; /* NULL: no folder for a cache (why) */
    char why_no_store[512];
    struct kube_cache *infds;
    struct kube_cache *mine; /* this node's NodeInventory */
    struct secrets *secrets;
    struct model_fetch *fetches;
    struct offer *offers;
    uv_async_t *wake;
    uv_timer_t *timer;
    unsigned fetched; /* models brought here by this process */
    uint64_t offered_bytes;
};

/* peers.c: asks for f's peers; models_look when they are known. */
void peers_ask(struct model_fetch *f);
void peers_forget(struct model_fetch *f);
void models_look(struct models *m); /* goes on with what waits */

/* offer.c */
void offers_try(struct models *m); /* Secrets have come */
