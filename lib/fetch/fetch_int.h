/* fetch_int.h: what the files of a fetch share. */
#pragma once
#include "lib/fetch/fetch.h"
#include "lib/fetch/part.h"
#include "lib/fetch/remote.h"

#include <pthread.h>

struct origin { /* who can give bytes */
    char *url, *name, *secret;
    atomic_bool bad; /* a peer that failed */
};

struct fetch {
    char *dir, *source_text, *sha256, *endpoint, *token, *ca_file, *peers_sha256;
    struct origin peers[FETCH_PEERS_MAX];
    size_t n_peers;
    uint64_t chunk_bytes;
    unsigned connections, retry_ms, tries;
    void (*notify)(void *ctx);
    void *ctx;
    pthread_t thread;
    atomic_bool stop;
    struct set set;
    char commit[129];     /* of a repository */
    bool use_source;      /* peers are not asked (any more) */
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t answered;
    struct fetch_progress p;
    bool room_answered;
    struct err denied;
    uint64_t first_byte_ns, told_ns;
};

bool fetch_stopped(struct fetch *f);
void fetch_sleep(struct fetch *f, unsigned ms); /* or until it is stopped */
/* The trouble that is being retried; NULL: none any more. */
void fetch_trouble(struct fetch *f, const struct err *e);
void fetch_received(struct fetch *f, uint64_t bytes, bool from_peer);
void fetch_lost(struct fetch *f, uint64_t bytes); /* received, and to be fetched again */
void fetch_from(struct fetch *f, const char *from);
/* Back-off before try n (from 1); retry_after_ms: what the server asked for. */
unsigned fetch_backoff_ms(const struct fetch *f, unsigned n, unsigned retry_after_ms);

/* fetch_file.c: file i of f->set, whose size is known. Fills in its digest. -EBADMSG: the digest is
 * not what it should be (what came is discarded). */
int fetch_file(struct fetch *f, size_t i, const struct remote_info *info, struct err *e) MUST_CHECK;
/* URL of a file at the source. Heap. */
char *fetch_source_url(const struct fetch *f, const char *name);
char *fetch_peer_url(const struct fetch *f, const struct origin *peer, const char *name);
