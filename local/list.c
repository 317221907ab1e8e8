/* get and list: scope, selectors, paging, reading as of a resourceVersion. */
#include "local/render.h"
#include "local/verbs.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_LIST_BYTES (256u << 20)

void verb_get(struct call *c)
{
    json_t *st = NULL;
    struct obj *o = bucket_get(c->r->bucket, c->ns, c->name);
    if (!o) {
        (void)status_not_found(&st, c->r, c->name);
        call_fail(c, st);
        return;
    }
    struct render d;
    struct buf b;
    buf_init(&b, MAX_LIST_BYTES);
    render_init(&d, c);
    if (render_object(&d, o, true, &b))
        call_reply_text(c, 500, "text/plain", STR("out of memory\n"));
    else
        call_reply_text(c, 200, render_content_type(&d, false), buf_view(&b));
    buf_fini(&b);
}

/* ---- collecting ---- */

static void push(struct obj_list *l, struct obj *o)
{
    if (l->n == l->cap) {
        l->cap = l->cap ? l->cap * 2 : 64;
        l->v = xrealloc(l->v, l->cap * sizeof(struct obj *));
    }
    l->v[l->n++] = obj_ref(o);
}

void list_free(struct obj_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        obj_unref(l->v[i]);
    free(l->v);
    *l = (struct obj_list){0};
}

static bool in_scope(const struct call *c, const struct obj *o)
{
    return !*c->ns || !strcmp(o->ns, c->ns);
}

static void take(struct call *c, const struct selector *sel, struct obj *o, struct obj_list *out)
{
    if (in_scope(c, o) && selector_matches(sel, o->doc))
        push(out, o);
}

static int by_key(const void *a, const void *b)
{
    return strcmp((*(struct obj *const *)a)->key, (*(struct obj *const *)b)->key);
}

/* The state at rv is the present one with the events after rv undone. */
static void collect_past(struct call *c, const struct selector *sel, uint64_t rv,
                         struct obj_list *out)
{
    json_t *changed = json_object();
    const struct event *ev;
    for (size_t i = store_events_after(c->s->store, rv); (ev = store_event(c->s->store, i)); i++) {
        if (ev->bucket != c->r->bucket || json_object_get(changed, ev->obj->key))
            continue;
        json_object_set_new(changed, ev->obj->key, json_true());
        if (ev->prev)
            take(c, sel, ev->prev, out);
    }
    for (size_t i = 0; i < bucket_count(c->r->bucket); i++) {
        struct obj *o = bucket_at(c->r->bucket, i);
        if (!json_object_get(changed, o->key))
            take(c, sel, o, out);
    }
    json_decref(changed);
    if (out->n)
        qsort(out->v, out->n, sizeof(struct obj *), by_key);
}

static void collect_now(struct call *c, const struct selector *sel, struct obj_list *out)
{
    const char *name = selector_name(sel);
    struct bucket *b = c->r->bucket;
    if (name && (*c->ns || !resource_has(c->r, R_NAMESPACED))) {
        struct obj *o = bucket_get(b, c->ns, name);
        if (o)
            take(c, sel, o, out);
        return;
    }
    CLEANUP(free_charp) char *first = *c->ns ? xasprintf("%s/", c->ns) : xstrdup("");
    size_t n = strlen(first);
    for (size_t i = bucket_lower(b, first); i < bucket_count(b); i++) {
        struct obj *o = bucket_at(b, i);
        if (strncmp(o->key, first, n) != 0)
            break;
        take(c, sel, o, out);
    }
}

int list_collect(struct call *c, const struct selector *sel, uint64_t rv, struct obj_list *out,
                 json_t **st)
{
    *out = (struct obj_list){0};
    if (!rv || rv >= store_rv(c->s->store))
        collect_now(c, sel, out);
    else if (rv < store_compacted(c->s->store))
        return status_expired(st, "The resourceVersion for the provided list is too old.");
    else
        collect_past(c, sel, rv, out);
    return 0;
}

/* ---- paging ---- */

struct page {
    uint64_t rv;   /* of the snapshot */
    char *start;   /* keys after this one; NULL: from the first */
    int64_t limit; /* 0: no limit */
};

static char *encode_token(uint64_t rv, const char *last)
{
    json_t *t =
        json_pack("{s:s,s:I,s:s}", "v", "meta.k8s.io/v1", "rv", (json_int_t)rv, "start", last);
    char *text = json_dumps(t, JSON_COMPACT);
    json_decref(t);
    size_t n = strlen(text);
    char *out = xmalloc((n + 2) / 3 * 4 + 1);
    EVP_EncodeBlock((unsigned char *)out, (const unsigned char *)text, (int)n);
    free(text);
    for (char *p = out; *p; p++)
        *p = *p == '+' ? '-' : *p == '/' ? '_' : *p;
    for (size_t len = strlen(out); len && out[len - 1] == '='; len--)
        out[len - 1] = 0;
    return out;
}

static int decode_token(const char *token, struct page *p, json_t **st)
{
    size_t n = strlen(token), padded = (n + 3) / 4 * 4;
    if (n > 4096)
        return status_bad_request(st, "continue key is not valid: too long");
    char *in = xcalloc(1, padded + 1);
    for (size_t i = 0; i < padded; i++)
        in[i] = i >= n ? '=' : token[i] == '-' ? '+' : token[i] == '_' ? '/' : token[i];
    char *text = xcalloc(1, padded + 1);
    int len = EVP_DecodeBlock((unsigned char *)text, (const unsigned char *)in, (int)padded);
    json_t *t = len > 0 ? json_loads(text, 0, NULL) : NULL;
    free(in);
    free(text);
    const char *start = json_str_at(t, "start", NULL);
    int64_t rv = json_int_at(t, "rv", 0);
    if (!start || rv <= 0) {
        json_decref(t);
        return status_bad_request(st, "continue key is not valid: the token can't be read");
    }
    p->rv = (uint64_t)rv;
    p->start = xstrdup(start);
    json_decref(t);
    return 0;
}

static int too_large(struct call *c, uint64_t rv, json_t **st)
{
    (void)status_set(st, 504, "Timeout", NULL, NULL,
                     "Timeout: Too large resource version: %llu, current: %llu",
                     (unsigned long long)rv, (unsigned long long)store_rv(c->s->store));
    status_add_cause(*st, "ResourceVersionTooLarge", "Too large resource version", NULL);
    json_object_set_new(json_object_get(*st, "details"), "retryAfterSeconds", json_integer(1));
    return -1;
}

static int invalid_options(json_t **st, const char *field, const char *why)
{
    json_t *causes = json_array();
    cause_forbidden(causes, field, "%s", why);
    return status_invalid(st, "meta.k8s.io", "ListOptions", "", causes);
}

static int check_match(const char *match, const char *rv, const char *token, json_t **st)
{
    if (!match || !*match)
        return 0;
    if (token && *token)
        return invalid_options(st, "resourceVersionMatch",
                               "resourceVersionMatch is forbidden with continue");
    if (!rv || !*rv)
        return invalid_options(
            st, "resourceVersionMatch",
            "resourceVersionMatch is forbidden unless resourceVersion is provided");
    if (!strcmp(match, "Exact") && !strcmp(rv, "0"))
        return invalid_options(
            st, "resourceVersionMatch",
            "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
    if (!strcmp(match, "Exact") || !strcmp(match, "NotOlderThan"))
        return 0;
    static const char *const allowed[] = {"Exact", "NotOlderThan", "", NULL};
    json_t *causes = json_array(), *v = json_string(match);
    cause_unsupported(causes, "resourceVersionMatch", v, allowed);
    json_decref(v);
    return status_invalid(st, "meta.k8s.io", "ListOptions", "", causes);
}

static int parse_page(struct call *c, struct page *p, json_t **st)
{
    const char *limit = httpd_arg(c->req, "limit"), *token = httpd_arg(c->req, "continue");
    const char *rv = httpd_arg(c->req, "resourceVersion");
    const char *match = httpd_arg(c->req, "resourceVersionMatch");
    uint64_t n = 0;
    *p = (struct page){0};
    if (limit && *limit && str_to_i64(str_c(limit), 0, INT64_MAX, &p->limit))
        return status_bad_request(st, "limit is not a number: %s", limit);
    if (check_match(match, rv, token, st))
        return -1;
    if (rv && *rv && str_to_u64(str_c(rv), 0, UINT64_MAX, &n))
        return status_bad_request(st, "Invalid value: \"%s\": resourceVersion must be a number",
                                  rv);
    if (token && *token) {
        if (n)
            return status_bad_request(
                st, "specifying resource version is not allowed when using continue");
        return decode_token(token, p, st);
    }
    if (n > store_rv(c->s->store))
        return too_large(c, n, st);
    bool exact = match && !strcmp(match, "Exact");
    p->rv = exact || (n && p->limit && (!match || !*match)) ? n : store_rv(c->s->store);
    return 0;
}

/* ---- list ---- */

static size_t first_after(const struct obj_list *l, const char *start)
{
    size_t i = 0;
    while (start && i < l->n && strcmp(l->v[i]->key, start) <= 0)
        i++;
    return i;
}

static json_t *list_meta(const struct page *p, const struct obj_list *l, size_t from, size_t n,
                         bool counted)
{
    json_t *meta =
        json_pack("{s:o}", "resourceVersion", json_sprintf("%llu", (unsigned long long)p->rv));
    size_t left = l->n - from - n;
    if (left) {
        CLEANUP(free_charp) char *token = encode_token(p->rv, l->v[from + n - 1]->key);
        json_object_set_new(meta, "continue", json_string(token));
        if (counted)
            json_object_set_new(meta, "remainingItemCount", json_integer((json_int_t)left));
    }
    return meta;
}

static void reply_list(struct call *c, const struct page *p, const struct selector *sel,
                       const struct obj_list *l)
{
    struct render d;
    struct buf b;
    size_t from = first_after(l, p->start), n = l->n - from;
    if (p->limit && (uint64_t)p->limit < n)
        n = (size_t)p->limit;
    json_t *meta = list_meta(p, l, from, n, selector_empty(sel));
    buf_init(&b, MAX_LIST_BYTES);
    render_init(&d, c);
    if (render_list(&d, l->v + from, n, meta, &b))
        call_reply_text(c, 500, "text/plain", STR("the list is too large, use limit\n"));
    else
        call_reply_text(c, 200, render_content_type(&d, false), buf_view(&b));
    buf_fini(&b);
    json_decref(meta);
}

void verb_list(struct call *c)
{
    json_t *st = NULL;
    struct page p = {0};
    struct selector sel = {0};
    struct obj_list l = {0};
    server_commit(c->s);
    int rc = parse_page(c, &p, &st);
    if (!rc)
        rc = selector_parse(c->r, httpd_arg(c->req, "labelSelector"),
                            httpd_arg(c->req, "fieldSelector"), &sel, &st);
    if (!rc)
        rc = list_collect(c, &sel, p.rv, &l, &st);
    if (rc && p.start && status_code(st) == 410) {
        json_decref(st);
        (void)status_expired(&st,
                             "The provided continue parameter is too old to display a consistent "
                             "list result. You can start a new list without the continue "
                             "parameter.");
    }
    if (rc)
        call_fail(c, st);
    else
        reply_list(c, &p, &sel, &l);
    list_free(&l);
    selector_fini(&sel);
    free(p.start);
}
