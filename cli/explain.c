/* baton explain: why each role has the number of groups that it has, in sentences; and decisions
 * recomputed from their records by the same function that made them. */
#include "cli/common.h"
#include "cli/verbs.h"
#include "lib/base/clock.h"
#include "lib/base/conf.h"
#include "lib/decide/scale_record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LINE_MAX_BYTES SCALE_RECORD_BYTES

struct explain_options {
    const char *data, *namespace, *replay, *controller;
    uint64_t decisions;
};

static const struct conf_opt options[] = {
    {"--data", "BATON_DATA", CONF_STR, CONF(struct explain_options, data), "", 0, 0,
     "data folder (default: $XDG_STATE_HOME/baton or ~/.local/state/baton)", "DIR"},
    {"--namespace", NULL, CONF_STR, CONF(struct explain_options, namespace), "", 0, 0,
     "only this namespace (default: all)", "NAME"},
    {"--decisions", NULL, CONF_U64, CONF(struct explain_options, decisions), "5", 0, 10,
     "how many of the last changes to tell", "N"},
    {"--controller", NULL, CONF_STR, CONF(struct explain_options, controller), "", 0, 0,
     "the controller's URL (default: its pod's address; else what the WorkerPool says)", "URL"},
    {"--replay", NULL, CONF_STR, CONF(struct explain_options, replay), "", 0, 0,
     "decide again from the records in FILE (-: standard input), as the controller writes them "
     "with "
     "--decision-log or gives them at /v1/scaling/decisions; exit code 1 when one comes out "
     "otherwise",
     "FILE"},
    {0}};
static const struct conf_prog prog = {
    "baton explain",
    "Tells why each role has as many groups as it has, and the last decisions. With --replay, "
    "recomputes recorded decisions\nto the same bytes. Works with any cluster: set "
    "BATON_KUBECONFIG or KUBECONFIG when it is not the one that\n`baton up` started.",
    "[options] [INFERENCEDEPLOYMENT [ROLE]]", options};

/* ---- replay ---- */

struct replay {
    unsigned long lines, differ, broken;
};

static void tell_role(const json_t *role)
{
    const json_t *d = json_object_get(role, "decision");
    enum rec_role r = (enum rec_role)json_int_at(role, "input.role", 0);
    int64_t from = json_int_at(d, "from", 0), to = json_int_at(d, "to", 0);
    printf("    %-8s %s: %s\n", rec_role_name(r < SCALE_ROLES ? r : REC_NO_ROLE),
           json_str_at(d, "code", ""), json_str_at(d, "reason", ""));
    if (from != to)
        printf("    %-8s %lld -> %lld groups\n", "", (long long)from, (long long)to);
}

static void tell_record(const json_t *record, const char *verdict)
{
    size_t i;
    json_t *role;
    printf("%s  %s/%s  %s\n", json_str_at(record, "at", ""), json_str_at(record, "namespace", ""),
           json_str_at(record, "infd", ""), verdict);
    json_array_foreach (json_object_get(record, "roles"), i, role)
        tell_role(role);
}

/* Both say what they decided; the first byte that differs shows where to look. */
static void tell_difference(struct str was, const json_t *now, struct str is)
{
    size_t at = 0;
    while (at < was.n && at < is.n && was.p[at] == is.p[at])
        at++;
    size_t from = at > 40 ? at - 40 : 0;
    tell_record(now, "differs; now it is:");
    printf("    recorded: ...%.*s\n    now:      ...%.*s\n",
           (int)(was.n - from > 100 ? 100 : was.n - from), was.p + from,
           (int)(is.n - from > 100 ? 100 : is.n - from), is.p + from);
}

static void replay_line(struct replay *r, struct str line)
{
    struct err e = {0};
    struct buf text;
    r->lines++;
    CLEANUP(json_decrefp) json_t *record = json_parse(line, LINE_MAX_BYTES, 0, &e);
    CLEANUP(json_decrefp) json_t *again = record ? scale_replay(record, &e) : NULL;
    buf_init(&text, LINE_MAX_BYTES);
    if (!again || scale_record_write(again, &text)) {
        printf("line %lu: %s\n", r->lines, e.code ? e.msg : "too large");
        r->broken++;
    } else if (str_eq(line, buf_view(&text))) {
        tell_record(record, "the same");
    } else {
        tell_difference(line, again, buf_view(&text));
        r->differ++;
    }
    buf_fini(&text);
}

static int replay(const char *path, struct err *e)
{
    struct replay r = {0};
    bool standard = strcmp(path, "-") == 0;
    FILE *f = standard ? stdin : fopen(path, "re");
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    if (!f)
        return err_set(e, errno, "%s: %s", path, strerror(errno));
    while ((n = getline(&line, &cap, f)) > 0 && (size_t)n <= LINE_MAX_BYTES) {
        n -= line[n - 1] == '\n';
        if (n)
            replay_line(&r, (struct str){line, (size_t)n});
    }
    free(line);
    if (!standard)
        fclose(f);
    if (n > 0)
        return err_set(e, EMSGSIZE, "%s: line %lu is longer than a record can be", path,
                       r.lines + 1);
    printf("%lu decisions: %lu the same, %lu differ, %lu can't be read\n", r.lines,
           r.lines - r.differ - r.broken, r.differ, r.broken);
    if (r.differ || r.broken)
        return err_set(e, EBADMSG, "not every decision came out the same");
    return r.lines ? 0 : err_set(e, ENODATA, "%s holds no decision", path);
}

/* ---- now ---- */

static json_t *list(struct kube_client *k, const struct kube_kind *kind, const char *namespace,
                    const char *selector, struct err *e)
{
    struct kube_call call = {.verb = KUBE_LIST,
                             .kind = kind,
                             .namespace = *namespace ? namespace : NULL,
                             .label_selector = selector,
                             .timeout_ms = 5000};
    struct kube_result r;
    json_t *items = NULL;
    if (kube_run(k, &call, &r) == 0)
        items = json_incref(json_at(r.object, "items"));
    else
        *e = r.err;
    kube_result_fini(&r);
    return items;
}

/* "http://127.3.2.1:8090", or NULL when no pod of it is found: then the status has to do. */
static char *find_controller(struct kube_client *k)
{
    struct err e = {0};
    size_t i;
    json_t *pod;
    CLEANUP(json_decrefp)
    json_t *pods = list(k, &kube_pods, "", "app.kubernetes.io/name=baton-controller", &e);
    json_array_foreach (pods, i, pod) {
        const char *ip = json_str_at(pod, "status.podIP", "");
        if (*ip)
            return xasprintf(strchr(ip, ':') ? "http://[%s]:8090" : "http://%s:8090", ip);
    }
    return NULL;
}

static json_t *ask_controller(const char *url, const char *path)
{
    struct err e;
    struct buf text;
    struct http_client_config hc = {.user_agent = "baton-cli"};
    CLEANUP(free_charp) char *full = xasprintf("%s%s", url, path);
    struct http_request r = {.url = full, .connect_timeout_ms = 700, .timeout_ms = 1500};
    buf_init(&text, 8 << 20);
    json_t *o =
        http_run(&hc, &r, &text, &e) == 200 ? json_parse(buf_view(&text), 8 << 20, 0, NULL) : NULL;
    buf_fini(&text);
    return o;
}

static const json_t *condition(const json_t *wp, const char *type)
{
    size_t i;
    json_t *c;
    json_array_foreach (json_at(wp, "status.conditions"), i, c)
        if (strcmp(json_str_at(c, "type", ""), type) == 0)
            return c;
    return NULL;
}

static void ago(const char *time, char out[64])
{
    uint64_t then, now = clock_wall_ns();
    if (clock_parse_rfc3339(time, &then) || then > now) {
        snprintf(out, 64, "%s", time);
        return;
    }
    uint64_t s = (now - then) / NS_PER_S;
    if (s < 120)
        snprintf(out, 64, "%llu s ago", (unsigned long long)s);
    else if (s < 7200)
        snprintf(out, 64, "%llu min ago", (unsigned long long)(s / 60));
    else
        snprintf(out, 64, "%s", time);
}

static void tell_figures(const json_t *live)
{
    static const struct {
        const char *key, *form;
    } figures[] = {{"needed_groups", "its work is that of %.2f groups"},
                   {"queued_tokens", "%.0f prompt tokens wait"},
                   {"running_requests", "%.0f requests run"},
                   {"kv_used_ratio", "%.2f of the KV blocks are held"},
                   {"arrival_tokens_per_second", "%.0f prompt tokens/s arrive"},
                   {"goodput_requests_per_second", "%.2f requests/s meet the slo"}};
    const char *comma = "  figures: ";
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        const json_t *v = json_object_get(live, figures[i].key);
        if (!json_is_number(v))
            continue;
        fputs(comma, stdout);
        printf(figures[i].form, json_number_value(v)); /* NOLINT: the forms are the table's */
        comma = ", ";
    }
    if (*comma == ',')
        puts("");
    if (*json_str_at(live, "query_error", ""))
        printf("  query:   %s\n", json_str_at(live, "query_error", ""));
}

static void tell_now(const json_t *wp, const json_t *live)
{
    const json_t *active = condition(wp, "ScalingActive"), *full = condition(wp, "CapacityLimited");
    char when[64];
    if (live) {
        printf("  now:     %s (%s)\n", json_str_at(live, "reason", ""),
               json_str_at(live, "code", ""));
        tell_figures(live);
    } else if (active) {
        ago(json_str_at(active, "lastTransitionTime", ""), when);
        printf("  now:     %s (%s; told by the WorkerPool, since %s)\n",
               json_str_at(active, "message", ""), json_str_at(active, "reason", ""), when);
    } else if (json_at(wp, "spec.bounds")) {
        puts("  now:     the scaler has not told anything yet");
    } else {
        puts("  now:     Baton does not scale this role: its number is the spec's, kubectl scale's "
             "or "
             "another scaler's");
    }
    if (strcmp(json_str_at(full, "status", ""), "True") == 0)
        printf("  limited: %s\n", json_str_at(full, "message", ""));
}

static void tell_pool(const json_t *wp, const json_t *live, uint64_t decisions)
{
    size_t i;
    json_t *d;
    char when[64];
    printf("%s/%s: %lld groups asked for, %lld ready", json_str_at(wp, "metadata.namespace", ""),
           json_str_at(wp, "metadata.name", ""), (long long)json_int_at(wp, "spec.replicas", 0),
           (long long)json_int_at(wp, "status.readyReplicas", 0));
    if (json_at(wp, "spec.bounds"))
        printf(" (bounds %lld to %lld)", (long long)json_int_at(wp, "spec.bounds.min", 0),
               (long long)json_int_at(wp, "spec.bounds.max", 0));
    puts("");
    tell_now(wp, live);
    json_array_foreach (json_at(wp, "status.decisions"), i, d) {
        if (i >= decisions)
            break;
        ago(json_str_at(d, "at", ""), when);
        printf("  %s %s: from %lld to %lld: %s\n", i ? "        " : "changed: ", when,
               (long long)json_int_at(d, "from", 0), (long long)json_int_at(d, "to", 0),
               json_str_at(d, "reason", ""));
    }
}

static bool wanted(const json_t *wp, const char *infd, const char *role)
{
    return (!infd || strcmp(infd, json_str_at(wp, "spec.inferenceDeployment", "")) == 0) &&
           (!role || strcmp(role, json_str_at(wp, "spec.role", "")) == 0);
}

static int explain(struct kube_client *k, const struct explain_options *o, const char *infd,
                   const char *role, struct err *e)
{
    size_t i, told = 0;
    json_t *wp;
    CLEANUP(json_decrefp) json_t *pools = list(k, &kube_wps, o->namespace, NULL, e);
    if (!pools)
        return -e->code;
    CLEANUP(free_charp)
    char *controller = *o->controller ? xstrdup(o->controller) : find_controller(k);
    json_array_foreach (pools, i, wp) {
        if (!wanted(wp, infd, role))
            continue;
        CLEANUP(free_charp)
        char *path = xasprintf("/v1/scaling/%s/%s/%s", json_str_at(wp, "metadata.namespace", ""),
                               json_str_at(wp, "spec.inferenceDeployment", ""),
                               json_str_at(wp, "spec.role", ""));
        CLEANUP(json_decrefp)
        json_t *live =
            controller && json_at(wp, "spec.bounds") ? ask_controller(controller, path) : NULL;
        if (told++)
            puts("");
        tell_pool(wp, live, o->decisions);
    }
    return told ? 0
                : err_set(e, ENOENT, "there is no such WorkerPool%s%s", infd ? " of " : "",
                          infd ? infd : "");
}

static int open_client(const struct explain_options *o, struct kube_client **k, struct err *e)
{
    struct cluster c;
    struct kube_config kc;
    const char *other = getenv("BATON_KUBECONFIG");
    if (!other || !*other)
        other = getenv("KUBECONFIG"); /* as kubectl, whose plugin this may be */
    int rc = cluster_find(o->data, &c, e);
    if (rc)
        return rc;
    if ((!other || !*other) && access(c.kubeconfig, R_OK) == 0)
        rc = cluster_client(&c, k, e);
    else if (!other || !*other)
        rc = err_set(e, ENOENT, "there is no cluster in %s: start one with `baton up`", c.dir);
    else if (!(rc = kube_config_load(other, &kc, e))) {
        rc = kube_client_new(NULL, &kc, "baton-cli", k, e);
        kube_config_fini(&kc);
    }
    cluster_fini(&c);
    return rc;
}

int explain_main(int argc, char **argv)
{
    struct explain_options o = {0};
    struct kube_client *k;
    struct err e = {0};
    static const char *const plain[] = {"--help", "--version", NULL};
    cli_options_first(argc, argv, plain);
    int first, r = conf_parse(&prog, argc, argv, &o, &first, &e);
    if (r > 0)
        return 0;
    if (!r && argc - first > 2)
        r = err_set(&e, EINVAL, "too many arguments; see baton explain --help");
    if (r) {
        cli_fail("explain", &e);
        return 2;
    }
    if (*o.replay)
        return replay(o.replay, &e) ? cli_fail("explain", &e) : 0;
    r = open_client(&o, &k, &e);
    if (r)
        return cli_fail("explain", &e);
    r = explain(k, &o, first < argc ? argv[first] : NULL, first + 1 < argc ? argv[first + 1] : NULL,
                &e);
    kube_client_free(k);
    return r ? cli_fail("explain", &e) : 0;
}
