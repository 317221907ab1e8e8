/* The TLS server of the external metrics API. Its certificate is its own, made by the leader and
 * kept in the Secret `baton-metrics-tls` for every replica (or read from files); the leader puts it
 * into the APIService's caBundle when that APIService names our Service. Who calls is proven by the
 * client certificate of the API server's front proxy: signed by the CA and, when names are listed,
 * bearing one of the names that the ConfigMap kube-system/extension-apiserver-authentication tells;
 * the user it speaks for is in the headers named there. The API server has authorised that user
 * before it forwards; nobody else gets in. Source:
 * https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/ */
#include "controller/cert.h"
#include "controller/scaling.h"
#include "lib/base/clock.h"
#include "lib/base/file.h"
#include "lib/base/log.h"
#include "lib/base/metrics.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define SECRET_NAME   "baton-metrics-tls"
#define APISERVICE    "v1beta1.external.metrics.k8s.io"
#define TICK_MS       1000
#define APISERVICE_NS (60 * NS_PER_S)

struct tls_secret {
    uint64_t has;
    struct kube_meta meta;
    const char *cert, *key;
};
struct front_proxy {
    uint64_t has;
    struct kube_meta meta;
    const char *ca, *names, *user_headers; /* PEM; JSON arrays of strings */
};
static const struct view secret_view = {
    .name = "Secret",
    .size = sizeof(struct tls_secret),
    .fields = (const struct view_field[]){
        {"metadata", VIEW_OBJ, offsetof(struct tls_secret, meta), true, &kube_meta_view},
        {"data.certificate", VIEW_B64, offsetof(struct tls_secret, cert), false, NULL},
        {"data.key", VIEW_B64, offsetof(struct tls_secret, key), false, NULL},
        {0}}};
static const struct view front_view = {
    .name = "ConfigMap",
    .size = sizeof(struct front_proxy),
    .fields = (const struct view_field[]){
        {"metadata", VIEW_OBJ, offsetof(struct front_proxy, meta), true, &kube_meta_view},
        {"data.requestheader-client-ca-file", VIEW_STR, offsetof(struct front_proxy, ca), false,
         NULL},
        {"data.requestheader-allowed-names", VIEW_STR, offsetof(struct front_proxy, names), false,
         NULL},
        {"data.requestheader-username-headers", VIEW_STR,
         offsetof(struct front_proxy, user_headers), false, NULL},
        {0}}};
static const struct kube_kind secrets = {"v1", "Secret", "secrets", true, &secret_view};
static const struct kube_kind configmaps = {"v1", "ConfigMap", "configmaps", true, &front_view};
static const struct kube_kind apiservices = {"apiregistration.k8s.io/v1", "APIService",
                                             "apiservices", false, NULL};

struct metrics_tls {
    struct load *load;
    struct httpd *http;
    struct kube_cache *secret, *front;
    const char *namespace;
    uv_timer_t timer;
    char *cert, *key, *ca; /* as served */
    json_t *names, *headers;
    char *told; /* the last complaint */
    uint64_t apiservice_ns;
    bool asking;
};

static void complain(struct metrics_tls *t, const char *what)
{
    if (t->told && strcmp(t->told, what) == 0)
        return;
    free(t->told);
    t->told = xstrdup(what);
    if (*what)
        log_warn("external metrics are not served to the API server", LS("why", what));
}

/* ---- who may ask ---- */

static bool listed(const json_t *names, const char *cn)
{
    size_t i;
    json_t *v;
    if (!json_array_size(names))
        return true; /* any certificate of that CA */
    json_array_foreach (names, i, v)
        if (json_is_string(v) && strcmp(json_string_value(v), cn) == 0)
            return true;
    return false;
}

static const char *user_of(const struct metrics_tls *t, const struct httpd_req *r)
{
    size_t i;
    json_t *v;
    json_array_foreach (t->headers, i, v) {
        const char *user = json_is_string(v) ? httpd_header(r, json_string_value(v)) : NULL;
        if (user && *user)
            return user;
    }
    return NULL;
}

static void refuse(struct httpd_req *r, int status, const char *reason, const char *why)
{
    httpd_replyf(r, status, "application/json",
                 "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":"
                 "\"Failure\",\"reason\":\"%s\",\"message\":\"%s\",\"code\":%d}",
                 reason, why, status);
}

static void handle(struct httpd_req *r, void *ctx)
{
    struct metrics_tls *t = ctx;
    struct httpd_std std = {0};
    const char *cn = httpd_client_cn(r);
    if (str_eq_c(httpd_path(r), "/healthz") || str_eq_c(httpd_path(r), "/readyz")) {
        (void)httpd_standard(r, &std);
        return;
    }
    if (!cn)
        refuse(r, 401, "Unauthorized", "a client certificate of the front proxy is needed");
    else if (!listed(t->names, cn))
        refuse(r, 403, "Forbidden", "this certificate's name is not among those allowed");
    else if (!user_of(t, r))
        refuse(r, 401, "Unauthorized", "the front proxy names no user");
    else
        metrics_api_handle(t->load, r);
}

/* ---- the certificate ---- */

static void on_written(const struct kube_result *r, void *ctx)
{
    struct metrics_tls *t = ctx;
    t->asking = false;
    if (r->err.code && r->status != 409)
        complain(t, r->err.msg);
}

/* Only the leader: two replicas that make one each would take turns. */
static void make_secret(struct metrics_tls *t, const struct tls_secret *old)
{
    struct ctl *c = t->load->ctl;
    struct err e = {0};
    CLEANUP(free_charp) char *cert = NULL;
    CLEANUP(free_charp) char *key = NULL;
    CLEANUP(free_charp) char *name = xasprintf("%s.%s.svc", c->opts.metrics_service, t->namespace);
    CLEANUP(free_charp) char *full = xasprintf("%s.cluster.local", name);
    const char *names[] = {name, full, c->opts.metrics_service};
    if (cert_make(names, 3, CERT_DAYS, &cert, &key, &e)) {
        complain(t, e.msg);
        return;
    }
    CLEANUP(json_decrefp)
    json_t *body =
        json_pack("{s:{s:s, s:s, s:{s:s}, s:s*}, s:s, s:{s:s, s:s}}", "metadata", "name",
                  SECRET_NAME, "namespace", t->namespace, "labels", "app.kubernetes.io/managed-by",
                  FIELD_MANAGER, "resourceVersion", old ? old->meta.resource_version : NULL, "type",
                  "Opaque", "stringData", "certificate", cert, "key", key);
    struct kube_call call = {.verb = old ? KUBE_UPDATE : KUBE_CREATE,
                             .kind = &secrets,
                             .namespace = t->namespace,
                             .name = SECRET_NAME,
                             .body = body,
                             .field_manager = FIELD_MANAGER,
                             .done = on_written,
                             .ctx = t};
    t->asking = true;
    if (kube_start(c->client, &call, &e)) {
        t->asking = false;
        complain(t, e.msg);
    }
}

static int read_files(struct metrics_tls *t, char **cert, char **key, struct err *e)
{
    const struct options *o = &t->load->ctl->opts;
    *cert = file_read(o->metrics_cert, 1u << 20, e);
    *key = *cert ? file_read(o->metrics_key, 1u << 20, e) : NULL;
    int rc = *cert && *key ? 0 : -EIO;
    if (rc) {
        free(*cert);
        *cert = NULL;
    }
    return rc;
}

/* The certificate to serve with; false while there is none. */
static bool find_cert(struct metrics_tls *t, char **cert, char **key)
{
    struct ctl *c = t->load->ctl;
    struct err e = {0};
    if (*c->opts.metrics_cert) {
        if (!read_files(t, cert, key, &e))
            return true;
        complain(t, e.msg);
        return false;
    }
    if (!t->secret || !kube_cache_synced(t->secret))
        return false;
    const struct tls_secret *s = kube_cache_get(t->secret, t->namespace, SECRET_NAME);
    bool good = s && s->cert && s->key && !cert_expires_soon(s->cert);
    if (!good && c->leading && !t->asking)
        make_secret(t, s);
    if (!s || !s->cert || !s->key)
        return false;
    *cert = xstrdup(s->cert);
    *key = xstrdup(s->key);
    return true;
}

/* ---- the APIService ---- */

static void on_patched(const struct kube_result *r, void *ctx)
{
    struct metrics_tls *t = ctx;
    t->asking = false;
    if (r->err.code)
        complain(t, r->err.msg);
    else
        log_info("the APIService trusts this certificate now", LS("name", APISERVICE));
}

static void patch_bundle(struct metrics_tls *t, const char *bundle)
{
    struct err e = {0};
    CLEANUP(json_decrefp) json_t *body = json_pack("{s:{s:s}}", "spec", "caBundle", bundle);
    struct kube_call call = {.verb = KUBE_PATCH,
                             .kind = &apiservices,
                             .name = APISERVICE,
                             .body = body,
                             .field_manager = FIELD_MANAGER,
                             .done = on_patched,
                             .ctx = t};
    t->asking = true;
    if (kube_start(t->load->ctl->client, &call, &e))
        t->asking = false;
}

static void on_apiservice(const struct kube_result *r, void *ctx)
{
    struct metrics_tls *t = ctx;
    t->asking = false;
    if (r->err.code) {
        complain(t, r->status == 404 ? "there is no APIService " APISERVICE : r->err.msg);
        return;
    }
    const char *name = json_str_at(r->object, "spec.service.name", ""),
               *ns = json_str_at(r->object, "spec.service.namespace", "");
    if (strcmp(name, t->load->ctl->opts.metrics_service) != 0 || strcmp(ns, t->namespace) != 0) {
        CLEANUP(free_charp)
        char *why = xasprintf("the APIService " APISERVICE " belongs to %s/%s", ns, name);
        complain(t, why);
        return;
    }
    CLEANUP(free_charp) char *bundle = t->cert ? cert_base64(t->cert) : NULL;
    complain(t, "");
    if (bundle && strcmp(bundle, json_str_at(r->object, "spec.caBundle", "")) != 0)
        patch_bundle(t, bundle);
}

/* With a certificate from files the bundle is the business of whoever made the files. */
static void look_at_apiservice(struct metrics_tls *t, uint64_t now)
{
    struct ctl *c = t->load->ctl;
    struct err e = {0};
    if (!c->leading || t->asking || !t->http || *c->opts.metrics_cert ||
        (t->apiservice_ns && now - t->apiservice_ns < APISERVICE_NS))
        return;
    t->apiservice_ns = now;
    struct kube_call call = {.verb = KUBE_GET,
                             .kind = &apiservices,
                             .name = APISERVICE,
                             .done = on_apiservice,
                             .ctx = t};
    t->asking = true;
    if (kube_start(c->client, &call, &e))
        t->asking = false;
}

/* ---- serving ---- */

static bool same(const char *a, const char *b)
{
    return a && b && strcmp(a, b) == 0;
}

static void serve(struct metrics_tls *t, char *cert, char *key, const struct front_proxy *f)
{
    struct ctl *c = t->load->ctl;
    struct err e = {0};
    if (t->http)
        httpd_stop(t->http);
    t->http = NULL;
    free(t->cert);
    free(t->key);
    free(t->ca);
    t->cert = xstrdup(cert);
    t->key = xstrdup(key);
    t->ca = xstrdup(f->ca);
    struct httpd_config cfg = {
        .loop = c->loop,
        .host = c->opts.pod_ip,
        .port = (uint16_t)c->opts.metrics_port,
        .max_body_bytes = 65536,
        .tls_cert_pem = t->cert,
        .tls_key_pem = t->key,
        .tls_client_ca_pem = t->ca,
        .handler = handle,
        .ctx = t,
    };
    t->apiservice_ns = 0;
    if (!httpd_start(&cfg, &t->http, &e)) {
        log_info("external metrics are served", LI("port", httpd_port(t->http)));
        return;
    }
    t->http = NULL;
    free(t->ca); /* tried again at the next tick */
    t->ca = NULL;
    complain(t, e.msg);
}

static void take_names(struct metrics_tls *t, const struct front_proxy *f)
{
    json_decref(t->names);
    json_decref(t->headers);
    t->names = f->names ? json_parse(str_c(f->names), 65536, 0, NULL) : NULL;
    t->headers = f->user_headers ? json_parse(str_c(f->user_headers), 65536, 0, NULL) : NULL;
}

static void on_tick(uv_timer_t *timer)
{
    struct metrics_tls *t = timer->data;
    CLEANUP(free_charp) char *cert = NULL;
    CLEANUP(free_charp) char *key = NULL;
    const struct front_proxy *f =
        t->front && kube_cache_synced(t->front)
            ? kube_cache_get(t->front, "kube-system", "extension-apiserver-authentication")
            : NULL;
    if (!f || !f->ca || !*f->ca) {
        if (t->front && kube_cache_synced(t->front))
            complain(t, "the API server runs no front proxy (requestheader-client-ca-file)");
        return;
    }
    take_names(t, f);
    if (!find_cert(t, &cert, &key))
        return;
    if (!t->http || !same(cert, t->cert) || !same(key, t->key) || !same(f->ca, t->ca))
        serve(t, cert, key, f);
    look_at_apiservice(t, clock_mono_ns());
}

int metrics_tls_start(struct load *l, struct metrics_tls **out, struct err *e)
{
    struct ctl *c = l->ctl;
    struct metrics_tls *t = *out = xcalloc(1, sizeof *t);
    t->load = l;
    t->namespace = *c->opts.own_namespace ? c->opts.own_namespace
                   : c->namespace         ? c->namespace
                                          : kube_namespace(c->client);
    struct kube_cache_config front = {.kind = &configmaps,
                                      .namespace = "kube-system",
                                      .field_selector =
                                          "metadata.name=extension-apiserver-authentication"};
    struct kube_cache_config secret = {.kind = &secrets,
                                       .namespace = t->namespace,
                                       .field_selector = "metadata.name=" SECRET_NAME};
    int rc = kube_cache_start(c->client, &front, &t->front, e);
    if (!rc && !*c->opts.metrics_cert)
        rc = kube_cache_start(c->client, &secret, &t->secret, e);
    t->timer.data = t;
    uv_timer_init(c->loop, &t->timer);
    uv_timer_start(&t->timer, on_tick, 100, TICK_MS);
    return rc;
}

static void on_closed(uv_handle_t *h)
{
    struct metrics_tls *t = h->data;
    free(t->cert);
    free(t->key);
    free(t->ca);
    free(t->told);
    json_decref(t->names);
    json_decref(t->headers);
    free(t);
}

void metrics_tls_stop(struct metrics_tls *t)
{
    if (!t)
        return;
    uv_timer_stop(&t->timer);
    if (t->http)
        httpd_stop(t->http);
    if (t->front)
        kube_cache_stop(t->front);
    if (t->secret)
        kube_cache_stop(t->secret);
    uv_close((uv_handle_t *)&t->timer, on_closed);
}
