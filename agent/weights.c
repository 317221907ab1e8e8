#include "agent/weights.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_IMAGES 64
#define MAX_USERS  256

struct image {
    char id[33];
    char *source, *sha256, *isa, *layout, *checksum;
    int64_t rank;
    uint64_t bytes, used_ns;
    bool ready;
    const void *filler;
};

struct user {
    const void *who;
    char id[33];
};

struct weights {
    char *dir;
    uint64_t budget;
    struct image *images[MAX_IMAGES];
    size_t n_images, n_users;
    struct user users[MAX_USERS];
    unsigned fills;
};

static char *image_path(const struct weights *w, const char *id, const char *suffix)
{
    return xasprintf("%s/%s%s", w->dir, id, suffix);
}

/* 128 bits of FNV-1a over the key's text: names files, guards nothing. */
static void key_id(const struct weights_key *key, char out[33])
{
    char what[128] = "";
    struct stat st;
    if (!*key->sha256 && strncmp(key->source, "file://", 7) == 0 && stat(key->source + 7, &st) == 0)
        snprintf(what, sizeof what, "%lld.%lld.%09ld", (long long)st.st_size,
                 (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    CLEANUP(free_charp)
    char *text = xasprintf("%s|%s|%s|%s|%lld", *key->sha256 ? key->sha256 : key->source, what,
                           key->isa, key->layout, (long long)key->rank);
    uint64_t h[2] = {1469598103934665603ull, 0x9ae16a3b2f90404full};
    for (const char *s = text; *s; s++) {
        h[0] = (h[0] ^ (uint8_t)*s) * 1099511628211ull;
        h[1] = (h[1] + (uint8_t)*s) * 0x9fb21c651e98df25ull;
        h[1] ^= h[1] >> 29;
    }
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)h[0], (unsigned long long)h[1]);
}

static void image_free(struct image *m)
{
    free(m->source);
    free(m->sha256);
    free(m->isa);
    free(m->layout);
    free(m->checksum);
    free(m);
}

static struct image *find(const struct weights *w, const char *id)
{
    for (size_t i = 0; i < w->n_images; i++) {
        if (strcmp(w->images[i]->id, id) == 0)
            return w->images[i];
    }
    return NULL;
}

static unsigned users_of(const struct weights *w, const char *id)
{
    unsigned n = 0;
    for (size_t i = 0; i < w->n_users; i++)
        n += strcmp(w->users[i].id, id) == 0;
    return n;
}

static void remove_image(struct weights *w, struct image *m)
{
    CLEANUP(free_charp) char *data = image_path(w, m->id, ".image");
    CLEANUP(free_charp) char *manifest = image_path(w, m->id, ".json");
    unlink(manifest);
    unlink(data);
    for (size_t i = 0; i < w->n_images; i++) {
        if (w->images[i] == m)
            w->images[i] = w->images[--w->n_images];
    }
    image_free(m);
}

static int write_manifest(struct weights *w, const struct image *m)
{
    CLEANUP(free_charp) char *path = image_path(w, m->id, ".json");
    CLEANUP(free_charp) char *fresh = image_path(w, m->id, ".json.new");
    CLEANUP(json_decrefp)
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:s}", "source", m->source, "sha256", m->sha256,
                  "isa", m->isa, "layout", m->layout, "rank", (json_int_t)m->rank, "bytes",
                  (json_int_t)m->bytes, "checksum", m->checksum);
    if (!o || json_dump_file(o, fresh, JSON_COMPACT) || rename(fresh, path))
        return -EIO;
    return 0;
}

/* The manifest is written when the image is whole; nobody may write to that any more. One that is
 * younger than its manifest was damaged. */
static bool written_since(const struct stat *image, const char *manifest)
{
    struct stat st;
    if (stat(manifest, &st))
        return true;
    const struct timespec *a = &image->st_mtim, *b = &st.st_mtim;
    return a->tv_sec != b->tv_sec ? a->tv_sec > b->tv_sec : a->tv_nsec > b->tv_nsec;
}

/* A manifest without its image, or of another size, is nothing; the image is removed by scan(). */
static void adopt(struct weights *w, const char *id)
{
    CLEANUP(free_charp) char *path = image_path(w, id, ".json");
    CLEANUP(free_charp) char *data = image_path(w, id, ".image");
    CLEANUP(json_decrefp) json_t *o = json_parse_file(path, 65536, NULL);
    int64_t bytes = json_int_at(o, "bytes", 0);
    struct stat st;
    if (!o || w->n_images == MAX_IMAGES || stat(data, &st))
        return;
    if (st.st_size != bytes || bytes <= 0 || !*json_str_at(o, "checksum", "") ||
        written_since(&st, path)) {
        log_warn("a weight image is damaged; it is loaded again",
                 LS("source", json_str_at(o, "source", "")), LI("bytes", st.st_size));
        unlink(path);
        return;
    }
    struct image *m = xcalloc(1, sizeof *m);
    snprintf(m->id, sizeof m->id, "%s", id);
    m->source = xstrdup(json_str_at(o, "source", ""));
    m->sha256 = xstrdup(json_str_at(o, "sha256", ""));
    m->isa = xstrdup(json_str_at(o, "isa", ""));
    m->layout = xstrdup(json_str_at(o, "layout", ""));
    m->checksum = xstrdup(json_str_at(o, "checksum", ""));
    m->rank = json_int_at(o, "rank", 0);
    m->bytes = (uint64_t)bytes;
    m->ready = true;
    w->images[w->n_images++] = m;
    log_info("weights adopted", LS("source", m->source), LI("bytes", m->bytes));
}

static void scan(struct weights *w)
{
    DIR *d = opendir(w->dir);
    struct dirent *ent;
    while (d && (ent = readdir(d))) {
        struct str name = str_c(ent->d_name);
        if (name.n == 37 && str_ends(name, STR(".json"))) {
            ent->d_name[32] = 0;
            adopt(w, ent->d_name);
        }
    }
    if (d)
        rewinddir(d);
    while (d && (ent = readdir(d))) { /* images that were never finished */
        struct str name = str_c(ent->d_name);
        if (name.n != 38 || !str_ends(name, STR(".image")))
            continue;
        CLEANUP(free_charp) char *path = image_path(w, ent->d_name, "");
        ent->d_name[32] = 0;
        if (!find(w, ent->d_name))
            unlink(path);
    }
    if (d)
        closedir(d);
}

int weights_open(const char *dir, uint64_t budget_bytes, struct weights **out, struct err *e)
{
    if (mkdir(dir, 0700) && errno != EEXIST)
        return err_set(e, errno, "can't make the folder %s for weights: %s", dir, strerror(errno));
    struct weights *w = xcalloc(1, sizeof *w);
    w->dir = xstrdup(dir);
    w->budget = budget_bytes;
    scan(w);
    *out = w;
    return 0;
}

void weights_close(struct weights *w)
{
    while (w->n_images)
        image_free(w->images[--w->n_images]);
    free(w->dir);
    free(w);
}

uint64_t weights_used_bytes(const struct weights *w)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < w->n_images; i++)
        sum += w->images[i]->bytes;
    return sum;
}

static bool droppable(const struct weights *w, const struct image *m)
{
    return m->ready && users_of(w, m->id) == 0;
}

void weights_drop_all(struct weights *w)
{
    for (size_t i = w->n_images; i-- > 0;) {
        if (droppable(w, w->images[i]))
            remove_image(w, w->images[i]);
    }
}

/* Drops what nobody uses, oldest first, if that makes enough room. */
static void evict_for(struct weights *w, uint64_t bytes)
{
    uint64_t kept = 0;
    for (size_t i = 0; i < w->n_images; i++)
        kept += droppable(w, w->images[i]) ? 0 : w->images[i]->bytes;
    while (kept + bytes <= w->budget && weights_used_bytes(w) + bytes > w->budget) {
        struct image *oldest = NULL;
        for (size_t i = 0; i < w->n_images; i++) {
            struct image *m = w->images[i];
            if (droppable(w, m) && (!oldest || m->used_ns < oldest->used_ns))
                oldest = m;
        }
        log_info("weights dropped for others", LS("source", oldest->source),
                 LI("bytes", oldest->bytes));
        remove_image(w, oldest);
    }
}

/* The file with all its pages; this process pays for them, whoever writes first. */
static int allocate(struct weights *w, const char *id, uint64_t bytes, struct err *e)
{
    CLEANUP(free_charp) char *path = image_path(w, id, ".image");
    unlink(path);
    CLEANUP(close_fdp) int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(e, errno, "can't make %s: %s", path, strerror(errno));
    int r = posix_fallocate(fd, 0, (off_t)bytes);
    if (r) {
        unlink(path);
        return err_set(e, r, "can't allocate %.1f GiB of weights in %s: %s",
                       (double)bytes / (1 << 30), w->dir, strerror(r));
    }
    return 0;
}

static int create(struct weights *w, const struct weights_key *key, const char *id, uint64_t bytes,
                  struct image **out, struct err *e)
{
    evict_for(w, bytes);
    uint64_t used = weights_used_bytes(w);
    if (used + bytes > w->budget)
        return err_set(
            e, ENOSPC,
            "needs %.1f GiB for weights, the node's weight budget has %.1f of %.1f GiB free",
            (double)bytes / (1 << 30),
            (double)(w->budget > used ? w->budget - used : 0) / (1 << 30),
            (double)w->budget / (1 << 30));
    if (w->n_images == MAX_IMAGES)
        return err_set(e, ENOSPC, "the node holds %d weight images already", MAX_IMAGES);
    int r = allocate(w, id, bytes, e);
    if (r)
        return r;
    struct image *m = xcalloc(1, sizeof *m);
    snprintf(m->id, sizeof m->id, "%s", id);
    m->source = xstrdup(key->source);
    m->sha256 = xstrdup(key->sha256);
    m->isa = xstrdup(key->isa);
    m->layout = xstrdup(key->layout);
    m->rank = key->rank;
    m->bytes = bytes;
    w->images[w->n_images++] = m;
    *out = m;
    return 0;
}

static int open_image(struct weights *w, const struct image *m, bool write, struct err *e)
{
    CLEANUP(free_charp) char *path = image_path(w, m->id, ".image");
    int fd = open(path, (write ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    return fd >= 0 ? fd : err_set(e, errno, "can't open %s: %s", path, strerror(errno));
}

static int note_user(struct weights *w, const void *who, const char *id, struct err *e)
{
    for (size_t i = 0; i < w->n_users; i++) {
        if (w->users[i].who == who) {
            memcpy(w->users[i].id, id, sizeof w->users[i].id);
            return 0;
        }
    }
    if (w->n_users == MAX_USERS)
        return err_set(e, ENOSPC, "%d workers use weights of this node already", MAX_USERS);
    w->users[w->n_users].who = who;
    memcpy(w->users[w->n_users++].id, id, 33);
    return 0;
}

int weights_get(struct weights *w, const void *user, const struct weights_key *key, uint64_t bytes,
                enum weights_state *state, int *fd, struct err *e)
{
    char id[33];
    key_id(key, id);
    struct image *m = find(w, id);
    if (m && m->bytes != bytes && users_of(w, id) == 0) {
        remove_image(w, m); /* made by another version */
        m = NULL;
    }
    if (m && m->bytes != bytes)
        return err_set(e, EINVAL,
                       "these weights are loaded with another size (%llu bytes, not %llu)",
                       (unsigned long long)m->bytes, (unsigned long long)bytes);
    int r = m ? 0 : create(w, key, id, bytes, &m, e);
    if (r || (r = note_user(w, user, id, e)))
        return r;
    m->used_ns = clock_mono_ns();
    enum weights_state s = m->ready                          ? WEIGHTS_READY
                           : !m->filler || m->filler == user ? WEIGHTS_FILL
                                                             : WEIGHTS_WAIT;
    int got = s == WEIGHTS_WAIT ? -1 : open_image(w, m, s == WEIGHTS_FILL, e);
    if (s != WEIGHTS_WAIT && got < 0)
        return got;
    if (s == WEIGHTS_FILL)
        m->filler = user;
    *state = s;
    *fd = got;
    return 0;
}

void weights_hold(struct weights *w, const void *user, const struct weights_key *key)
{
    char id[33];
    key_id(key, id);
    struct image *m = find(w, id);
    if (m && m->ready && note_user(w, user, id, NULL) == 0)
        m->used_ns = clock_mono_ns();
}

int weights_filled(struct weights *w, const void *user, const char *checksum, struct err *e)
{
    for (size_t i = 0; i < w->n_images; i++) {
        struct image *m = w->images[i];
        if (m->ready || m->filler != user)
            continue;
        free(m->checksum);
        m->checksum = xstrdup(checksum);
        if (write_manifest(w, m))
            return err_set(e, EIO, "can't write the manifest of weights in %s", w->dir);
        m->ready = true;
        m->filler = NULL;
        w->fills++;
        log_info("weights loaded", LS("source", m->source), LI("bytes", m->bytes),
                 LS("checksum", checksum));
        return 0;
    }
    return err_set(e, ENOENT, "no weights are being filled on this connection");
}

void weights_release(struct weights *w, const void *user)
{
    for (size_t i = 0; i < w->n_users; i++) {
        if (w->users[i].who == user)
            w->users[i--] = w->users[--w->n_users];
    }
    for (size_t i = 0; i < w->n_images; i++) {
        struct image *m = w->images[i];
        if (m->filler == user) {
            remove_image(w, m); /* half written: the next one gets a fresh file */
            return;
        }
    }
}

size_t weights_count(const struct weights *w)
{
    return w->n_images;
}

void weights_info(const struct weights *w, size_t i, struct weights_info *out)
{
    const struct image *m = w->images[i];
    *out = (struct weights_info){.source = m->source,
                                 .sha256 = m->sha256,
                                 .isa = m->isa,
                                 .layout = m->layout,
                                 .checksum = m->checksum ? m->checksum : "",
                                 .rank = m->rank,
                                 .bytes = m->bytes,
                                 .users = users_of(w, m->id),
                                 .ready = m->ready};
}

uint64_t weights_budget_bytes(const struct weights *w)
{
    return w->budget;
}

unsigned weights_fills(const struct weights *w)
{
    return w->fills;
}
