#include "lib/kube/access.h"
#include "lib/base/log.h"
#include "lib/base/metrics.h"

#include <stdlib.h>

#define AGAIN_MS     30000u
#define CONFIRM_MS   3600000u /* a lost right shows in what it refuses */
#define RETRY_MS     2000u
#define SENTENCE_MAX 1500
#define PATIENCE     5 /* failures to ask before readiness stops waiting for an answer */

struct access {
    struct kube_client *client;
    const struct access_right *rights;
    char *account, *namespace;
    void (*on_change)(void *ctx);
    void *ctx;
    uv_timer_t *timer;
    size_t at;        /* the right that is asked about */
    const char *verb; /* and its verb, within rights[at].verbs */
    unsigned n_missing;
    struct buf found; /* of this round */
    char *sentence;   /* of the last whole round; NULL: nothing is missing */
    bool asking, stopped;
    bool settled;  /* one round is over, or there is nobody to ask */
    bool accepted; /* access_ready has said yes */
    unsigned failures;
    struct metric *gauge;
};

static const struct kube_kind reviews = {"authorization.k8s.io/v1", "SelfSubjectAccessReview",
                                         "selfsubjectaccessreviews", false, NULL};

static void ask(struct access *a);

static struct str verb_of(const struct access *a)
{
    return (struct str){a->verb, strcspn(a->verb, ",")};
}

static void note_missing(struct access *a)
{
    const struct access_right *r = &a->rights[a->at];
    struct str verb = verb_of(a);
    a->n_missing++;
    if (a->found.n > SENTENCE_MAX)
        return;
    int rc = buf_printf(&a->found, "%s" STR_FMT " %s%s%s%s%s", a->found.n ? ", " : "",
                        STR_ARG(verb), r->resource, *r->group ? " of " : "", r->group,
                        r->name ? " named " : "", r->name ? r->name : "");
    const char *where = r->where ? r->where : a->namespace;
    if (!rc && where && strcmp(where, "*") != 0)
        rc = buf_printf(&a->found, " in %s", where);
    if (rc)
        log_error("a missing right can't be told", LS("resource", r->resource));
}

/* A whole round is over: what is missing now? */
static void conclude(struct access *a)
{
    char *now = NULL;
    if (a->n_missing)
        now = xasprintf("%s may not %.*s: its Role or ClusterRole lacks this; helm upgrade, or "
                        "kubectl apply -f manifests/cluster/10-rbac.yaml, brings it back",
                        a->account, (int)a->found.n, a->found.data);
    bool changed = !now != !a->sentence || (now && strcmp(now, a->sentence) != 0);
    metric_set(a->gauge, a->n_missing);
    free(a->sentence);
    a->sentence = now;
    a->settled = true;
    if (changed && now)
        log_error("rights are missing", LS("what", now));
    else if (changed)
        log_info("all rights are there");
    if (changed && a->on_change)
        a->on_change(a->ctx);
}

static void on_timer(uv_timer_t *t)
{
    struct access *a = t->data;
    if (!a->asking)
        ask(a);
}

static void begin_round(struct access *a, unsigned after_ms)
{
    a->at = 0;
    a->verb = a->rights[0].verbs;
    a->n_missing = 0;
    buf_reset(&a->found);
    uv_timer_start(a->timer, on_timer, after_ms, 0);
}

static void advance(struct access *a)
{
    const char *comma = strchr(a->verb, ',');
    if (comma) {
        a->verb = comma + 1;
    } else {
        a->at++;
        a->verb = a->rights[a->at].verbs;
    }
    if (a->rights[a->at].group) {
        ask(a);
        return;
    }
    conclude(a);
    begin_round(a, a->sentence ? AGAIN_MS : CONFIRM_MS);
}

static void on_answer(const struct kube_result *r, void *ctx)
{
    struct access *a = ctx;
    a->asking = false;
    if (a->stopped) {
        free(a);
        return;
    }
    if (r->status == 404 || r->status == 405 || r->status == 501) { /* no such API here */
        a->settled = true;
        return;
    }
    if (r->err.code) {
        a->settled |= ++a->failures >= PATIENCE;
        log_debug("a right could not be asked for", LERR(&r->err));
        uv_timer_start(a->timer, on_timer, r->retry_after_ms ? r->retry_after_ms : RETRY_MS, 0);
        return;
    }
    if (!json_bool_at(r->object, "status.allowed", false))
        note_missing(a);
    advance(a);
}

static json_t *question(const struct access *a)
{
    const struct access_right *r = &a->rights[a->at];
    struct str resource, subresource = str_cut(str_c(r->resource), '/', &resource);
    struct str verb = verb_of(a);
    const char *where = r->where ? r->where : a->namespace;
    json_t *what = json_pack("{s:s, s:s%, s:s%}", "group", r->group, "resource", resource.p,
                             resource.n, "verb", verb.p, verb.n);
    if (subresource.n)
        json_object_set_new(what, "subresource", json_stringn(subresource.p, subresource.n));
    if (r->name)
        json_object_set_new(what, "name", json_string(r->name));
    if (where && strcmp(where, "*") != 0)
        json_object_set_new(what, "namespace", json_string(where));
    return json_pack("{s:{s:o}}", "spec", "resourceAttributes", what);
}

static void ask(struct access *a)
{
    struct err e = {0};
    CLEANUP(json_decrefp) json_t *body = question(a);
    struct kube_call call = {
        .verb = KUBE_CREATE, .kind = &reviews, .body = body, .done = on_answer, .ctx = a};
    if (kube_start(a->client, &call, &e)) {
        log_error("a right can't be asked for", LERR(&e));
        return;
    }
    a->asking = true;
}

int access_start(struct kube_client *c, const char *account, const char *namespace,
                 const struct access_right *rights, void (*on_change)(void *ctx), void *ctx,
                 struct access **out, struct err *e)
{
    uv_timer_t *timer = xcalloc(1, sizeof *timer);
    int rc = uv_timer_init(kube_loop(c), timer);
    if (rc) {
        free(timer);
        return err_set(e, -rc, "can't make a timer: %s", uv_strerror(rc));
    }
    struct access *a = xcalloc(1, sizeof *a);
    *a = (struct access){.client = c,
                         .rights = rights,
                         .account = xstrdup(account),
                         .namespace = namespace ? xstrdup(namespace) : NULL,
                         .on_change = on_change,
                         .ctx = ctx,
                         .timer = timer,
                         .gauge = metric_new(METRIC_GAUGE, "baton_kube_rights_missing",
                                             "Rights at the API server that this program lacks.")};
    buf_init(&a->found, 4096);
    timer->data = a;
    begin_round(a, 0);
    *out = a;
    return 0;
}

static void timer_closed(uv_handle_t *h)
{
    free(h);
}

void access_stop(struct access *a)
{
    if (!a)
        return;
    uv_close((uv_handle_t *)a->timer, timer_closed);
    buf_fini(&a->found);
    free(a->account);
    free(a->namespace);
    free(a->sentence);
    a->stopped = true;
    if (!a->asking) /* else the answer frees it, or nobody does: the client is about to go */
        free(a);
}

const char *access_missing(const struct access *a)
{
    return a ? a->sentence : NULL;
}

bool access_ready(struct access *a, struct buf *why)
{
    if (!a || a->accepted)
        return true;
    a->accepted = a->settled && !a->sentence;
    if (a->accepted)
        return true;
    return buf_cstr(why, a->sentence ? a->sentence : "the rights are being looked at") > 0;
}
