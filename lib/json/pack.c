#include "lib/json/pack.h"

#include "lib/base/clock.h"

#include <stdlib.h>

struct pack {
    uint32_t n, room; /* bytes of data; of the object that it unpacks to */
    unsigned char data[];
};

static size_t aligned(size_t n)
{
    return (n + 7) & ~(size_t)7;
}

/* ---- writing ---- */

struct writer {
    struct dict *words;
    struct buf out;
    size_t room;
};

static void put(struct writer *w, const void *p, size_t n)
{
    int rc = buf_append(&w->out, p, n);
    ASSERT(!rc);
}

static void put_n(struct writer *w, uint64_t v)
{
    unsigned char text[10];
    size_t n = 0;
    while (v > 127) {
        text[n++] = (unsigned char)(v | 128);
        v >>= 7;
    }
    text[n++] = (unsigned char)v;
    put(w, text, n);
}

static void put_signed(struct writer *w, int64_t v)
{
    put_n(w, (uint64_t)v << 1 ^ (uint64_t)(v >> 63));
}

/* A word's number with bit 0 set, or a length and the text with its NUL. */
static void put_str(struct writer *w, const char *s)
{
    uint32_t id;
    size_t n = strlen(s);
    if (dict_take(w->words, (struct str){s, n}, &id)) {
        put_n(w, (uint64_t)id << 1 | 1);
        return;
    }
    put_n(w, (uint64_t)n << 1);
    put(w, s, n + 1);
}

/* Whole seconds are short. */
static void put_time(struct writer *w, uint64_t ns)
{
    if (ns % NS_PER_S)
        put_n(w, ns / NS_PER_US << 1 | 1);
    else
        put_n(w, ns / NS_PER_S << 1);
}

static void put_fields(struct writer *w, const struct view *v, const void *object);

static void put_list(struct writer *w, const struct view_field *f, const struct view_list *l)
{
    size_t each = f->kind == VIEW_STRS ? sizeof(char *) : f->sub->size;
    put_n(w, l->n);
    w->room += aligned(l->n * each);
    for (size_t i = 0; i < l->n; i++) {
        if (f->kind == VIEW_STRS)
            put_str(w, VIEW_STR_AT(*l, i));
        else
            put_fields(w, f->sub, (const char *)l->items + i * each);
    }
}

static void put_map(struct writer *w, const struct view_map *m)
{
    put_n(w, m->n);
    w->room += aligned(m->n * sizeof *m->items);
    for (size_t i = 0; i < m->n; i++) {
        put_str(w, m->items[i].key);
        put_str(w, m->items[i].value);
    }
}

static void put_value(struct writer *w, const struct view_field *f, const void *at)
{
    uint64_t bits;
    switch (f->kind) {
    case VIEW_STR:
    case VIEW_RAW:
    case VIEW_B64: put_str(w, *(const char *const *)at); break;
    case VIEW_INT:
    case VIEW_QTY: put_signed(w, *(const int64_t *)at); break;
    case VIEW_NUM:
        memcpy(&bits, at, sizeof bits);
        put_n(w, bits);
        break;
    case VIEW_BOOL: put_n(w, *(const bool *)at); break;
    case VIEW_TIME: put_time(w, *(const uint64_t *)at); break;
    case VIEW_MAP: put_map(w, at); break;
    case VIEW_OBJ: put_fields(w, f->sub, at); break;
    case VIEW_LIST:
    case VIEW_STRS: put_list(w, f, at); break;
    }
}

static void put_fields(struct writer *w, const struct view *v, const void *object)
{
    uint64_t has = *(const uint64_t *)object;
    put_n(w, has);
    for (const struct view_field *f = v->fields; f->path; f++, has >>= 1)
        if (has & 1)
            put_value(w, f, (const char *)object + f->offset);
}

/* ---- reading ---- */

/* With base NULL nothing is made: the walk only gives the words back. */
struct reader {
    const unsigned char *at;
    char *base;
    size_t used;
    const struct dict *words;
    struct dict *drop;
};

static uint64_t get_n(struct reader *r)
{
    uint64_t v = 0;
    for (unsigned shift = 0;; shift += 7) {
        unsigned char c = *r->at++;
        v |= (uint64_t)(c & 127) << shift;
        if (c < 128)
            return v;
    }
}

static const char *get_str(struct reader *r)
{
    uint64_t v = get_n(r);
    if (v & 1) {
        if (r->base)
            return dict_text(r->words, (uint32_t)(v >> 1));
        dict_drop(r->drop, (uint32_t)(v >> 1));
        return NULL;
    }
    const char *s = (const char *)r->at;
    r->at += (v >> 1) + 1;
    return s;
}

static void *get_room(struct reader *r, size_t n)
{
    void *p = r->base ? r->base + r->used : NULL;
    r->used += aligned(n);
    return p;
}

static void get_fields(struct reader *r, const struct view *v, void *object);

static void get_list(struct reader *r, const struct view_field *f, struct view_list *out)
{
    size_t each = f->kind == VIEW_STRS ? sizeof(char *) : f->sub->size, n = (size_t)get_n(r);
    char *items = get_room(r, n * each);
    for (size_t i = 0; i < n; i++) {
        if (f->kind != VIEW_STRS) {
            get_fields(r, f->sub, items ? items + i * each : NULL);
            continue;
        }
        const char *s = get_str(r);
        if (items)
            ((const char **)(void *)items)[i] = s;
    }
    if (out)
        *out = (struct view_list){n, items};
}

static void get_map(struct reader *r, struct view_map *out)
{
    size_t n = (size_t)get_n(r);
    struct view_pair *items = get_room(r, n * sizeof *items);
    for (size_t i = 0; i < n; i++) {
        const char *key = get_str(r), *value = get_str(r);
        if (items)
            items[i] = (struct view_pair){key, value};
    }
    if (out)
        *out = (struct view_map){n, items};
}

/* `to` is NULL when nothing is made. */
static void get_value(struct reader *r, const struct view_field *f, void *to)
{
    uint64_t v;
    const char *s;
    switch (f->kind) {
    case VIEW_MAP: get_map(r, to); return;
    case VIEW_OBJ: get_fields(r, f->sub, to); return;
    case VIEW_LIST:
    case VIEW_STRS: get_list(r, f, to); return;
    case VIEW_STR:
    case VIEW_RAW:
    case VIEW_B64:
        s = get_str(r);
        if (to)
            *(const char **)to = s;
        return;
    default: break;
    }
    v = get_n(r);
    if (!to)
        return;
    if (f->kind == VIEW_BOOL)
        *(bool *)to = v;
    else if (f->kind == VIEW_TIME)
        *(uint64_t *)to = (v >> 1) * (v & 1 ? NS_PER_US : NS_PER_S);
    else if (f->kind == VIEW_NUM)
        memcpy(to, &v, sizeof v);
    else
        *(int64_t *)to = (int64_t)(v >> 1 ^ (0 - (v & 1)));
}

static void get_fields(struct reader *r, const struct view *v, void *object)
{
    uint64_t has = get_n(r);
    if (object)
        *(uint64_t *)object = has;
    for (const struct view_field *f = v->fields; f->path; f++, has >>= 1)
        if (has & 1)
            get_value(r, f, object ? (char *)object + f->offset : NULL);
}

/* ---- records ---- */

struct pack *pack_new(const struct view *v, const void *object, struct dict *words)
{
    struct writer w = {.words = words, .room = aligned(v->size)};
    buf_init(&w.out, UINT32_MAX);
    put_fields(&w, v, object);
    struct pack *p = xmalloc(sizeof *p + w.out.n);
    *p = (struct pack){.n = (uint32_t)w.out.n, .room = (uint32_t)w.room};
    memcpy(p->data, w.out.data, w.out.n);
    buf_fini(&w.out);
    return p;
}

void pack_drop(struct pack *p, const struct view *v, struct dict *words)
{
    if (!p)
        return;
    struct reader r = {.at = p->data, .drop = words};
    get_fields(&r, v, NULL);
    ASSERT(r.at == p->data + p->n);
    free(p);
}

void *pack_open(const struct pack *p, const struct view *v, const struct dict *words,
                struct pack_room *room)
{
    if (room->size < p->room) {
        free(room->data);
        room->data = xmalloc(p->room);
        room->size = p->room;
    }
    memset(room->data, 0, p->room);
    struct reader r = {.at = p->data, .base = room->data, .words = words};
    void *object = get_room(&r, v->size);
    get_fields(&r, v, object);
    ASSERT(r.at == p->data + p->n && r.used == p->room);
    return object;
}

void pack_room_fini(struct pack_room *room)
{
    free(room->data);
    *room = (struct pack_room){0};
}

size_t pack_bytes(const struct pack *p)
{
    return sizeof *p + p->n;
}
