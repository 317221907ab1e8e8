/* One file: its pieces over several connections, its digest while they come. */
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/fetch/fetch_int.h"
#include "lib/fetch/source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define WORKERS_MAX 8
#define WAIT_MS     250

struct job { /* one file being fetched */
    struct fetch *f;
    struct set_file *file;
    struct part *part;
    const struct remote_info *info; /* at the source; NULL while peers are asked */
    pthread_mutex_t lock;
    atomic_bool failed;
    struct err err;              /* of the source: why its threads ended */
    unsigned running, fruitless; /* failures in a row, over all threads */
};

struct piece { /* a chunk on its way */
    struct job *j;
    uint64_t at;
    bool peer;
    struct err err;
};

struct worker {
    struct job *j;
    struct origin *peer; /* NULL: the source */
    pthread_t thread;
};

static int take(struct str data, void *ctx)
{
    struct piece *p = ctx;
    int r = part_write(p->j->part, p->at, data, &p->err);
    if (r)
        return r;
    p->at += data.n;
    fetch_received(p->j->f, data.n, p->peer);
    return fetch_stopped(p->j->f);
}

static int read_chunk(struct worker *w, uint64_t offset, uint64_t len, unsigned *retry_after_ms,
                      struct err *e)
{
    struct fetch *f = w->j->f;
    struct piece p = {.j = w->j, .at = offset, .peer = w->peer != NULL};
    CLEANUP(free_charp)
    char *url = w->peer ? fetch_peer_url(f, w->peer, w->j->file->name)
                        : fetch_source_url(f, w->j->file->name);
    struct remote r = {.url = url,
                       .token = w->peer ? w->peer->secret : f->token,
                       .ca_file = f->ca_file,
                       .peer = w->peer != NULL,
                       .stop = &f->stop};
    struct remote_info at_peer = {.bytes = w->j->file->bytes, .ranges = true};
    if (w->peer)
        snprintf(at_peer.located, sizeof at_peer.located, "%s", url);
    int rc =
        remote_read(&r, w->peer ? &at_peer : w->j->info, offset, len, take, &p, retry_after_ms, e);
    if (rc)
        fetch_lost(f, p.at - offset);
    if (p.err.code && e)
        *e = p.err;
    return p.err.code ? -p.err.code : rc;
}

/* Whether to go on after a failure, having waited. */
static bool try_again(struct worker *w, int code, const struct err *e, unsigned retry_after_ms)
{
    struct job *j = w->j;
    pthread_mutex_lock(&j->lock);
    unsigned n = ++j->fruitless;
    pthread_mutex_unlock(&j->lock);
    if (w->peer) {
        atomic_store(&w->peer->bad, true);
        log_warn("a peer can't give a model; others are asked", LS("node", w->peer->name), LERR(e));
        return false;
    }
    if (remote_permanent(code) || code == -ENOSPC || n >= j->f->tries || fetch_stopped(j->f)) {
        pthread_mutex_lock(&j->lock);
        if (!j->err.code)
            j->err = *e;
        atomic_store(&j->failed, true);
        pthread_mutex_unlock(&j->lock);
        return false;
    }
    fetch_trouble(j->f, e);
    fetch_sleep(j->f, fetch_backoff_ms(j->f, n, retry_after_ms));
    return true;
}

static void *run(void *ctx)
{
    struct worker *w = ctx;
    struct job *j = w->j;
    struct err e = {0};
    size_t chunk;
    uint64_t offset, len;
    while (!fetch_stopped(j->f) && !atomic_load(&j->failed) &&
           part_claim(j->part, &chunk, &offset, &len)) {
        unsigned retry_after_ms = 0;
        int rc = read_chunk(w, offset, len, &retry_after_ms, &e);
        if (rc == 0) {
            part_done(j->part, chunk);
            pthread_mutex_lock(&j->lock);
            j->fruitless = 0;
            pthread_mutex_unlock(&j->lock);
            fetch_trouble(j->f, NULL);
            continue;
        }
        part_unclaim(j->part, chunk);
        if (!try_again(w, rc, &e, retry_after_ms))
            break;
    }
    pthread_mutex_lock(&j->lock);
    j->running--;
    pthread_mutex_unlock(&j->lock);
    part_wake(j->part);
    return NULL;
}

/* One connection a peer (two to an only one), or `connections` to the source. */
static size_t start_workers(struct job *j, struct worker *w)
{
    struct fetch *f = j->f;
    size_t n = 0, good = 0;
    for (size_t i = 0; i < f->n_peers && !f->use_source; i++)
        good += !atomic_load(&f->peers[i].bad);
    for (size_t i = 0; i < f->n_peers && good; i++)
        for (int k = 0; k < (good == 1 ? 2 : 1) && n < WORKERS_MAX; k++)
            if (!atomic_load(&f->peers[i].bad))
                w[n++] = (struct worker){.j = j, .peer = &f->peers[i]};
    size_t to_source = j->info && j->info->ranges ? f->connections : 1;
    for (size_t i = 0; i < to_source && !good && j->info && n < WORKERS_MAX; i++)
        w[n++] = (struct worker){.j = j};
    uint64_t chunks = part_bytes(j->part) / f->chunk_bytes + 1;
    n = n < chunks ? n : (size_t)chunks;
    j->running = (unsigned)n;
    size_t started = 0;
    for (; started < n; started++)
        if (pthread_create(&w[started].thread, NULL, run, &w[started]))
            break;
    pthread_mutex_lock(&j->lock);
    j->running -= (unsigned)(n - started);
    pthread_mutex_unlock(&j->lock);
    return started;
}

static unsigned running(struct job *j)
{
    pthread_mutex_lock(&j->lock);
    unsigned n = j->running;
    pthread_mutex_unlock(&j->lock);
    return n;
}

/* A round of workers; hashes the prefix meanwhile. *hashed moves on. */
static int round_of(struct job *j, struct sha *h, uint64_t *hashed, struct err *e)
{
    struct worker w[WORKERS_MAX];
    size_t n = start_workers(j, w);
    int r = 0;
    for (;;) {
        uint64_t there = part_wait(j->part, *hashed, WAIT_MS);
        if (there > *hashed && !r) {
            r = sha_add_file(h, part_fd(j->part), *hashed, there, e);
            *hashed = there;
        } else if (running(j) == 0) {
            there = part_wait(j->part, *hashed, 0);
            if (there <= *hashed || r)
                break;
        }
    }
    for (size_t i = 0; i < n; i++)
        pthread_join(w[i].thread, NULL);
    return r;
}

static bool peers_left(const struct fetch *f)
{
    for (size_t i = 0; i < f->n_peers && !f->use_source; i++)
        if (!atomic_load(&f->peers[i].bad))
            return true;
    return false;
}

static int rounds(struct job *j, struct sha *h, struct err *e)
{
    struct fetch *f = j->f;
    uint64_t hashed = 0;
    while (hashed < j->file->bytes) {
        if (!peers_left(f) && !j->info)
            return err_set(e, EHOSTUNREACH, "no peer gives %s any more", j->file->name);
        int r = round_of(j, h, &hashed, e);
        if (r)
            return r;
        if (fetch_stopped(f))
            return err_set(e, ECANCELED, "stopped");
        if (j->err.code) {
            *e = j->err;
            return -e->code;
        }
    }
    return 0;
}

static int verify(struct job *j, char hex[SHA_HEX], struct err *e)
{
    if (*j->file->sha256 && strcmp(j->file->sha256, hex) != 0)
        return err_set(e, EBADMSG, "the sha256 of %s is %s, not %s as it should be", j->file->name,
                       hex, j->file->sha256);
    int r = part_finish(j->part, e);
    if (!r)
        memcpy(j->file->sha256, hex, SHA_HEX);
    return r;
}

int fetch_file(struct fetch *f, size_t i, const struct remote_info *info, struct err *e)
{
    struct set_file *file = &f->set.files[i];
    struct job j = {.f = f, .file = file, .info = info};
    char mark[300] = "", hex[SHA_HEX];
    if (*file->sha256)
        snprintf(mark, sizeof mark, "sha256:%s", file->sha256);
    else if (info && *info->etag)
        snprintf(mark, sizeof mark, "etag:%s", info->etag);
    int r = part_open(f->dir, file->name, file->bytes, f->chunk_bytes, mark, &j.part, e);
    if (r)
        return r;
    pthread_mutex_lock(&f->lock);
    f->p.done += part_resumed_bytes(j.part);
    pthread_mutex_unlock(&f->lock);
    if (part_resumed_bytes(j.part))
        log_info("fetch goes on where it was", LS("file", file->name),
                 LI("bytes", part_resumed_bytes(j.part)));
    pthread_mutex_init(&j.lock, NULL);
    struct sha *h = sha_new();
    r = rounds(&j, h, e);
    if (r)
        sha_free(h);
    else
        sha_end(h, hex);
    r = r ? r : verify(&j, hex, e);
    if (r == -EBADMSG || r == -ESTALE)
        part_discard(j.part);
    pthread_mutex_destroy(&j.lock);
    part_free(j.part);
    return r;
}
