#include "agent/store.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/decide/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MANIFEST    ".baton.json"
#define ENTRIES_MAX 256

struct store {
    char *dir; /* <models-dir>/fetched */
    uint64_t budget;
    struct store_entry *entries[ENTRIES_MAX];
    size_t n;
};

static void entry_free(struct store_entry *m)
{
    free(m->source);
    free(m->endpoint);
    set_fini(&m->set);
    free(m);
}

char *store_folder(const struct store *s, const struct store_entry *m)
{
    return xasprintf("%s/%s", s->dir, m->key);
}

char *store_relative(const struct store_entry *m)
{
    if (m->set.n == 1)
        return xasprintf("fetched/%s/%s", m->key, m->set.files[0].name);
    return xasprintf("fetched/%s", m->key);
}

/* Calls fn for each name in a folder that is not "." or "..". */
static void each_name(const char *dir, void (*fn)(const char *path, const char *name, void *ctx),
                      void *ctx)
{
    DIR *d = opendir(dir);
    struct dirent *ent;
    while (d && (ent = readdir(d))) {
        CLEANUP(free_charp) char *path = xasprintf("%s/%s", dir, ent->d_name);
        if (strcmp(ent->d_name, ".") != 0 && strcmp(ent->d_name, "..") != 0)
            fn(path, ent->d_name, ctx);
    }
    if (d)
        closedir(d);
}

static void add_size(const char *path, const char *name, void *ctx)
{
    struct stat st;
    (void)name;
    if (lstat(path, &st) == 0 && S_ISREG(st.st_mode))
        *(uint64_t *)ctx += (uint64_t)st.st_blocks * 512;
}

static void unlink_one(const char *path, const char *name, void *ctx)
{
    (void)name, (void)ctx;
    unlink(path);
}

static bool files_are_there(const char *dir, const struct set *set)
{
    for (size_t i = 0; i < set->n; i++) {
        struct stat st;
        CLEANUP(free_charp) char *path = xasprintf("%s/%s", dir, set->files[i].name);
        if (stat(path, &st) || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != set->files[i].bytes)
            return false;
    }
    return set->n > 0;
}

/* The manifest says what should be there; sizes are compared (digests were when it was fetched, and
 * workers check the pin when they load). Without one the folder is a beginning. */
static void adopt(const char *path, const char *name, void *ctx)
{
    struct store *s = ctx;
    struct stat st;
    char digest[SHA_HEX];
    if (s->n == ENTRIES_MAX || strlen(name) != SOURCE_KEY_MAX - 1 || lstat(path, &st) ||
        !S_ISDIR(st.st_mode))
        return;
    struct store_entry *m = xcalloc(1, sizeof *m);
    CLEANUP(free_charp) char *file = xasprintf("%s/" MANIFEST, path);
    CLEANUP(json_decrefp) json_t *o = json_parse_file(file, SET_MAX_TEXT, NULL);
    snprintf(m->key, sizeof m->key, "%s", name);
    m->source = xstrdup(json_str_at(o, "source", ""));
    m->endpoint = xstrdup(json_str_at(o, "endpoint", ""));
    m->used_wall_ns = (uint64_t)st.st_mtim.tv_sec * NS_PER_S;
    if (o && set_from_json(o, &m->set, NULL) == 0 && files_are_there(path, &m->set)) {
        set_digest(&m->set, digest);
        memcpy(m->sha256, digest, sizeof m->sha256);
        m->complete = true;
        m->bytes = set_bytes(&m->set);
        m->used_wall_ns = stat(file, &st) ? 0 : (uint64_t)st.st_mtim.tv_sec * NS_PER_S;
    } else {
        if (o)
            log_warn("a cached model is damaged; it is fetched again", LS("source", m->source));
        set_fini(&m->set);
        unlink(file);
        each_name(path, add_size, &m->bytes);
    }
    s->entries[s->n++] = m;
}

int store_open(const char *models_dir, uint64_t budget_bytes, struct store **out, struct err *e)
{
    struct store *s = xcalloc(1, sizeof *s);
    s->dir = xasprintf("%s/fetched", models_dir);
    s->budget = budget_bytes;
    if (mkdir(s->dir, 0755) && errno != EEXIST) {
        int r = err_set(e, errno, "can't make the model cache %s: %s", s->dir, strerror(errno));
        store_close(s);
        return r;
    }
    each_name(s->dir, adopt, s);
    *out = s;
    return 0;
}

void store_close(struct store *s)
{
    while (s->n)
        entry_free(s->entries[--s->n]);
    free(s->dir);
    free(s);
}

size_t store_count(const struct store *s)
{
    return s->n;
}

struct store_entry *store_at(const struct store *s, size_t i)
{
    return s->entries[i];
}

struct store_entry *store_find(const struct store *s, const char *key)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->entries[i]->key, key) == 0)
            return s->entries[i];
    return NULL;
}

struct store_entry *store_by_sha(const struct store *s, const char *sha256)
{
    for (size_t i = 0; i < s->n && *sha256; i++)
        if (s->entries[i]->complete && strcmp(s->entries[i]->sha256, sha256) == 0)
            return s->entries[i];
    return NULL;
}

uint64_t store_used_bytes(const struct store *s)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += s->entries[i]->bytes;
    return sum;
}

uint64_t store_budget_bytes(const struct store *s)
{
    struct statvfs fs;
    if (statvfs(s->dir, &fs))
        return s->budget;
    uint64_t left = (uint64_t)fs.f_bavail * fs.f_frsize, used = store_used_bytes(s);
    uint64_t most = used + left / 10 * 9;
    return s->budget && s->budget < most ? s->budget : most;
}

int store_begin(struct store *s, const char *key, const char *source, const char *endpoint,
                const char *sha256, struct store_entry **out, struct err *e)
{
    struct store_entry *m = store_find(s, key);
    if (!m) {
        CLEANUP(free_charp) char *dir = xasprintf("%s/%s", s->dir, key);
        if (s->n == ENTRIES_MAX)
            return err_set(e, ENOSPC, "the model cache holds %d models already", ENTRIES_MAX);
        if (mkdir(dir, 0755) && errno != EEXIST)
            return err_set(e, errno, "can't make %s: %s", dir, strerror(errno));
        m = xcalloc(1, sizeof *m);
        snprintf(m->key, sizeof m->key, "%s", key);
        s->entries[s->n++] = m;
    }
    free(m->source);
    free(m->endpoint);
    m->source = xstrdup(source);
    m->endpoint = xstrdup(endpoint ? endpoint : "");
    if (!m->complete)
        snprintf(m->sha256, sizeof m->sha256, "%s", sha256 ? sha256 : "");
    m->used_wall_ns = m->begun_wall_ns = clock_wall_ns();
    *out = m;
    return 0;
}

void store_drop(struct store *s, struct store_entry *m)
{
    CLEANUP(free_charp) char *dir = store_folder(s, m);
    CLEANUP(free_charp) char *manifest = xasprintf("%s/" MANIFEST, dir);
    unlink(manifest); /* first: what is half removed is not complete */
    each_name(dir, unlink_one, NULL);
    rmdir(dir);
    for (size_t i = 0; i < s->n; i++)
        if (s->entries[i] == m)
            s->entries[i] = s->entries[--s->n];
    entry_free(m);
}

bool store_changed(const struct store *s, const struct store_entry *m)
{
    for (size_t i = 0; i < m->set.n; i++) {
        struct stat st;
        CLEANUP(free_charp)
        char *path = xasprintf("%s/%s/%s", s->dir, m->key, m->set.files[i].name);
        if (stat(path, &st) || (uint64_t)st.st_size != m->set.files[i].bytes ||
            (uint64_t)st.st_mtim.tv_sec * NS_PER_S + (uint64_t)st.st_mtim.tv_nsec >
                m->checked_wall_ns)
            return true;
    }
    return false;
}

static double gib(uint64_t bytes)
{
    return (double)bytes / (1 << 30);
}

int store_reserve(struct store *s, struct store_entry *m, uint64_t bytes, struct err *e)
{
    struct cache_entry list[ENTRIES_MAX];
    struct store_entry *drop[ENTRIES_MAX];
    uint32_t victims[ENTRIES_MAX];
    uint64_t could = 0, budget = store_budget_bytes(s);
    size_t n = 0, at[ENTRIES_MAX];
    for (size_t i = 0; i < s->n; i++) {
        struct store_entry *x = s->entries[i];
        if (x == m)
            continue;
        at[n] = i;
        list[n++] = (struct cache_entry){x->bytes, x->used_wall_ns, x->users > 0, x->wanted};
    }
    int count = cache_evict(list, n, budget, bytes, victims, &could);
    if (count < 0)
        return err_set(e, ENOSPC,
                       "needs %.1f GiB, the node's model cache can have %.1f of %.1f GiB (the rest "
                       "is in use)",
                       gib(bytes), gib(could), gib(budget));
    for (int i = 0; i < count; i++)
        drop[i] = s->entries[at[victims[i]]];
    for (int i = 0; i < count; i++) {
        log_info("a cached model is dropped for another", LS("source", drop[i]->source),
                 LI("bytes", drop[i]->bytes));
        store_drop(s, drop[i]);
    }
    m->bytes = bytes;
    return 0;
}

int store_complete(struct store *s, struct store_entry *m, const struct set *set, struct err *e)
{
    CLEANUP(free_charp) char *dir = store_folder(s, m);
    CLEANUP(free_charp) char *path = xasprintf("%s/" MANIFEST, dir);
    CLEANUP(free_charp) char *fresh = xasprintf("%s/" MANIFEST ".new", dir);
    CLEANUP(json_decrefp) json_t *o = set_to_json(set);
    char digest[SHA_HEX];
    set_digest(set, digest);
    json_object_set_new(o, "source", json_string(m->source));
    json_object_set_new(o, "endpoint", json_string(m->endpoint));
    json_object_set_new(o, "sha256", json_string(digest));
    if (json_dump_file(o, fresh, JSON_COMPACT) || rename(fresh, path))
        return err_set(e, EIO, "can't write %s: %s", path, strerror(errno));
    set_fini(&m->set);
    set_copy(&m->set, set);
    memcpy(m->sha256, digest, sizeof m->sha256);
    m->bytes = set_bytes(set);
    m->complete = true;
    m->used_wall_ns = clock_wall_ns();
    m->checked_wall_ns = m->begun_wall_ns;
    return 0;
}

void store_used(struct store *s, struct store_entry *m)
{
    m->used_wall_ns = clock_wall_ns();
    if (!m->complete)
        return;
    CLEANUP(free_charp) char *dir = store_folder(s, m);
    CLEANUP(free_charp) char *path = xasprintf("%s/" MANIFEST, dir);
    utimensat(AT_FDCWD, path, NULL, 0); /* outlives a restart of the agent */
}
