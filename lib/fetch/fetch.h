/* fetch.h: brings one model into a folder: from peers that have it, else from its source.
 *
 * A fetch has a thread of its own, and a few more while a file comes in pieces. The owner (one
 * thread) starts it, is woken by notify (called on the fetch's threads: it must only wake the
 * owner), polls, answers the question for room, and frees it when it has ended. Files appear under
 * their final names only when their digest is right; a killed fetch goes on from its .part files
 * (part.h). Failures of the network are tried again with a back-off while there is progress;
 * what asking again can't change ends it at once. */
#pragma once
#include "lib/fetch/set.h"

#define FETCH_PEERS_MAX 8

struct fetch_peer {
    const char *url;    /* "http://10.0.0.2:8091" */
    const char *name;   /* of its node */
    const char *secret; /* bearer */
};

struct fetch_config {     /* copied */
    const char *dir;      /* exists */
    const char *source;   /* spec.model.source: hf or https; file sources come from peers only */
    const char *sha256;   /* the pin; NULL or "": none */
    const char *endpoint; /* of the Hub; NULL: https://huggingface.co */
    const char *token, *ca_file;
    const struct fetch_peer *peers;
    size_t n_peers;
    const char *peers_sha256; /* under which peers offer it; NULL: as sha256 */
    uint64_t chunk_bytes;     /* 0: 32 MiB */
    unsigned connections;     /* to the source; 0: 4 */
    unsigned retry_ms;        /* first back-off; 0: 500 */
    unsigned tries;           /* failures in a row without progress; 0: 8 */
    void (*notify)(void *ctx);
    void *ctx;
};

enum fetch_state {
    FETCH_ASKING,     /* which files, how large */
    FETCH_WANTS_ROOM, /* waits for fetch_room */
    FETCH_RUNNING,
    FETCH_DONE,
    FETCH_FAILED,
};

struct fetch_progress {
    enum fetch_state state;
    uint64_t bytes, done;             /* of all files; done includes what was there before */
    uint64_t from_peers, from_source; /* bytes received by this fetch */
    double bytes_per_s;               /* since the first byte */
    char from[160];                   /* "node-b, node-c", "the source" */
    struct err err; /* FETCH_FAILED; before it: the trouble being retried, or code 0 */
    bool permanent; /* trying again later won't help by itself */
};

struct fetch;
int fetch_start(const struct fetch_config *c, struct fetch **out, struct err *e) MUST_CHECK;
void fetch_poll(struct fetch *f, struct fetch_progress *out); /* any thread */
/* The answer to FETCH_WANTS_ROOM. denied: why there is none (copied), NULL: there is. */
void fetch_room(struct fetch *f, const struct err *denied);
/* After FETCH_DONE: what was fetched, digests known. */
const struct set *fetch_set(const struct fetch *f);
/* Stops what runs, waits for its threads, frees. What is on disk stays. */
void fetch_free(struct fetch *f);
