#include "local/auth.h"
#include "local/crd.h"
#include "lib/base/file.h"
#include "local/gc.h"
#include "local/spaces.h"
#include "local/sub.h"
#include "local/tls.h"
#include "local/verbs.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/metrics.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define MAX_REQUEST_BYTES (3u << 20)

/* ---- commits ---- */

/* Only keeps the loop from sleeping before on_check. */
static void on_idle(uv_idle_t *h)
{
    (void)h;
}

void server_touch(struct server *s)
{
    uv_idle_start(&s->idle, on_idle);
}

static void meter_commit(const struct server *s)
{
    static struct metric *commits, *watches;
    if (!commits) {
        commits = metric_new(METRIC_COUNTER, "baton_apiserver_commits_total",
                             "Transactions; those of one loop iteration share one.");
        watches = metric_new(METRIC_GAUGE, "baton_apiserver_watches", "Open watches.");
    }
    metric_add(commits, 1);
    metric_set(watches, (double)watch_count(s));
}

void server_commit(struct server *s)
{
    struct err e = {0};
    gc_run(s);
    spaces_run(s);
    if (store_dirty(s->store))
        meter_commit(s);
    if (store_commit(s->store, &e)) {
        crd_reload(s);
        server_flush(s, e.msg);
    } else {
        server_flush(s, NULL);
    }
}

static void on_check(uv_check_t *h)
{
    struct server *s = h->data;
    if (!uv_is_active((uv_handle_t *)&s->idle))
        return;
    uv_idle_stop(&s->idle);
    server_commit(s);
}

static void on_tick(uv_timer_t *h)
{
    struct server *s = h->data;
    spaces_tick(s);
    pdb_tick(s);
    watch_tick(s);
}

/* ---- start ---- */

static int make_dir(const char *path, struct err *e)
{
    if (!mkdir(path, 0700) || errno == EEXIST)
        return 0;
    return err_set(e, errno, "%s: %s", path, strerror(errno));
}

static int open_store(struct server *s, const struct server_config *c, struct err *e)
{
    CLEANUP(free_charp) char *path = xasprintf("%s/store.db", s->data_dir);
    struct store_config sc = {.path = path,
                              .event_window = c->event_window ? c->event_window : 10000,
                              .on_event = watch_event,
                              .ctx = s};
    int rc = store_open(&sc, &s->store, e);
    if (rc)
        return rc;
    s->reg = registry_new(s->store);
    crd_reload(s);
    return 0;
}

static void init_handles(struct server *s)
{
    uv_idle_init(s->loop, &s->idle);
    uv_check_init(s->loop, &s->check);
    uv_timer_init(s->loop, &s->tick);
    s->idle.data = s->check.data = s->tick.data = s;
    uv_check_start(&s->check, on_check);
    uv_timer_start(&s->tick, on_tick, 1000, 1000);
    uv_unref((uv_handle_t *)&s->check);
    uv_unref((uv_handle_t *)&s->tick);
    s->open_handles = 3;
}

/* The first start makes the namespaces and roles that a cluster has. Their events are forgotten, so
 * that the window begins behind them as a real server's does. */
static int first_objects(struct server *s, struct err *e)
{
    CLEANUP(free_charp) char *made = store_meta_get(s->store, "made");
    if (made)
        return 0;
    spaces_first(s);
    gc_run(s);
    int rc = store_commit(s->store, e);
    if (rc)
        return rc;
    store_compact(s->store);
    return store_meta_set(s->store, "made", "1", e);
}

static int listen_on(struct server *s, const struct server_config *c, const struct tls_files *t,
                     struct err *e)
{
    CLEANUP(free_charp) char *last = store_meta_get(s->store, "port");
    uint64_t port = c->port;
    struct httpd_config hc = {.loop = s->loop,
                              .host = c->host ? c->host : "127.0.0.1",
                              .max_body_bytes = MAX_REQUEST_BYTES,
                              .max_connections = 4096,
                              .idle_timeout_s = 300,
                              .tls_cert_pem = t->cert_pem,
                              .tls_key_pem = t->key_pem,
                              .handler = rest_handle,
                              .ctx = s};
    bool reuse = !port && last && !str_to_u64(str_c(last), 1, 65535, &port);
    hc.port = (uint16_t)port;
    int rc = httpd_start(&hc, &s->httpd, e);
    if (rc && reuse) {
        hc.port = 0;
        rc = httpd_start(&hc, &s->httpd, e);
    }
    if (rc)
        return rc;
    s->url = xasprintf("https://%s:%u", hc.host, (unsigned)httpd_port(s->httpd));
    char text[8];
    snprintf(text, sizeof text, "%u", (unsigned)httpd_port(s->httpd));
    return store_meta_set(s->store, "port", text, e);
}

static int start(struct server *s, const struct server_config *c, struct err *e)
{
    CLEANUP(free_charp) char *pki = xasprintf("%s/pki", s->data_dir);
    struct tls_files t = {0};
    int rc = make_dir(s->data_dir, e);
    if (!rc)
        rc = tls_load_or_make(pki, c->host ? c->host : "127.0.0.1", &t, e);
    if (!rc) {
        s->ca_pem = xstrdup(t.ca_pem);
        rc = open_store(s, c, e);
    }
    if (!rc)
        rc = auth_load(s, e);
    if (!rc)
        rc = first_objects(s, e);
    if (!rc)
        rc = listen_on(s, c, &t, e);
    if (!rc && c->kubeconfig)
        rc = server_write_kubeconfig(s, "baton-admin", c->kubeconfig, e);
    tls_files_fini(&t);
    return rc;
}

int server_start(const struct server_config *c, struct server **out, struct err *e)
{
    struct server *s = xcalloc(1, sizeof *s);
    s->loop = c->loop;
    s->data_dir = xstrdup(c->data_dir);
    s->gc = gc_new();
    init_handles(s);
    int rc = start(s, c, e);
    if (rc) {
        server_stop(s);
        return rc;
    }
    log_info("API server is ready", LS("url", s->url), LI("resource_version", store_rv(s->store)));
    *out = s;
    return 0;
}

static void free_server(struct server *s)
{
    struct err e = {0};
    if (s->store) {
        gc_run(s);
        if (store_commit(s->store, &e))
            log_error("the last changes could not be written", LERR(&e));
        crd_free_all(s);
        registry_free(s->reg);
        store_close(s->store);
    }
    auth_free(s);
    gc_free(s->gc);
    free(s->data_dir);
    free(s->url);
    free(s->ca_pem);
    free(s);
}

static void on_closed(uv_handle_t *h)
{
    struct server *s = h->data;
    if (--s->open_handles == 0)
        free_server(s);
}

void server_stop(struct server *s)
{
    if (s->httpd)
        httpd_stop(s->httpd);
    s->httpd = NULL;
    uv_close((uv_handle_t *)&s->idle, on_closed);
    uv_close((uv_handle_t *)&s->check, on_closed);
    uv_close((uv_handle_t *)&s->tick, on_closed);
}

/* ---- small things ---- */

uint16_t server_port(const struct server *s)
{
    return httpd_port(s->httpd);
}

const char *server_url(const struct server *s)
{
    return s->url;
}

int server_write_kubeconfig(struct server *s, const char *user, const char *path, struct err *e)
{
    const struct user *u = auth_user(s, user, e);
    if (!u)
        return -EIO;
    CLEANUP(free_charp) char *text = auth_kubeconfig(s, u);
    return file_write(path, str_c(text), 0600, e);
}

void server_set_log_provider(struct server *s, server_log_fn fn, void *ctx)
{
    s->log_fn = fn;
    s->log_ctx = ctx;
}
