/* Which path is what: authentication, CORS, request ids, the small endpoints; the rest goes to
 * admit.c. */
#include "lib/base/clock.h"
#include "lib/json/json.h"
#include "router/router.h"

#include <stdio.h>

struct endpoint {
    const char *path, *method;
    enum openai_api api;
};
static const struct endpoint endpoints[] = {
    {"/v1/chat/completions", "POST", OPENAI_CHAT},
    {"/v1/completions", "POST", OPENAI_COMPLETIONS},
    {"/tokenize", "POST", OPENAI_TOKENIZE},
    {"/detokenize", "POST", OPENAI_DETOKENIZE},
};

void api_error(struct httpd_req *req, const struct openai_error *e)
{
    struct buf body;
    buf_init(&body, 16384);
    if (e->status == 503 || e->status == 429)
        httpd_default_header(req, "retry-after", "1");
    if (openai_write_error(e, &body))
        httpd_replyf(req, e->status, "application/json", "{\"error\":{\"message\":\"error\"}}");
    else
        httpd_reply(req, e->status, "application/json", buf_view(&body));
    buf_fini(&body);
}

static void fail(struct httpd_req *req, int status, const char *code, const char *msg)
{
    struct openai_error e = {0};
    openai_error_set(&e, status, code, "", "%s", msg);
    api_error(req, &e);
}

static void set_request_id(struct httpd_req *req, struct router *r, char out[REQUEST_ID_MAX + 1]);

/* What the HTTP server itself refuses, in OpenAI's form. */
void api_refuse(struct httpd_req *req, int status, const char *message, void *ctx)
{
    char id[REQUEST_ID_MAX + 1];
    set_request_id(req, ctx, id);
    fail(req, status, status == 413 ? "request_too_large" : "invalid_request", message);
}

void draw_id(const char *prefix, struct router *r, size_t bytes, char *out)
{
    uint64_t v[2] = {rng_next(&r->rng), rng_next(&r->rng)};
    size_t n = strlen(prefix);
    memcpy(out, prefix, n);
    str_to_hex((const uint8_t *)v, bytes, out + n);
}

/* A client's own id is kept when it is short and plain. */
static void set_request_id(struct httpd_req *req, struct router *r, char out[REQUEST_ID_MAX + 1])
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const char *own = httpd_header(req, "x-request-id");
    size_t n = own ? strspn(own, plain) : 0;
    if (n && n <= REQUEST_ID_MAX && !own[n])
        snprintf(out, REQUEST_ID_MAX + 1, "%s", own);
    else
        draw_id("req_", r, 16, out);
    httpd_set_header(req, "x-request-id", out);
}

static void set_cors(struct httpd_req *req, const struct router *r)
{
    if (!*r->o.cors_origin || !httpd_header(req, "origin"))
        return;
    httpd_set_header(req, "access-control-allow-origin", r->o.cors_origin);
    httpd_set_header(
        req, "access-control-expose-headers",
        "x-request-id, x-baton-prefill, x-baton-decode, x-baton-kv-bytes, retry-after");
    if (strcmp(r->o.cors_origin, "*") != 0)
        httpd_set_header(req, "vary", "origin");
}

static void preflight(struct httpd_req *req)
{
    httpd_set_header(req, "access-control-allow-methods", "GET, POST, OPTIONS");
    httpd_set_header(req, "access-control-allow-headers",
                     "authorization, content-type, x-request-id");
    httpd_set_header(req, "access-control-max-age", "86400");
    httpd_reply(req, 204, NULL, STR(""));
}

static struct openai_model model_of(const struct deployment *d)
{
    return (struct openai_model){.id = str_c(d->model_name),
                                 .owned_by = STR("baton"),
                                 .created = d->created_ns / NS_PER_S,
                                 .max_model_len =
                                     d->max_context && d->max_context < d->model->max_context
                                         ? d->max_context
                                         : d->model->max_context};
}

static void list_models(struct router *r, struct httpd_req *req)
{
    struct openai_model list[256];
    size_t n = 0;
    struct buf body;
    for (struct deployment *d = fleet_first(r->fleet); d && n < 256; d = d->next)
        if (d->model && fleet_by_model(r->fleet, str_c(d->model_name)) == d)
            list[n++] = model_of(d);
    buf_init(&body, 1 << 20);
    if (openai_write_models(list, n, &body))
        fail(req, 500, NULL, "the list of models is too long");
    else
        httpd_reply(req, 200, "application/json", buf_view(&body));
    buf_fini(&body);
}

static void show_model(struct router *r, struct httpd_req *req, struct str name)
{
    struct deployment *d = fleet_by_model(r->fleet, name);
    struct openai_error e = {0};
    struct buf body;
    buf_init(&body, 65536);
    if (!d || !d->model) {
        openai_error_model(&e, name);
        api_error(req, &e);
    } else {
        struct openai_model m = model_of(d);
        if (openai_write_model(&m, &body))
            fail(req, 500, NULL, "the model's name is too long");
        else
            httpd_reply(req, 200, "application/json", buf_view(&body));
    }
    buf_fini(&body);
}

static bool reply_models(struct router *r, struct httpd_req *req, struct str path)
{
    if (!str_starts(path, STR("/v1/models")))
        return false;
    struct str rest = {path.p + 10, path.n - 10};
    if (rest.n && rest.p[0] != '/')
        return false;
    if (!str_eq_c(httpd_method(req), "GET"))
        fail(req, 405, "method_not_allowed", "use GET");
    else if (rest.n > 1)
        show_model(r, req, (struct str){rest.p + 1, rest.n - 1});
    else
        list_models(r, req);
    return true;
}

static void page(struct httpd_req *req)
{
    httpd_set_header(req, "content-security-policy",
                     "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                     "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                     "frame-ancestors 'none'");
    httpd_set_header(req, "x-content-type-options", "nosniff");
    httpd_reply(req, 200, "text/html; charset=utf-8", (struct str){page_html, page_html_bytes()});
}

static bool public_path(struct router *r, struct httpd_req *req, struct str path)
{
    struct httpd_std std = {.ready = router_ready, .state = router_state, .ctx = r};
    if (str_eq_c(path, "/metrics"))
        stats_fleet(r);
    if (httpd_standard(req, &std))
        return true;
    if (str_eq_c(path, "/") && str_eq_c(httpd_method(req), "GET")) {
        page(req);
        return true;
    }
    if (str_eq_c(path, "/v1/internal/load")) {
        load_handle(r, req);
        return true;
    }
    return false;
}

static void dispatch(struct router *r, struct httpd_req *req, struct str path,
                     const char *request_id)
{
    if (reply_models(r, req, path))
        return;
    for (size_t i = 0; i < sizeof endpoints / sizeof *endpoints; i++) {
        if (!str_eq_c(path, endpoints[i].path))
            continue;
        if (!str_eq_c(httpd_method(req), endpoints[i].method)) {
            httpd_set_header(req, "allow", endpoints[i].method);
            fail(req, 405, "method_not_allowed", "use POST");
        } else if (r->draining) {
            fail(req, 503, "draining", "this router is shutting down");
        } else {
            admit(r, req, endpoints[i].api, request_id);
        }
        return;
    }
    struct openai_error e = {0};
    openai_error_set(&e, 404, "unknown_url", "", "there is nothing at " STR_FMT " " STR_FMT,
                     STR_ARG(httpd_method(req)), (int)(path.n < 200 ? path.n : 200), path.p);
    api_error(req, &e);
}

void api_handle(struct httpd_req *req, void *ctx)
{
    struct router *r = ctx;
    struct str path = httpd_path(req);
    char request_id[REQUEST_ID_MAX + 1];
    set_request_id(req, r, request_id);
    set_cors(req, r);
    if (str_eq_c(httpd_method(req), "OPTIONS")) {
        preflight(req);
        return;
    }
    if (public_path(r, req, path))
        return;
    if (r->keys && !keys_match(r->keys, httpd_header(req, "authorization"))) {
        httpd_set_header(req, "www-authenticate", "Bearer");
        fail(req, 401, "invalid_api_key",
             httpd_header(req, "authorization")
                 ? "Incorrect API key provided."
                 : "You didn't provide an API key: send the header Authorization: Bearer KEY.");
        return;
    }
    dispatch(r, req, path, request_id);
}
