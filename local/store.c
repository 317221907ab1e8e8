#include "local/store.h"

#include "lib/base/log.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <uthash.h>

struct bucket {
    char *id;
    struct obj **items;
    size_t n, cap;
    UT_hash_handle hh;
};

struct uid_entry {
    char *uid;
    struct obj *obj;
    UT_hash_handle hh;
};

enum { STMT_PUT, STMT_DEL, STMT_EVENT, STMT_PRUNE, STMT_META_SET, STMT_META_GET, STMT_COUNT };
static const char *const statements[STMT_COUNT] = {
    [STMT_PUT] = "INSERT OR REPLACE INTO objects(bucket,key,rv,doc) VALUES(?1,?2,?3,?4)",
    [STMT_DEL] = "DELETE FROM objects WHERE bucket=?1 AND key=?2",
    [STMT_EVENT] = "INSERT INTO events(rv,type,bucket,doc,prev) VALUES(?1,?2,?3,?4,?5)",
    [STMT_PRUNE] = "DELETE FROM events WHERE rv<=?1",
    [STMT_META_SET] = "INSERT OR REPLACE INTO meta(key,value) VALUES(?1,?2)",
    [STMT_META_GET] = "SELECT value FROM meta WHERE key=?1",
};

struct store {
    struct store_config c;
    sqlite3 *db;
    sqlite3_stmt *st[STMT_COUNT];
    struct bucket *buckets;
    struct uid_entry *uids;
    uint64_t rv, committed_rv, compacted;
    bool in_tx;
    bool broken;          /* a write failed half-way: the transaction must not be committed */
    struct event *window; /* events[first..first+count), then `pending` uncommitted ones */
    size_t count, pending, cap;
};

/* ---- objects ---- */

struct obj *obj_ref(struct obj *o)
{
    o->refs++;
    return o;
}

void obj_unref(struct obj *o)
{
    if (!o || --o->refs)
        return;
    json_decref(o->doc);
    free(o->key);
    free(o->text);
    free(o);
}

/* Kind and apiVersion come first, so that the text without them (items of lists) is a part of the
 * text with them. */
struct str obj_text(struct obj *o)
{
    if (o->text)
        return (struct str){o->text, o->text_len};
    json_t *rest = json_copy(o->doc);
    json_object_del(rest, "kind");
    json_object_del(rest, "apiVersion");
    char *tail = json_dumps(rest, JSON_COMPACT);
    json_decref(rest);
    ASSERT(tail);
    char *head = xasprintf("{\"kind\":\"%s\",\"apiVersion\":\"%s\",",
                           json_str_at(o->doc, "kind", ""), json_str_at(o->doc, "apiVersion", ""));
    o->head_len = strlen(head);
    o->text = xasprintf("%s%s", head, tail + 1);
    o->text_len = strlen(o->text);
    free(head);
    free(tail);
    return (struct str){o->text, o->text_len};
}

struct str obj_item_tail(struct obj *o)
{
    struct str t = obj_text(o);
    return (struct str){t.p + o->head_len, t.n - o->head_len};
}

static char *make_key(const char *ns, const char *name)
{
    return ns && *ns ? xasprintf("%s/%s", ns, name) : xstrdup(name);
}

static struct obj *obj_new(struct bucket *b, json_t *doc, uint64_t rv)
{
    struct obj *o = xcalloc(1, sizeof *o);
    const json_t *meta = json_object_get(doc, "metadata");
    *o = (struct obj){.bucket = b, .doc = doc, .rv = rv, .refs = 1};
    o->ns = json_str_at(meta, "namespace", "");
    o->name = json_str_at(meta, "name", "");
    o->uid = json_str_at(meta, "uid", "");
    o->has_owners = json_array_size(json_object_get(meta, "ownerReferences")) > 0;
    o->key = make_key(o->ns, o->name);
    return o;
}

/* ---- buckets ---- */

struct bucket *store_bucket(struct store *s, const char *id)
{
    struct bucket *b = NULL;
    HASH_FIND_STR(s->buckets, id, b);
    if (b)
        return b;
    b = xcalloc(1, sizeof *b);
    b->id = xstrdup(id);
    HASH_ADD_KEYPTR(hh, s->buckets, b->id, strlen(b->id), b);
    return b;
}

const char *bucket_id(const struct bucket *b)
{
    return b->id;
}

size_t bucket_count(const struct bucket *b)
{
    return b->n;
}

struct obj *bucket_at(const struct bucket *b, size_t i)
{
    return i < b->n ? b->items[i] : NULL;
}

size_t bucket_lower(const struct bucket *b, const char *key)
{
    size_t lo = 0, hi = b->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (strcmp(b->items[mid]->key, key) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static struct obj *bucket_find(const struct bucket *b, const char *key)
{
    size_t i = bucket_lower(b, key);
    return i < b->n && strcmp(b->items[i]->key, key) == 0 ? b->items[i] : NULL;
}

struct obj *bucket_get(const struct bucket *b, const char *ns, const char *name)
{
    CLEANUP(free_charp) char *key = make_key(ns, name);
    return bucket_find(b, key);
}

struct bucket *store_bucket_next(struct store *s, struct bucket *b)
{
    return b ? b->hh.next : s->buckets;
}

struct obj *store_by_uid(struct store *s, const char *uid)
{
    struct uid_entry *u = NULL;
    HASH_FIND_STR(s->uids, uid, u);
    return u ? u->obj : NULL;
}

static void uid_set(struct store *s, struct obj *o)
{
    struct uid_entry *u = NULL;
    if (!o->uid[0])
        return;
    HASH_FIND_STR(s->uids, o->uid, u);
    if (!u) {
        u = xcalloc(1, sizeof *u);
        u->uid = xstrdup(o->uid);
        HASH_ADD_KEYPTR(hh, s->uids, u->uid, strlen(u->uid), u);
    }
    u->obj = o;
}

static void uid_del(struct store *s, const struct obj *o)
{
    struct uid_entry *u = NULL;
    HASH_FIND_STR(s->uids, o->uid, u);
    if (!u || u->obj != o)
        return;
    HASH_DEL(s->uids, u);
    free(u->uid);
    free(u);
}

/* Puts o (a reference is taken) in the place of its key; NULL `o` with a key removes. Returns the
 * one that was there, with its reference. */
static struct obj *bucket_swap(struct store *s, struct bucket *b, const char *key, struct obj *o)
{
    size_t i = bucket_lower(b, key);
    struct obj *old = i < b->n && strcmp(b->items[i]->key, key) == 0 ? b->items[i] : NULL;
    if (old)
        uid_del(s, old);
    if (old && o) {
        b->items[i] = obj_ref(o);
    } else if (old) {
        memmove(&b->items[i], &b->items[i + 1], (b->n - i - 1) * sizeof(struct obj *));
        b->n--;
    } else if (o) {
        if (b->n == b->cap) {
            b->cap = b->cap ? b->cap * 2 : 16;
            b->items = xrealloc(b->items, b->cap * sizeof(struct obj *));
        }
        memmove(&b->items[i + 1], &b->items[i], (b->n - i) * sizeof(struct obj *));
        b->items[i] = obj_ref(o);
        b->n++;
    }
    if (o)
        uid_set(s, o);
    return old;
}

/* ---- events ---- */

static void event_drop(struct event *ev)
{
    obj_unref(ev->obj);
    obj_unref(ev->prev);
}

static struct event *event_append(struct store *s)
{
    if (s->count + s->pending == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 256;
        s->window = xrealloc(s->window, s->cap * sizeof *s->window);
    }
    return &s->window[s->count + s->pending];
}

static void forget_events(struct store *s, size_t n)
{
    if (!n)
        return;
    s->compacted = s->window[n - 1].rv;
    for (size_t i = 0; i < n; i++)
        event_drop(&s->window[i]);
    memmove(s->window, s->window + n, (s->count + s->pending - n) * sizeof *s->window);
    s->count -= n;
}

uint64_t store_rv(const struct store *s)
{
    return s->committed_rv;
}

uint64_t store_compacted(const struct store *s)
{
    return s->compacted;
}

size_t store_events_after(const struct store *s, uint64_t rv)
{
    size_t lo = 0, hi = s->count;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (s->window[mid].rv <= rv)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

const struct event *store_event(const struct store *s, size_t i)
{
    return i < s->count ? &s->window[i] : NULL;
}

/* ---- database ---- */

static int db_error(const struct store *s, struct err *e, const char *what)
{
    return err_set(e, EIO, "%s: %s: %s", s->c.path, what,
                   s->db ? sqlite3_errmsg(s->db) : "out of memory");
}

static int db_exec(struct store *s, const char *sql, struct err *e)
{
    return sqlite3_exec(s->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : db_error(s, e, sql);
}

static int db_begin(struct store *s, struct err *e)
{
    if (s->in_tx)
        return 0;
    int rc = db_exec(s, "BEGIN IMMEDIATE", e);
    s->in_tx = rc == 0;
    return rc;
}

static void bind_str(sqlite3_stmt *st, int i, struct str t)
{
    if (t.n > INT32_MAX)
        t.n = INT32_MAX;
    sqlite3_bind_text(st, i, t.p, (int)t.n, SQLITE_STATIC);
}

static int db_step(struct store *s, int which, struct err *e)
{
    sqlite3_stmt *st = s->st[which];
    int rc = sqlite3_step(st);
    sqlite3_reset(st);
    sqlite3_clear_bindings(st);
    return rc == SQLITE_DONE ? 0 : db_error(s, e, statements[which]);
}

static int db_write_event(struct store *s, const struct event *ev, struct err *e)
{
    sqlite3_stmt *st = s->st[STMT_EVENT];
    sqlite3_bind_int64(st, 1, (sqlite3_int64)ev->rv);
    sqlite3_bind_int(st, 2, (int)ev->type);
    bind_str(st, 3, str_c(ev->bucket->id));
    bind_str(st, 4, obj_text(ev->obj));
    if (ev->prev)
        bind_str(st, 5, obj_text(ev->prev));
    return db_step(s, STMT_EVENT, e);
}

static int db_write_object(struct store *s, struct obj *o, struct err *e)
{
    sqlite3_stmt *st = s->st[STMT_PUT];
    bind_str(st, 1, str_c(o->bucket->id));
    bind_str(st, 2, str_c(o->key));
    sqlite3_bind_int64(st, 3, (sqlite3_int64)o->rv);
    bind_str(st, 4, obj_text(o));
    return db_step(s, STMT_PUT, e);
}

static int db_delete_object(struct store *s, const struct obj *o, struct err *e)
{
    bind_str(s->st[STMT_DEL], 1, str_c(o->bucket->id));
    bind_str(s->st[STMT_DEL], 2, str_c(o->key));
    return db_step(s, STMT_DEL, e);
}

/* ---- writes ---- */

static void set_rv(json_t *doc, uint64_t rv)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)rv);
    json_t *meta = json_object_get(doc, "metadata");
    ASSERT(meta);
    json_object_set_new(meta, "resourceVersion", json_string(text));
}

struct obj *store_put(struct store *s, struct bucket *b, json_t *doc, struct err *e)
{
    uint64_t rv = s->rv + 1;
    set_rv(doc, rv);
    struct obj *o = obj_new(b, doc, rv);
    struct obj *old = bucket_find(b, o->key);
    struct event ev = {
        .rv = rv, .type = old ? EVENT_MODIFIED : EVENT_ADDED, .bucket = b, .obj = o, .prev = old};
    if (db_begin(s, e) || db_write_object(s, o, e) || db_write_event(s, &ev, e)) {
        s->broken = s->in_tx;
        obj_unref(o);
        return NULL;
    }
    s->rv = rv;
    ev.prev = bucket_swap(s, b, o->key, o); /* takes over the bucket's reference */
    *event_append(s) = ev;
    s->pending++;
    return o;
}

int store_remove(struct store *s, struct obj *o, struct err *e)
{
    uint64_t rv = s->rv + 1;
    json_t *doc = json_deep_copy(o->doc);
    set_rv(doc, rv);
    struct obj *last = obj_new(o->bucket, doc, rv);
    struct event ev = {
        .rv = rv, .type = EVENT_DELETED, .bucket = o->bucket, .obj = last, .prev = o};
    int rc = db_begin(s, e);
    if (!rc)
        rc = db_delete_object(s, o, e);
    if (!rc)
        rc = db_write_event(s, &ev, e);
    if (rc) {
        s->broken = s->in_tx;
        obj_unref(last);
        return rc;
    }
    s->rv = rv;
    ev.prev = bucket_swap(s, o->bucket, last->key, NULL);
    *event_append(s) = ev;
    s->pending++;
    return 0;
}

bool store_dirty(const struct store *s)
{
    return s->in_tx;
}

/* Undoes the uncommitted writes in memory, newest first. */
static void roll_back(struct store *s)
{
    sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    s->in_tx = s->broken = false;
    while (s->pending) {
        struct event *ev = &s->window[s->count + --s->pending];
        obj_unref(bucket_swap(s, ev->bucket, ev->obj->key, ev->prev));
        event_drop(ev);
    }
    s->rv = s->committed_rv;
}

static int prune(struct store *s, struct err *e)
{
    if (s->count <= s->c.event_window + s->c.event_window / 4)
        return 0;
    size_t n = s->count - s->c.event_window;
    sqlite3_bind_int64(s->st[STMT_PRUNE], 1, (sqlite3_int64)s->window[n - 1].rv);
    int rc = db_step(s, STMT_PRUNE, e);
    if (!rc)
        forget_events(s, n);
    return rc;
}

int store_commit(struct store *s, struct err *e)
{
    if (!s->in_tx)
        return 0;
    int rc = s->broken ? err_set(e, EIO, "%s: a write failed", s->c.path) : prune(s, e);
    if (!rc)
        rc = db_exec(s, "COMMIT", e);
    if (rc) {
        log_error("the store can't write; the last changes are undone",
                  LS("error", e ? e->msg : ""));
        roll_back(s);
        return rc;
    }
    s->in_tx = false;
    s->committed_rv = s->rv;
    size_t first = s->count, n = s->pending;
    s->count += n;
    s->pending = 0;
    for (size_t i = 0; i < n && s->c.on_event; i++)
        s->c.on_event(&s->window[first + i], s->c.ctx);
    return 0;
}

void store_compact(struct store *s)
{
    ASSERT(!s->in_tx);
    if (!s->count)
        return;
    sqlite3_bind_int64(s->st[STMT_PRUNE], 1, (sqlite3_int64)s->window[s->count - 1].rv);
    struct err e = {0};
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)s->rv);
    if (store_meta_set(s, "rv", text, &e) || db_step(s, STMT_PRUNE, &e))
        log_warn("events could not be compacted", LERR(&e));
    else
        forget_events(s, s->count);
}

char *store_meta_get(struct store *s, const char *key)
{
    sqlite3_stmt *st = s->st[STMT_META_GET];
    bind_str(st, 1, str_c(key));
    char *out = NULL;
    if (sqlite3_step(st) == SQLITE_ROW)
        out = xstrdup((const char *)sqlite3_column_text(st, 0));
    sqlite3_reset(st);
    return out;
}

int store_meta_set(struct store *s, const char *key, const char *value, struct err *e)
{
    bind_str(s->st[STMT_META_SET], 1, str_c(key));
    bind_str(s->st[STMT_META_SET], 2, str_c(value));
    return db_step(s, STMT_META_SET, e);
}

/* ---- opening ---- */

static const char schema_sql[] =
    "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
    "BEGIN EXCLUSIVE; COMMIT;" /* the lock is held from here on: no other server on this folder */
    "CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS objects(bucket TEXT NOT NULL, key TEXT NOT NULL, rv INTEGER NOT "
    "NULL,"
    " doc TEXT NOT NULL, PRIMARY KEY(bucket, key)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS events(rv INTEGER PRIMARY KEY, type INTEGER NOT NULL,"
    " bucket TEXT NOT NULL, doc TEXT NOT NULL, prev TEXT);";

static json_t *column_json(sqlite3_stmt *st, int col)
{
    const char *p = (const char *)sqlite3_column_text(st, col);
    size_t n = (size_t)sqlite3_column_bytes(st, col);
    return p ? json_loadb(p, n, 0, NULL) : NULL;
}

static int load_objects(struct store *s, struct err *e)
{
    sqlite3_stmt *st;
    if (sqlite3_prepare_v2(s->db, "SELECT bucket,rv,doc FROM objects", -1, &st, NULL) != SQLITE_OK)
        return db_error(s, e, "read objects");
    int rc = 0;
    while (!rc && sqlite3_step(st) == SQLITE_ROW) {
        json_t *doc = column_json(st, 2);
        if (!doc) {
            rc = err_set(e, EIO, "%s: an object is not JSON; the file is damaged", s->c.path);
            break;
        }
        struct bucket *b = store_bucket(s, (const char *)sqlite3_column_text(st, 0));
        struct obj *o = obj_new(b, doc, (uint64_t)sqlite3_column_int64(st, 1));
        obj_unref(bucket_swap(s, b, o->key, o));
        if (o->rv > s->rv)
            s->rv = o->rv;
        obj_unref(o);
    }
    sqlite3_finalize(st);
    return rc;
}

static void load_event(struct store *s, sqlite3_stmt *st)
{
    json_t *doc = column_json(st, 3), *prev = column_json(st, 4);
    uint64_t rv = (uint64_t)sqlite3_column_int64(st, 0);
    if (!doc) {
        json_decref(prev);
        return;
    }
    struct bucket *b = store_bucket(s, (const char *)sqlite3_column_text(st, 2));
    struct event *ev = event_append(s);
    *ev = (struct event){.rv = rv,
                         .type = (enum event_type)sqlite3_column_int(st, 1),
                         .bucket = b,
                         .obj = obj_new(b, doc, rv),
                         .prev = NULL};
    if (prev)
        ev->prev = obj_new(
            b, prev,
            (uint64_t)strtoull(json_str_at(prev, "metadata.resourceVersion", "0"), NULL, 10));
    if (!s->count)
        s->compacted = rv - 1;
    s->count++;
    if (rv > s->rv)
        s->rv = rv;
}

static int load_events(struct store *s, struct err *e)
{
    sqlite3_stmt *st;
    const char *sql = "SELECT rv,type,bucket,doc,prev FROM events ORDER BY rv";
    if (sqlite3_prepare_v2(s->db, sql, -1, &st, NULL) != SQLITE_OK)
        return db_error(s, e, "read events");
    while (sqlite3_step(st) == SQLITE_ROW)
        load_event(s, st);
    sqlite3_finalize(st);
    return 0;
}

static int load(struct store *s, struct err *e)
{
    int rc = load_objects(s, e);
    if (!rc)
        rc = load_events(s, e);
    CLEANUP(free_charp) char *rv = store_meta_get(s, "rv");
    uint64_t floor_rv = rv ? strtoull(rv, NULL, 10) : 0;
    if (floor_rv > s->rv)
        s->rv = floor_rv;
    if (!s->count)
        s->compacted = s->rv;
    s->committed_rv = s->rv;
    return rc;
}

int store_open(const struct store_config *c, struct store **out, struct err *e)
{
    struct store *s = xcalloc(1, sizeof *s);
    s->c = *c;
    s->c.path = xstrdup(c->path);
    if (s->c.event_window < 16)
        s->c.event_window = 16;
    int rc = 0;
    if (sqlite3_open(c->path, &s->db) != SQLITE_OK)
        rc = db_error(s, e, "open");
    if (!rc)
        rc = db_exec(s, schema_sql, e);
    if (rc && s->db && sqlite3_errcode(s->db) == SQLITE_BUSY)
        rc = err_set(e, EBUSY, "%s is locked: another server uses this data folder", c->path);
    for (int i = 0; i < STMT_COUNT && !rc; i++)
        if (sqlite3_prepare_v2(s->db, statements[i], -1, &s->st[i], NULL) != SQLITE_OK)
            rc = db_error(s, e, statements[i]);
    if (!rc)
        rc = load(s, e);
    if (rc) {
        store_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void store_close(struct store *s)
{
    if (!s)
        return;
    if (s->in_tx)
        roll_back(s);
    for (size_t i = 0; i < s->count; i++)
        event_drop(&s->window[i]);
    free(s->window);
    struct bucket *b, *next;
    HASH_ITER (hh, s->buckets, b, next) {
        for (size_t i = 0; i < b->n; i++) {
            uid_del(s, b->items[i]);
            obj_unref(b->items[i]);
        }
        HASH_DEL(s->buckets, b);
        free(b->items);
        free(b->id);
        free(b);
    }
    for (int i = 0; i < STMT_COUNT; i++)
        sqlite3_finalize(s->st[i]);
    sqlite3_close(s->db);
    free((char *)s->c.path);
    free(s);
}
