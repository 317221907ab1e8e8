#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/rng.h"
#include "lib/fetch/fetch_int.h"
#include "lib/fetch/source.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define HUB            "https://huggingface.co"
#define NOTIFY_NS      (200 * NS_PER_MS)
#define BACKOFF_MAX_MS 30000

bool fetch_stopped(struct fetch *f)
{
    return atomic_load(&f->stop);
}

void fetch_sleep(struct fetch *f, unsigned ms)
{
    for (; ms && !fetch_stopped(f); ms -= ms < 50 ? ms : 50)
        usleep((ms < 50 ? ms : 50) * 1000);
}

unsigned fetch_backoff_ms(const struct fetch *f, unsigned n, unsigned retry_after_ms)
{
    struct rng rng = {clock_mono_ns()};
    uint64_t ms = f->retry_ms;
    for (unsigned i = 1; i < n && ms < BACKOFF_MAX_MS; i++)
        ms *= 2;
    ms = ms < BACKOFF_MAX_MS ? ms : BACKOFF_MAX_MS;
    ms = ms / 2 + rng_below(&rng, ms / 2 + 1);
    return retry_after_ms > ms ? retry_after_ms : (unsigned)ms;
}

static void tell(struct fetch *f)
{
    if (f->notify)
        f->notify(f->ctx);
}

void fetch_trouble(struct fetch *f, const struct err *e)
{
    pthread_mutex_lock(&f->lock);
    bool news = f->p.err.code != (e ? e->code : 0);
    f->p.err = e ? *e : (struct err){0};
    pthread_mutex_unlock(&f->lock);
    if (news)
        tell(f);
}

void fetch_received(struct fetch *f, uint64_t bytes, bool from_peer)
{
    uint64_t now = clock_mono_ns();
    pthread_mutex_lock(&f->lock);
    f->first_byte_ns = f->first_byte_ns ? f->first_byte_ns : now;
    *(from_peer ? &f->p.from_peers : &f->p.from_source) += bytes;
    f->p.done += bytes;
    bool news = now - f->told_ns > NOTIFY_NS;
    if (news) {
        f->told_ns = now;
        uint64_t ns = now - f->first_byte_ns;
        f->p.bytes_per_s = ns ? (double)(f->p.from_peers + f->p.from_source) * 1e9 / (double)ns : 0;
    }
    pthread_mutex_unlock(&f->lock);
    if (news)
        tell(f);
}

void fetch_lost(struct fetch *f, uint64_t bytes)
{
    pthread_mutex_lock(&f->lock);
    f->p.done -= bytes < f->p.done ? bytes : f->p.done;
    pthread_mutex_unlock(&f->lock);
}

void fetch_from(struct fetch *f, const char *from)
{
    pthread_mutex_lock(&f->lock);
    snprintf(f->p.from, sizeof f->p.from, "%s", from);
    pthread_mutex_unlock(&f->lock);
}

/* ---- URLs ---- */

static char *escaped(const char *name)
{
    char *e = curl_easy_escape(NULL, name, 0);
    ASSERT(e);
    char *out = xstrdup(e);
    curl_free(e);
    return out;
}

char *fetch_peer_url(const struct fetch *f, const struct origin *peer, const char *name)
{
    CLEANUP(free_charp) char *e = escaped(name);
    return xasprintf("%s/v1/internal/weights/%s/%s", peer->url, f->peers_sha256, e);
}

char *fetch_source_url(const struct fetch *f, const char *name)
{
    struct source s;
    if (source_parse(f->source_text, &s, NULL) || s.kind != SOURCE_HF)
        return xstrdup(f->source_text);
    CLEANUP(free_charp) char *e = escaped(name);
    const char *revision = *f->commit ? f->commit : s.revision;
    if (*s.path)
        return xasprintf("%s/%s/resolve/%s/%s", f->endpoint, s.repo, revision, s.path);
    return xasprintf("%s/%s/resolve/%s/%s", f->endpoint, s.repo, revision, e);
}

static struct remote at_source(const struct fetch *f, const char *url)
{
    return (struct remote){.url = url, .token = f->token, .ca_file = f->ca_file, .stop = &f->stop};
}

/* ---- which files ---- */

/* Runs fn until it succeeds, fails for good, or has failed too often. */
static int persist(struct fetch *f, int (*fn)(struct fetch *, void *, unsigned *, struct err *),
                   void *arg, struct err *e)
{
    for (unsigned n = 1;; n++) {
        unsigned retry_after_ms = 0;
        int r = fn(f, arg, &retry_after_ms, e);
        if (r == 0 || remote_permanent(r) || n >= f->tries || fetch_stopped(f)) {
            if (!r)
                fetch_trouble(f, NULL);
            return r;
        }
        fetch_trouble(f, e);
        fetch_sleep(f, fetch_backoff_ms(f, n, retry_after_ms));
    }
}

static int ask_listing(struct fetch *f, void *arg, unsigned *retry_after_ms, struct err *e)
{
    struct source *s = arg;
    struct buf text;
    CLEANUP(free_charp)
    char *url =
        xasprintf("%s/api/models/%s/revision/%s?blobs=true", f->endpoint, s->repo, s->revision);
    struct remote r = at_source(f, url);
    set_fini(&f->set);
    buf_init(&text, SET_MAX_TEXT);
    int rc = remote_text(&r, &text, retry_after_ms, e);
    if (!rc)
        rc = set_from_listing(buf_view(&text), f->source_text, &f->set, f->commit, e);
    buf_fini(&text);
    return rc;
}

struct probe {
    size_t i;
    struct remote_info info;
};

static int ask_info(struct fetch *f, void *arg, unsigned *retry_after_ms, struct err *e)
{
    struct probe *p = arg;
    (void)retry_after_ms;
    CLEANUP(free_charp) char *url = fetch_source_url(f, f->set.files[p->i].name);
    struct remote r = at_source(f, url);
    return remote_probe(&r, &p->info, e);
}

static int name_of_url(const struct source *s, struct set *set, struct err *e)
{
    struct str path = str_c(s->kind == SOURCE_HF ? s->path : s->text), name;
    (void)str_cut(path, '?', &name);
    for (size_t i = name.n; i > 0; i--) {
        if (name.p[i - 1] == '/') {
            name = (struct str){name.p + i, name.n - i};
            break;
        }
    }
    return set_add(set, name, UINT64_MAX, NULL, e);
}

/* From the source: names, then what the listing did not say about sizes. */
static int list_source(struct fetch *f, struct err *e)
{
    struct source s;
    int r = source_parse(f->source_text, &s, e);
    set_fini(&f->set);
    if (r)
        return r;
    r = s.kind == SOURCE_HF && !*s.path ? persist(f, ask_listing, &s, e)
                                        : name_of_url(&s, &f->set, e);
    for (size_t i = 0; i < f->set.n && !r; i++) {
        struct probe p = {.i = i};
        struct set_file *file = &f->set.files[i];
        if (file->bytes != UINT64_MAX)
            continue;
        r = persist(f, ask_info, &p, e);
        if (r)
            break;
        file->bytes = p.info.bytes;
        memcpy(file->sha256, p.info.sha256, sizeof file->sha256);
    }
    if (!r && f->set.n == 1 && *f->sha256)
        memcpy(f->set.files[0].sha256, f->sha256, SHA_HEX);
    return r;
}

static int ask_peer(struct fetch *f, struct origin *peer, struct err *e)
{
    struct buf text;
    struct set s;
    char hex[SHA_HEX];
    unsigned ignored;
    CLEANUP(free_charp)
    char *url = xasprintf("%s/v1/internal/weights/%s?manifest", peer->url, f->peers_sha256);
    struct remote r = {.url = url, .token = peer->secret, .peer = true, .stop = &f->stop};
    buf_init(&text, 1u << 20);
    int rc = remote_text(&r, &text, &ignored, e);
    CLEANUP(json_decrefp) json_t *o = rc ? NULL : json_parse(buf_view(&text), 1u << 20, 0, e);
    buf_fini(&text);
    if (rc || !o || (rc = set_from_json(o, &s, e)))
        return rc ? rc : -EINVAL;
    set_digest(&s, hex);
    if (strcmp(hex, f->peers_sha256) != 0) {
        set_fini(&s);
        return err_set(e, EBADMSG, "%s lists other files than %s", peer->name, f->peers_sha256);
    }
    set_fini(&f->set);
    f->set = s;
    return 0;
}

/* The first peer that answers tells which files there are; those that don't are left out. */
static bool list_peers(struct fetch *f)
{
    bool listed = false;
    char names[160] = "";
    struct err e;
    for (size_t i = 0; i < f->n_peers; i++) {
        if (!listed && ask_peer(f, &f->peers[i], &e)) {
            log_warn("a peer can't list a model", LS("node", f->peers[i].name), LERR(&e));
            atomic_store(&f->peers[i].bad, true);
            continue;
        }
        listed = true;
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", f->peers[i].name);
    }
    if (listed)
        fetch_from(f, names);
    return listed;
}

/* ---- the whole ---- */

static bool has_source(const struct fetch *f)
{
    struct source s;
    return source_parse(f->source_text, &s, NULL) == 0 && source_fetched(&s);
}

/* Asks the owner. What is on disk already (resumed parts) is counted by the owner too. */
static int ask_room(struct fetch *f, struct err *e)
{
    pthread_mutex_lock(&f->lock);
    f->p.bytes = set_bytes(&f->set);
    f->p.state = FETCH_WANTS_ROOM;
    f->room_answered = false;
    pthread_mutex_unlock(&f->lock);
    tell(f);
    pthread_mutex_lock(&f->lock);
    while (!f->room_answered && !fetch_stopped(f))
        pthread_cond_wait(&f->answered, &f->lock);
    struct err denied = f->denied;
    f->p.state = FETCH_RUNNING;
    pthread_mutex_unlock(&f->lock);
    if (fetch_stopped(f))
        return err_set(e, ECANCELED, "stopped");
    if (denied.code && e)
        *e = denied;
    return -denied.code;
}

/* A file that an earlier fetch finished. */
static bool there_already(struct fetch *f, struct set_file *file)
{
    struct stat st;
    char hex[SHA_HEX];
    CLEANUP(free_charp) char *path = xasprintf("%s/%s", f->dir, file->name);
    if (stat(path, &st) || (uint64_t)st.st_size != file->bytes || sha_file(path, hex, NULL))
        return false;
    if (!*file->sha256 || strcmp(hex, file->sha256) != 0) {
        unlink(path);
        return false;
    }
    pthread_mutex_lock(&f->lock);
    f->p.done += file->bytes;
    pthread_mutex_unlock(&f->lock);
    return true;
}

static int bring(struct fetch *f, size_t i, struct err *e)
{
    struct set_file *file = &f->set.files[i];
    struct probe p = {.i = i};
    if (there_already(f, file))
        return 0;
    if (!f->use_source) {
        int r = fetch_file(f, i, NULL, e);
        if (r != -EHOSTUNREACH || !has_source(f))
            return r;
        log_info("no peer is left; the source is asked", LS("file", file->name));
        f->use_source = true;
    }
    fetch_from(f, "the source");
    int r = persist(f, ask_info, &p, e);
    if (r)
        return r;
    if (p.info.bytes != file->bytes)
        return err_set(e, ESTALE, "%s has %llu bytes at the source, not %llu", file->name,
                       (unsigned long long)p.info.bytes, (unsigned long long)file->bytes);
    if (!*file->sha256)
        memcpy(file->sha256, p.info.sha256, sizeof file->sha256);
    return fetch_file(f, i, &p.info, e);
}

static int check_whole(const struct fetch *f, struct err *e)
{
    char hex[SHA_HEX];
    set_digest(&f->set, hex);
    if (!*f->sha256 || strcmp(hex, f->sha256) == 0)
        return 0;
    return err_set(e, EBADMSG, "the sha256 of %s is %s, not %s as spec.model.sha256 says",
                   f->source_text, hex, f->sha256);
}

static int attempt(struct fetch *f, struct err *e)
{
    bool listed = !f->use_source && f->n_peers && list_peers(f);
    int r = 0;
    if (!listed) {
        f->use_source = true;
        if (!has_source(f))
            return err_set(e, ENOENT, "%s is not on this node and no other node offers it",
                           f->source_text);
        r = list_source(f, e);
    }
    r = r ? r : ask_room(f, e);
    for (size_t i = 0; i < f->set.n && !r; i++)
        r = bring(f, i, e);
    return r ? r : check_whole(f, e);
}

static void *run(void *ctx)
{
    struct fetch *f = ctx;
    struct err e = {0};
    int r = attempt(f, &e);
    if (r == -EBADMSG && !f->use_source && has_source(f)) {
        log_warn("what peers gave is damaged; the source is asked", LERR(&e));
        f->use_source = true;
        pthread_mutex_lock(&f->lock);
        f->p.done = 0;
        pthread_mutex_unlock(&f->lock);
        r = attempt(f, &e);
    }
    pthread_mutex_lock(&f->lock);
    f->p.state = r ? FETCH_FAILED : FETCH_DONE;
    f->p.err = r ? e : (struct err){0};
    f->p.permanent = remote_permanent(r) || r == -EBADMSG;
    f->p.done = r ? f->p.done : f->p.bytes;
    pthread_mutex_unlock(&f->lock);
    tell(f);
    return NULL;
}

static char *dup_or(const char *s, const char *dflt)
{
    return xstrdup(s && *s ? s : dflt);
}

int fetch_start(const struct fetch_config *c, struct fetch **out, struct err *e)
{
    struct fetch *f = xcalloc(1, sizeof *f);
    f->dir = xstrdup(c->dir);
    f->source_text = xstrdup(c->source);
    f->sha256 = dup_or(c->sha256, "");
    f->endpoint = dup_or(c->endpoint, HUB);
    f->token = dup_or(c->token, "");
    f->ca_file = c->ca_file && *c->ca_file ? xstrdup(c->ca_file) : NULL;
    f->peers_sha256 = dup_or(c->peers_sha256, f->sha256);
    for (size_t n = strlen(f->endpoint); n && f->endpoint[n - 1] == '/'; n--)
        f->endpoint[n - 1] = 0;
    for (size_t i = 0; i < c->n_peers && i < FETCH_PEERS_MAX && *f->peers_sha256; i++)
        f->peers[f->n_peers++] = (struct origin){.url = xstrdup(c->peers[i].url),
                                                 .name = xstrdup(c->peers[i].name),
                                                 .secret = xstrdup(c->peers[i].secret)};
    f->chunk_bytes = c->chunk_bytes ? c->chunk_bytes : 32u << 20;
    f->connections = c->connections ? c->connections : 4;
    f->retry_ms = c->retry_ms ? c->retry_ms : 500;
    f->tries = c->tries ? c->tries : 8;
    f->notify = c->notify;
    f->ctx = c->ctx;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->answered, NULL);
    curl_global_init(CURL_GLOBAL_DEFAULT);
    int code = pthread_create(&f->thread, NULL, run, f);
    if (code) {
        f->thread = 0;
        fetch_free(f);
        return err_set(e, code, "no thread to fetch %s: %s", c->source, strerror(code));
    }
    *out = f;
    return 0;
}

void fetch_poll(struct fetch *f, struct fetch_progress *out)
{
    pthread_mutex_lock(&f->lock);
    *out = f->p;
    pthread_mutex_unlock(&f->lock);
}

void fetch_room(struct fetch *f, const struct err *denied)
{
    pthread_mutex_lock(&f->lock);
    f->denied = denied ? *denied : (struct err){0};
    f->room_answered = true;
    pthread_cond_broadcast(&f->answered);
    pthread_mutex_unlock(&f->lock);
}

const struct set *fetch_set(const struct fetch *f)
{
    return &f->set;
}

void fetch_free(struct fetch *f)
{
    atomic_store(&f->stop, true);
    fetch_room(f, NULL);
    if (f->thread)
        pthread_join(f->thread, NULL);
    for (size_t i = 0; i < f->n_peers; i++) {
        free(f->peers[i].url);
        free(f->peers[i].name);
        free(f->peers[i].secret);
    }
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->answered);
    set_fini(&f->set);
    free(f->dir);
    free(f->source_text);
    free(f->sha256);
    free(f->endpoint);
    free(f->token);
    free(f->ca_file);
    free(f->peers_sha256);
    free(f);
}
