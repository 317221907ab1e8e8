/* server_int.h: what the files of the embedded API server share. Not for others (local/server.h is
 * the public side). All of it runs on the loop's thread. */
#pragma once
#include "local/resource.h"
#include "local/server.h"
#include "local/status.h"

struct watch;
struct user;
struct gc;

struct server {
    uv_loop_t *loop;
    char *data_dir, *url, *ca_pem;
    struct httpd *httpd;
    struct store *store;
    struct registry *reg;
    struct crd *crds;
    struct user *users;
    struct gc *gc;
    struct watch *watches;
    struct call *waiting; /* replies held back until the commit */
    uv_idle_t idle; /* active while a commit is due, so that the loop doesn't sleep before it */
    uv_check_t check;
    uv_timer_t tick; /* one second: bookmarks, watch deadlines, namespace and event clean-up */
    int open_handles;
    server_log_fn log_fn;
    void *log_ctx;
};

enum verb {
    VERB_GET,
    VERB_LIST,
    VERB_WATCH,
    VERB_CREATE,
    VERB_UPDATE,
    VERB_PATCH,
    VERB_DELETE,
    VERB_DELETE_COLLECTION,
};

enum accept { ACCEPT_OBJECT, ACCEPT_TABLE, ACCEPT_PARTIAL };

/* One request to a resource. Freed when the exchange is over. */
struct call {
    struct server *s;
    struct httpd_req *req;
    const struct user *user;
    struct call *next; /* in server.waiting */
    uint64_t start_ns;
    bool queued, watch_path;
    /* target */
    const struct resource *r;
    enum verb verb;
    char *ns, *name, *sub; /* ns "": cluster or all namespaces; name, sub NULL when absent */
    enum accept accept;
    /* options of writes */
    bool dry_run, force;
    const char *manager; /* field manager, never NULL */
    enum { FIELDS_IGNORE, FIELDS_WARN, FIELDS_STRICT } validation;
    /* reply */
    int status;
    char *body;
    size_t body_len;
    const char *content_type;
    json_t *warnings; /* array of strings */
    struct watch *watch;
};

/* Replies once; the answer leaves after the next commit when one is due. doc is stolen. */
void call_reply(struct call *c, int status, json_t *doc);
void call_reply_text(struct call *c, int status, const char *content_type, struct str text);
void call_fail(struct call *c, json_t *st); /* st is stolen; 401 and 429 get their headers */
/* Answers with the object as the client asked for it (object, table, partial metadata). doc is
 * stolen (storage form). */
void call_reply_object(struct call *c, int status, json_t *doc);
void call_warn(struct call *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Body as JSON or YAML by Content-Type; empty bodies give NULL with *st NULL. */
json_t *call_body(struct call *c, json_t **st);
json_t *call_decode(struct call *c, struct str body, bool yaml, json_t **st);

/* rest.c */
void rest_handle(struct httpd_req *req, void *ctx);
/* Something was written: commit soon. */
void server_touch(struct server *s);

/* Writes that every path shares (object.c): store, then tell CRDs, namespaces, garbage collection.
 */
struct obj *object_store(struct server *s, const struct resource *r, json_t *doc, json_t **st);
int object_remove(struct server *s, const struct resource *r, struct obj *o,
                  json_t **st) MUST_CHECK;

/* Served form of a stored object for resource r: apiVersion of r, conversion, and for custom
 * resources what the schema of today prunes and defaults. New reference. */
json_t *object_view(const struct resource *r, const struct obj *o);
/* Whether the stored document is the served form already. */
bool object_is_view(const struct resource *r, struct obj *o);

/* subresource handlers (sub.c); true when c->sub is theirs */
bool sub_handle(struct call *c);

char *now_rfc3339(char out[40]);
void new_uid(char out[37]);
