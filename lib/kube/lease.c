#include "lib/kube/lease.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/rng.h"

#include <errno.h>
#include <stdlib.h>

struct kube_lease {
    struct kube_client *client;
    struct kube_lease_config cfg;
    char *namespace, *name, *identity;
    uv_timer_t timer;    /* next try, or the end of a release */
    uv_timer_t deadline; /* leader: last renewal + renew deadline */
    struct rng rng;
    char *rv, *record; /* what was last seen, and its raw text */
    char *holder, *acquired_at;
    uint64_t observed_ns; /* local time at which `record` last changed */
    uint64_t renewed_ns, sent_ns;
    int64_t transitions;
    int64_t duration_s; /* as the holder wrote it */
    bool leading, lost, busy, releasing, closed;
    unsigned open_handles;
    void (*released)(void *ctx);
    void *released_ctx;
};

static void attempt(struct kube_lease *l);

static void on_handle_closed(uv_handle_t *h)
{
    struct kube_lease *l = h->data;
    if (--l->open_handles)
        return;
    free(l->namespace);
    free(l->name);
    free(l->identity);
    free(l->rv);
    free(l->record);
    free(l->holder);
    free(l->acquired_at);
    free(l);
}

static void dispose(struct kube_lease *l)
{
    l->closed = true;
    uv_close((uv_handle_t *)&l->timer, on_handle_closed);
    uv_close((uv_handle_t *)&l->deadline, on_handle_closed);
}

static void replace(char **slot, const char *value)
{
    char *copy = xstrdup(value ? value : "");
    free(*slot);
    *slot = copy;
}

static void on_timer(uv_timer_t *t)
{
    attempt(t->data);
}

static void later(struct kube_lease *l)
{
    double jitter = l->leading ? 1 : 1 + 1.2 * rng_unit(&l->rng);
    if (!l->lost && !l->releasing)
        uv_timer_start(&l->timer, on_timer, (uint64_t)(l->cfg.retry_ms * jitter), 0);
}

static void lose(struct kube_lease *l)
{
    if (!l->leading || l->lost)
        return;
    l->leading = false;
    l->lost = true;
    uv_timer_stop(&l->timer);
    uv_timer_stop(&l->deadline);
    log_error("leadership lost: no longer writing", LS("lease", l->name),
              LS("identity", l->identity));
    if (l->cfg.on_lost)
        l->cfg.on_lost(l->cfg.ctx);
}

static void on_deadline(uv_timer_t *t)
{
    lose(t->data);
}

bool kube_lease_valid(const struct kube_lease *l)
{
    return l->leading && clock_mono_ns() < l->renewed_ns + l->cfg.renew_deadline_ms * NS_PER_MS;
}

/* Remembers what the server holds; the observe time moves only when the record changed. */
static void observe(struct kube_lease *l, const json_t *lease)
{
    struct buf b;
    buf_init(&b, 65536);
    const json_t *spec = json_object_get(lease, "spec");
    const char *holder = json_str_at(spec, "holderIdentity", "");
    bool new_holder = !l->holder || strcmp(l->holder, holder) != 0;
    if (spec && json_write(spec, true, &b) == 0 && (!l->record || strcmp(l->record, b.data) != 0)) {
        replace(&l->record, b.data);
        l->observed_ns = clock_mono_ns();
    }
    buf_fini(&b);
    replace(&l->rv, json_str_at(lease, "metadata.resourceVersion", ""));
    replace(&l->holder, holder);
    replace(&l->acquired_at, json_str_at(spec, "acquireTime", ""));
    l->transitions = json_int_at(spec, "leaseTransitions", 0);
    l->duration_s = json_int_at(spec, "leaseDurationSeconds", 0);
    if (new_holder && l->cfg.on_leader)
        l->cfg.on_leader(holder, l->cfg.ctx);
}

static json_t *body(const struct kube_lease *l, bool release)
{
    char now[CLOCK_RFC3339_MAX];
    bool ours = l->holder && strcmp(l->holder, l->identity) == 0;
    clock_rfc3339(clock_wall_ns(), 6, now);
    json_t *meta = json_pack("{s:s, s:s}", "name", l->name, "namespace", l->namespace);
    if (l->rv && *l->rv)
        json_object_set_new(meta, "resourceVersion", json_string(l->rv));
    int64_t seconds = (l->cfg.duration_ms + 999) / 1000;
    return json_pack("{s:o, s:{s:s, s:I, s:s, s:s, s:I}}", "metadata", meta, "spec",
                     "holderIdentity", release ? "" : l->identity, "leaseDurationSeconds",
                     (json_int_t)(release ? 1 : seconds), "acquireTime",
                     ours && *l->acquired_at ? l->acquired_at : now, "renewTime", now,
                     "leaseTransitions", (json_int_t)(l->transitions + (l->rv && *l->rv && !ours)));
}

static void request(struct kube_lease *l, enum kube_verb verb, json_t *b, kube_done_fn done)
{
    struct err e = {0};
    struct kube_call call = {
        .verb = verb,
        .kind = &kube_leases,
        .namespace = l->namespace,
        .name = l->name,
        .body = b,
        .timeout_ms = l->cfg.renew_deadline_ms / 2,
        .urgent = true,
        .done = done,
        .ctx = l,
    };
    l->busy = true;
    l->sent_ns = clock_mono_ns();
    if (kube_start(l->client, &call, &e)) {
        l->busy = false;
        log_warn("lease request failed", LERR(&e));
        later(l);
    }
    json_decref(b);
}

static void finish_release(struct kube_lease *l)
{
    if (l->closed)
        return;
    if (l->released)
        l->released(l->released_ctx);
    dispose(l);
}

/* An answer after kube_lease_release only ends the release. */
static bool over(struct kube_lease *l)
{
    l->busy = false;
    if (!l->releasing)
        return false;
    finish_release(l);
    return true;
}

static void on_written(const struct kube_result *r, void *ctx)
{
    struct kube_lease *l = ctx;
    if (over(l) || l->lost)
        return;
    if (r->err.code) {
        log_debug("lease not written", LS("reason", r->reason), LERR(&r->err));
        if (r->err.code == EAGAIN || r->err.code == EEXIST)
            replace(&l->rv, ""); /* someone else wrote: read it again first */
        later(l);
        return;
    }
    observe(l, r->object);
    l->renewed_ns = l->sent_ns;
    bool first = !l->leading;
    l->leading = true;
    uv_timer_start(&l->deadline, on_deadline, l->cfg.renew_deadline_ms, 0);
    later(l);
    if (first) {
        log_info("leadership acquired", LS("lease", l->name), LS("identity", l->identity));
        if (l->cfg.on_acquired)
            l->cfg.on_acquired(l->cfg.ctx);
    }
}

static bool expired(const struct kube_lease *l)
{
    uint64_t s = l->duration_s > 0 ? (uint64_t)l->duration_s : 0;
    if (!l->holder || !*l->holder)
        return true;
    return clock_mono_ns() > l->observed_ns + s * NS_PER_S;
}

static void on_read(const struct kube_result *r, void *ctx)
{
    struct kube_lease *l = ctx;
    if (over(l) || l->lost)
        return;
    if (r->status == 404) {
        replace(&l->rv, "");
        replace(&l->holder, "");
        request(l, KUBE_CREATE, body(l, false), on_written);
        return;
    }
    if (r->err.code || !r->object) {
        later(l);
        return;
    }
    observe(l, r->object);
    bool ours = strcmp(l->holder, l->identity) == 0;
    if (l->leading && !ours) {
        lose(l);
        return;
    }
    if (ours || expired(l))
        request(l, KUBE_UPDATE, body(l, false), on_written);
    else
        later(l);
}

static void attempt(struct kube_lease *l)
{
    if (l->busy || l->lost || l->releasing)
        return;
    if (l->leading && l->rv && *l->rv)
        request(l, KUBE_UPDATE, body(l, false), on_written);
    else
        request(l, KUBE_GET, NULL, on_read);
}

int kube_lease_start(struct kube_client *c, const struct kube_lease_config *cfg,
                     struct kube_lease **out, struct err *e)
{
    struct kube_lease *l = xcalloc(1, sizeof *l);
    l->client = c;
    l->cfg = *cfg;
    l->cfg.duration_ms = cfg->duration_ms ? cfg->duration_ms : 15000;
    l->cfg.renew_deadline_ms = cfg->renew_deadline_ms ? cfg->renew_deadline_ms : 10000;
    l->cfg.retry_ms = cfg->retry_ms ? cfg->retry_ms : 2000;
    if (l->cfg.duration_ms <= l->cfg.renew_deadline_ms ||
        l->cfg.renew_deadline_ms <= l->cfg.retry_ms * 6 / 5) {
        free(l);
        return err_set(e, EINVAL,
                       "lease times must satisfy duration > renew deadline > 1.2 x retry period");
    }
    l->namespace = xstrdup(cfg->namespace);
    l->name = xstrdup(cfg->name);
    l->identity = xstrdup(cfg->identity);
    l->rng = (struct rng){rng_secret_u64()};
    l->timer.data = l->deadline.data = l;
    l->open_handles = 2;
    int rc = uv_timer_init(kube_loop(c), &l->timer);
    ASSERT(rc == 0);
    rc = uv_timer_init(kube_loop(c), &l->deadline);
    ASSERT(rc == 0);
    uv_timer_start(&l->timer, on_timer, 0, 0);
    *out = l;
    return 0;
}

static void on_release_timeout(uv_timer_t *t)
{
    finish_release(t->data);
}

static void on_released(const struct kube_result *r, void *ctx)
{
    (void)r;
    over(ctx);
}

void kube_lease_release(struct kube_lease *l, void (*done)(void *ctx), void *ctx)
{
    bool held = l->leading && !l->busy && l->rv && *l->rv;
    l->releasing = true;
    l->leading = false;
    l->released = done;
    l->released_ctx = ctx;
    uv_timer_stop(&l->deadline);
    uv_timer_start(&l->timer, on_release_timeout, 1000, 0);
    if (held)
        request(l, KUBE_UPDATE, body(l, true), on_released);
    else if (!l->busy)
        finish_release(l);
}
