/* A fleet from a file instead of Kubernetes (--static):
 *   {"models": [{"name": "SmolLM2", "infd": "chat", "source": "file:///models/x.gguf", "sha256":
 * "", "secret": "…", "disaggregation": "auto", "block_tokens": 32, "kv_dtype": "f16",
 * "max_context": 0, "workers": [{"name": "p0", "host": "127.0.0.1", "port": 8000}]}]} */
#include <errno.h>
#include <strings.h>

#include "lib/base/clock.h"
#include "lib/json/json.h"
#include "router/router.h"

#define MAX_FILE_BYTES (4u << 20)

int policy_parse(const char *name, enum route_policy *out)
{
    static const char *const names[] = {"auto", "always", "never"};
    for (int i = 0; i < 3; i++)
        if (!name || !*name || strcasecmp(name, names[i]) == 0) {
            *out = (enum route_policy)i;
            return 0;
        }
    return -EINVAL;
}

static int add_worker(struct router *r, struct deployment *d, const json_t *o, struct err *e)
{
    const char *name, *host;
    int64_t port;
    int rc = json_need_str(o, "name", &name, e);
    rc = rc ? rc : json_need_str(o, "host", &host, e);
    rc = rc ? rc : json_need_int(o, "port", 1, 65535, &port, e);
    if (rc)
        return rc;
    if (!fleet_worker(r->fleet, d, name, json_str_at(o, "uid", ""), host, (uint16_t)port, false))
        return err_set(e, E2BIG, "at most %d workers a model", FLEET_WORKERS_MAX);
    return 0;
}

static int add_model(struct router *r, const json_t *o, struct err *e)
{
    struct deployment_spec s = {.namespace = json_str_at(o, "namespace", "default"),
                                .sha256 = json_str_at(o, "sha256", ""),
                                .kv_dtype = json_str_at(o, "kv_dtype", "f16"),
                                .block_tokens = (uint32_t)json_int_at(o, "block_tokens", 32),
                                .max_context = (uint32_t)json_int_at(o, "max_context", 0),
                                .created_ns = (uint64_t)json_int_at(o, "created", 0) * NS_PER_S,
                                .slo_ttft_s = json_num_at(o, "slo_ttft_s", 0),
                                .slo_tpot_s = json_num_at(o, "slo_tpot_s", 0),
                                .slo_percentile = (uint32_t)json_int_at(o, "slo_percentile", 0),
                                .wakes = json_bool_at(o, "wakes", false)};
    int rc = json_need_str(o, "name", &s.model_name, e);
    rc = rc ? rc : json_need_str(o, "source", &s.source, e);
    if (rc)
        return rc;
    s.infd = json_str_at(o, "infd", s.model_name);
    if (policy_parse(json_str_at(o, "disaggregation", "auto"), &s.policy))
        return err_set(e, EINVAL, "disaggregation is auto, always or never");
    if (!s.block_tokens || s.block_tokens > 4096)
        return err_set(e, EINVAL, "block_tokens must be between 1 and 4096");
    struct deployment *d = fleet_deployment(r->fleet, &s);
    const char *secret = json_str_at(o, "secret", NULL);
    if (secret)
        deployment_set_secret(d, secret);
    size_t i;
    json_t *w;
    json_array_foreach (json_at(o, "workers"), i, w) {
        rc = add_worker(r, d, w, e);
        if (rc)
            return err_wrap(e, "workers.%zu", i);
    }
    return 0;
}

int static_load(struct router *r, const char *path, struct err *e)
{
    CLEANUP(json_decrefp) json_t *o = json_parse_file(path, MAX_FILE_BYTES, e);
    if (!o)
        return -e->code;
    size_t i;
    json_t *m;
    json_array_foreach (json_at(o, "models"), i, m) {
        if (add_model(r, m, e))
            return err_wrap(e, "%s: models.%zu", path, i);
    }
    return 0;
}
