#include "cli/status.h"
#include "lib/base/clock.h"
#include "lib/kube/types.h"

#include <stdio.h>
#include <string.h>

static const char *eol; /* clears what an earlier, longer line left behind */

/* "prefill 1/1, decode 2/3 (1 of the new revision)" */
static void print_roles(const json_t *roles)
{
    const char *name;
    json_t *r;
    bool first = true;
    json_object_foreach ((json_t *)(uintptr_t)roles, name, r) {
        long long want = json_int_at(r, "desired", 0), now = json_int_at(r, "current", 0),
                  fresh = json_int_at(r, "updated", 0);
        printf("%s%s %lld/%lld", first ? "" : ", ", name, (long long)json_int_at(r, "ready", 0),
               want);
        if (fresh < now)
            printf(" (%lld of %lld updated)", fresh, now);
        first = false;
    }
}

static void print_reasons(const json_t *reasons)
{
    size_t i;
    json_t *c;
    json_array_foreach (reasons, i, c) {
        printf("    %s=%s %s", json_str_at(c, "type", ""), json_str_at(c, "status", ""),
               json_str_at(c, "reason", ""));
        const char *message = json_str_at(c, "message", "");
        printf(*message ? ": %.300s%s\n" : "%s%s\n", message, eol);
    }
}

static void print_worker(const json_t *w)
{
    double kv = json_num_at(w, "kv_used", 0) * 100;
    const char *role = json_str_at(w, "role", ""), *actual = json_str_at(w, "actual_role", "");
    bool differs = *actual && strcmp(role, actual) != 0;
    char roles[64];
    snprintf(roles, sizeof roles, "%s%s%s", differs ? actual : "", differs ? "→" : "", role);
    printf("    %-24s %-12s %-18s %-18s %4lld %5lld %6.1f%% %5lld%s\n", json_str_at(w, "pod", ""),
           json_str_at(w, "node", ""), roles, json_str_at(w, "state", ""),
           (long long)json_int_at(w, "running", 0), (long long)json_int_at(w, "waiting", 0), kv,
           (long long)json_int_at(w, "restarts", 0), eol);
    const char *message = json_str_at(w, "message", "");
    if (*message)
        printf("        %.300s%s\n", message, eol);
}

static void print_deployment(const json_t *d)
{
    size_t i;
    json_t *w;
    printf("%s\n%s/%s  model %s  %s  ", eol, json_str_at(d, "namespace", ""),
           json_str_at(d, "name", ""), json_str_at(d, "model", ""),
           json_bool_at(d, "ready", false) ? "Ready" : "not ready");
    print_roles(json_object_get(d, "roles"));
    printf("  in %.1f tok/s  out %.1f tok/s  held %lld%s\n",
           json_num_at(d, "prompt_tokens_per_s", 0), json_num_at(d, "generated_tokens_per_s", 0),
           (long long)json_int_at(d, "held", 0), eol);
    print_reasons(json_object_get(d, "reasons"));
    printf("    %-24s %-12s %-18s %-18s %4s %5s %7s %5s%s\n", "WORKER", "NODE", "ROLE", "STATE",
           "RUN", "QUEUE", "KV", "EPOCH", eol);
    json_array_foreach (json_object_get(d, "workers"), i, w)
        print_worker(w);
}

void status_print(const json_t *look, bool live)
{
    char now[CLOCK_RFC3339_MAX];
    size_t i;
    json_t *d;
    const json_t *all = json_object_get(look, "deployments");
    const char *error = json_str_at(look, "error", "");
    eol = live ? "\033[K" : "";
    if (live)
        fputs("\033[H", stdout);
    printf("router %s   %s%s\n", json_bool_at(look, "router_up", false) ? "up" : "not reachable",
           clock_rfc3339(clock_wall_ns(), 0, now), eol);
    if (*error)
        printf("Kubernetes API: %.200s%s\n", error, eol);
    if (json_array_size(all) == 0)
        printf("no InferenceDeployment: kubectl apply -f manifests/samples/chat.yaml, or baton run "
               "\"…\"%s\n",
               eol);
    json_array_foreach (all, i, d)
        print_deployment(d);
    if (live)
        fputs("\033[J", stdout);
}
