/* external.metrics.k8s.io/v1beta1: discovery and lists with a selector. Who may ask is settled
 * before (metrics_tls.c). Source: k8s.io/metrics/pkg/apis/external_metrics. */
#include "controller/scaling.h"
#include "lib/base/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define GROUP   "external.metrics.k8s.io"
#define VERSION "v1beta1"
#define PREFIX  "/apis/" GROUP "/" VERSION

static void reply(struct httpd_req *r, int status, json_t *o)
{
    struct buf body;
    buf_init(&body, SCALING_BODY_MAX);
    if (!o || json_write(o, false, &body))
        httpd_replyf(r, 500, "application/json", "{}");
    else
        httpd_reply(r, status, "application/json", buf_view(&body));
    buf_fini(&body);
    json_decref(o);
}

static void refuse(struct httpd_req *r, int status, const char *reason, const char *message)
{
    reply(r, status,
          json_pack("{s:s, s:s, s:{}, s:s, s:s, s:s, s:i}", "kind", "Status", "apiVersion", "v1",
                    "metadata", "status", "Failure", "message", message, "reason", reason, "code",
                    status));
}

static void discovery(struct httpd_req *r)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n_scaling_metrics; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:b, s:s, s:[s]}", "name",
                                        scaling_metrics[i].name, "singularName", "", "namespaced",
                                        1, "kind", "ExternalMetricValueList", "verbs", "get"));
    reply(r, 200,
          json_pack("{s:s, s:s, s:s, s:o}", "kind", "APIResourceList", "apiVersion", "v1",
                    "groupVersion", GROUP "/" VERSION, "resources", list));
}

static json_t *group(void)
{
    return json_pack("{s:s, s:s, s:s, s:[{s:s, s:s}], s:{s:s, s:s}}", "kind", "APIGroup",
                     "apiVersion", "v1", "name", GROUP, "versions", "groupVersion",
                     GROUP "/" VERSION, "version", VERSION, "preferredVersion", "groupVersion",
                     GROUP "/" VERSION, "version", VERSION);
}

/* ---- selectors ---- */

static const char *label(const struct pool *p, struct str key)
{
    if (str_eq_c(key, "infd"))
        return p->infd;
    if (str_eq_c(key, "role"))
        return rec_role_name(p->role);
    return str_eq_c(key, "pool") ? p->name : NULL;
}

/* "a, b)" holds v? */
static bool holds(struct str set, const char *v)
{
    struct str item;
    if (set.n && set.p[set.n - 1] == ')')
        set.n--;
    while (set.n) {
        set = str_cut(set, ',', &item);
        if (v && str_eq_c(str_trim(item), v))
            return true;
    }
    return false;
}

/* One requirement: k, !k, k=v, k==v, k!=v, k in (a,b), k notin (a,b). Absence satisfies the
 * negative ones, as everywhere in Kubernetes. */
static bool requirement(const struct pool *p, struct str q)
{
    q = str_trim(q);
    if (q.n && q.p[0] == '!')
        return !label(p, str_trim((struct str){q.p + 1, q.n - 1}));
    const char *open = memchr(q.p, '(', q.n);
    if (open) {
        struct str word, head = str_trim((struct str){q.p, (size_t)(open - q.p)});
        struct str set = {open + 1, (size_t)(q.p + q.n - open - 1)};
        struct str op = str_trim(str_cut(head, ' ', &word));
        const char *v = label(p, str_trim(word));
        return str_eq_c(op, "in") ? v && holds(set, v) : str_eq_c(op, "notin") && !holds(set, v);
    }
    const char *eq = memchr(q.p, '=', q.n);
    if (!eq)
        return label(p, q) != NULL;
    bool not = eq > q.p && eq[-1] == '!';
    struct str key = {q.p, (size_t)(eq - q.p) - (not ? 1 : 0)};
    struct str want = {eq + 1, (size_t)(q.p + q.n - eq - 1)};
    if (want.n && want.p[0] == '=')
        want.p++, want.n--;
    const char *v = label(p, str_trim(key));
    bool same = v && str_eq_c(str_trim(want), v);
    return not ? !same : same;
}

static bool selected(const struct pool *p, const char *selector)
{
    struct str rest = str_c(selector);
    while (rest.n) { /* commas inside of parentheses separate values */
        size_t n = 0;
        for (int depth = 0; n < rest.n && (depth || rest.p[n] != ','); n++)
            depth += rest.p[n] == '(' ? 1 : rest.p[n] == ')' ? -1 : 0;
        if (!requirement(p, (struct str){rest.p, n}))
            return false;
        n += n < rest.n;
        rest = (struct str){rest.p + n, rest.n - n};
    }
    return true;
}

/* ---- values ---- */

/* A quantity in thousandths, as external metrics are read. */
static json_t *quantity(double v)
{
    double milli = rint((v > 1e12 ? 1e12 : v < 0 ? 0 : v) * 1000);
    int64_t n = (int64_t)milli;
    return n % 1000 ? json_sprintf("%lldm", (long long)n)
                    : json_sprintf("%lld", (long long)(n / 1000));
}

static json_t *item(const struct pool *p, const struct scaling_metric *m, double v, uint64_t now)
{
    char at[CLOCK_RFC3339_MAX];
    return json_pack("{s:s, s:{s:s, s:s, s:s}, s:s, s:o}", "metricName", m->name, "metricLabels",
                     "infd", p->infd, "role", rec_role_name(p->role), "pool", p->name, "timestamp",
                     clock_rfc3339(clock_wall_ns() - (now - p->looked_ns), 0, at), "value",
                     quantity(v));
}

static void values(struct load *l, struct httpd_req *r, const char *ns,
                   const struct scaling_metric *m)
{
    struct pool *p, *tmp;
    uint64_t now = clock_mono_ns();
    const char *selector = httpd_arg(r, "labelSelector");
    json_t *items = json_array();
    HASH_ITER (hh, l->pools, p, tmp) {
        double v = p->role == REC_NO_ROLE || strcmp(p->namespace, ns) != 0 ? NAN : m->value(p, now);
        if (!isnan(v) && selected(p, selector ? selector : ""))
            json_array_append_new(items, item(p, m, v, now));
    }
    reply(r, 200,
          json_pack("{s:s, s:s, s:{}, s:o}", "kind", "ExternalMetricValueList", "apiVersion",
                    GROUP "/" VERSION, "metadata", "items", items));
}

/* /namespaces/<ns>/<metric> */
static void list(struct load *l, struct httpd_req *r, struct str path)
{
    static const struct str prefix = {"/namespaces/", 12};
    struct str ns;
    if (!str_starts(path, prefix)) {
        refuse(r, 404, "NotFound", "no such path; metrics are below namespaces/NAME/");
        return;
    }
    struct str name = str_cut((struct str){path.p + prefix.n, path.n - prefix.n}, '/', &ns);
    CLEANUP(free_charp) char *namespace = str_dup(ns);
    for (size_t i = 0; i < n_scaling_metrics; i++)
        if (str_eq_c(name, scaling_metrics[i].name)) {
            values(l, r, namespace, &scaling_metrics[i]);
            return;
        }
    CLEANUP(free_charp)
    char *why = xasprintf("no external metric \"%.*s\"; GET " PREFIX " lists them",
                          (int)(name.n > 100 ? 100 : name.n), name.p);
    refuse(r, 404, "NotFound", why);
}

void metrics_api_handle(struct load *l, struct httpd_req *r)
{
    static const struct str prefix = {PREFIX, sizeof PREFIX - 1};
    struct str path = httpd_path(r);
    const char *accept = httpd_header(r, "accept");
    if (!str_eq_c(httpd_method(r), "GET"))
        refuse(r, 405, "MethodNotAllowed", "external metrics are read only");
    else if (str_eq_c(path, PREFIX) || str_eq_c(path, PREFIX "/"))
        discovery(r);
    else if (str_eq_c(path, "/apis/" GROUP))
        reply(r, 200, group());
    else if (str_eq_c(path, "/apis") && accept && strstr(accept, "apidiscovery"))
        refuse(r, 406, "NotAcceptable", "no aggregated discovery; the plain one is served");
    else if (str_eq_c(path, "/apis"))
        reply(r, 200,
              json_pack("{s:s, s:s, s:[o]}", "kind", "APIGroupList", "apiVersion", "v1", "groups",
                        group()));
    else if (str_starts(path, prefix))
        list(l, r, (struct str){path.p + prefix.n, path.n - prefix.n});
    else
        refuse(r, 404, "NotFound", "only " PREFIX " is served here");
}
