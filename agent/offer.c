/* GET /v1/internal/weights/<sha256>[?manifest | /<file>]: model files for other nodes' agents, with
 * ranges, for who knows the peer secret of a deployment that uses the model. */
#include "agent/models_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <utlist.h>

#define PREFIX "/v1/internal/weights/"
#define STALE_NS                                                                                   \
    (5 * NS_PER_S) /* a secret that does not match is asked for again after so long                \
                    */
#define OFFERS_MAX 64

struct offer {
    struct models *m;
    struct httpd_req *req;
    char sha256[SHA_HEX];
    char name[256]; /* of the file; "": the only one */
    bool manifest;
    struct store_entry *entry; /* being read: its files stay */
    unsigned tries;
    bool waits;
    struct offer *prev, *next;
};

enum allowed { ALLOWED, DENIED, NOT_KNOWN_YET };

struct check {
    struct offer *o;
    const char *source; /* of the model in the cache; NULL: none */
    const char *bearer;
    enum allowed result;
};

/* Equal, in a time that depends on the length only. */
static bool same(const char *a, const char *b)
{
    size_t n = strlen(a);
    unsigned char diff = 0;
    if (n != strlen(b) || !n)
        return false;
    for (size_t i = 0; i < n; i++)
        diff |= (unsigned char)(a[i] ^ b[i]);
    return diff == 0;
}

static bool check_infd(const void *object, void *ctx)
{
    const struct kube_infd *d = object;
    struct check *c = ctx;
    const char *value = "", *why;
    bool uses = (d->model_sha256 && strcmp(d->model_sha256, c->o->sha256) == 0) ||
                (c->source && d->model_source && strcmp(d->model_source, c->source) == 0);
    if (!uses)
        return true;
    CLEANUP(free_charp) char *name = xasprintf("%s-peer", d->meta.name);
    uint64_t age = c->o->tries ? STALE_NS : SECRET_AGE_NS;
    enum secret_state s =
        secrets_get(c->o->m->secrets, d->meta.namespace, name, SECRET_KEY, age, &value, &why);
    if (s == SECRET_HERE && same(value, c->bearer))
        c->result = ALLOWED;
    else if (s == SECRET_ASKING)
        c->result = NOT_KNOWN_YET;
    return c->result != ALLOWED;
}

static enum allowed allowed(struct offer *o, const struct store_entry *e)
{
    const char *auth = httpd_header(o->req, "Authorization");
    struct check c = {.o = o,
                      .source = e ? e->source : NULL,
                      .bearer = auth && strncmp(auth, "Bearer ", 7) == 0 ? auth + 7 : "",
                      .result = DENIED};
    kube_cache_each(o->m->infds, check_infd, &c);
    return c.result;
}

/* ---- what is offered ---- */

struct offered {
    struct offer *o;
    char *path; /* of a pinned file:// model */
};

static bool find_file(const void *object, void *ctx)
{
    const struct kube_infd *d = object;
    struct offered *x = ctx;
    struct stat st;
    if (!d->model_sha256 || strcmp(d->model_sha256, x->o->sha256) != 0 || !d->model_source ||
        strncmp(d->model_source, "file:///", 8) != 0 || stat(d->model_source + 7, &st) ||
        !S_ISREG(st.st_mode))
        return true;
    x->path = xstrdup(d->model_source + 7);
    return false;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void send_manifest(struct offer *o, const struct set *set)
{
    struct buf b;
    CLEANUP(json_decrefp) json_t *m = set_to_json(set);
    buf_init(&b, SET_MAX_TEXT);
    if (json_write(m, false, &b) == 0)
        httpd_reply(o->req, 200, "application/json", buf_view(&b));
    else
        httpd_replyf(o->req, 500, "text/plain", "the manifest is too large\n");
    buf_fini(&b);
}

static void send_entry(struct offer *o, struct store_entry *e)
{
    CLEANUP(free_charp) char *dir = store_folder(o->m->store, e);
    const char *name = *o->name ? o->name : e->set.n == 1 ? e->set.files[0].name : "";
    o->entry = e;
    e->users++;
    store_used(o->m->store, e);
    if (o->manifest) {
        send_manifest(o, &e->set);
        return;
    }
    for (size_t i = 0; i < e->set.n; i++) {
        if (strcmp(e->set.files[i].name, name) != 0)
            continue;
        CLEANUP(free_charp) char *path = xasprintf("%s/%s", dir, name);
        o->m->offered_bytes += httpd_reply_path(o->req, path, o->sha256);
        return;
    }
    httpd_replyf(o->req, 404, "text/plain", "the model has no such file\n");
}

static void send_path(struct offer *o, const char *path)
{
    struct stat st;
    struct set one = {0};
    struct err e;
    if (!o->manifest) {
        if (!*o->name || strcmp(o->name, base_name(path)) == 0)
            o->m->offered_bytes += httpd_reply_path(o->req, path, o->sha256);
        else
            httpd_replyf(o->req, 404, "text/plain", "the model has no such file\n");
        return;
    }
    if (stat(path, &st) ||
        set_add(&one, str_c(base_name(path)), (uint64_t)st.st_size, o->sha256, &e))
        httpd_replyf(o->req, 404, "text/plain", "the file can't be offered\n");
    else
        send_manifest(o, &one);
    set_fini(&one);
}

/* ---- requests ---- */

static void try(struct offer *o)
{
    struct store_entry *e = o->m->store ? store_by_sha(o->m->store, o->sha256) : NULL;
    enum allowed a = allowed(o, e);
    if (a == NOT_KNOWN_YET && o->tries++ < 4) {
        o->waits = true;
        return;
    }
    o->waits = false;
    if (a != ALLOWED) {
        httpd_replyf(o->req, 401, "text/plain", "the peer secret is not right\n");
        return;
    }
    struct offered x = {.o = o};
    if (e) {
        send_entry(o, e);
        return;
    }
    kube_cache_each(o->m->infds, find_file, &x);
    if (x.path)
        send_path(o, x.path);
    else
        httpd_replyf(o->req, 404, "text/plain", "this node does not have the model\n");
    free(x.path);
}

void offers_try(struct models *m)
{
    struct offer *o, *next;
    DL_FOREACH_SAFE(m->offers, o, next)
    if (o->waits)
        try(o);
}

static void on_close(struct httpd_req *req, bool gone, void *ctx)
{
    struct offer *o = ctx;
    (void)req, (void)gone;
    if (o->entry)
        o->entry->users--;
    DL_DELETE(o->m->offers, o);
    free(o);
}

bool models_offer(struct agent *a, struct httpd_req *req)
{
    struct models *m = a->models;
    struct str path = httpd_path(req), sha, name;
    struct offer *o, *x;
    size_t n = 0;
    if (!str_starts(path, STR(PREFIX)))
        return false;
    name =
        str_cut((struct str){path.p + sizeof PREFIX - 1, path.n - (sizeof PREFIX - 1)}, '/', &sha);
    DL_FOREACH (m->offers, x)
        n++;
    if (!str_eq_c(httpd_method(req), "GET")) {
        httpd_replyf(req, 405, "text/plain", "only GET\n");
    } else if (sha.n != SHA_HEX - 1 || name.n > 255) {
        httpd_replyf(req, 404, "text/plain", "a sha256 has 64 hex digits\n");
    } else if (n >= OFFERS_MAX) {
        httpd_replyf(req, 503, "text/plain", "too many transfers at once\n");
    } else {
        o = xcalloc(1, sizeof *o);
        o->m = m;
        o->req = req;
        memcpy(o->sha256, sha.p, sha.n);
        memcpy(o->name, name.p, name.n);
        o->manifest = str_eq_c(httpd_query(req), "manifest");
        DL_APPEND(m->offers, o);
        httpd_on_close(req, on_close, o);
        try(o);
    }
    return true;
}
