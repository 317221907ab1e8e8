/* The pod of one group, as docs/contracts.md has it. */
#include "controller/controller.h"
#include "controller/restart.h"
#include "controller/source.h"
#include "controller/standby.h"
#include "lib/base/clock.h"
#include "lib/decide/guard.h"
#include "lib/decide/hash.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define DRAIN_NS (300ull * 1000000000)
#define PEER_DIR "/etc/baton/peer"

bool infd_has_role(const struct kube_infd *d, enum rec_role role)
{
    switch (role) {
    case REC_PREFILL: return VIEW_HAS(&kube_infd_view, d, struct kube_infd, prefill);
    case REC_DECODE: return VIEW_HAS(&kube_infd_view, d, struct kube_infd, decode);
    case REC_UNIFIED: return VIEW_HAS(&kube_infd_view, d, struct kube_infd, unified);
    default: return false;
    }
}

static int64_t at_least_one(int64_t n)
{
    return n > 0 ? n : 1;
}

int64_t role_ranks(const struct infd_role *r)
{
    const struct infd_parallelism *p = &r->parallelism;
    return at_least_one(p->tensor) * at_least_one(p->pipeline) * at_least_one(p->data);
}

int64_t role_pods(const struct infd_role *r)
{
    return at_least_one(r->parallelism.pods);
}

/* Standby workers have the shape of the role that decodes. */
const struct infd_role *infd_role_of(const struct kube_infd *d, enum rec_role role)
{
    if (role == REC_PREFILL)
        return &d->prefill;
    if (role == REC_UNIFIED || (role == REC_STANDBY && infd_has_role(d, REC_UNIFIED)))
        return &d->unified;
    return &d->decode;
}

uint64_t pod_drain_seconds(const struct kube_infd *d)
{
    uint64_t ns;
    if (kube_duration_ns(d->drain_timeout, DRAIN_NS, &ns))
        ns = DRAIN_NS;
    return (ns + 999999999) / 1000000000;
}

static char *map_text(const struct view_map *m)
{
    CLEANUP(json_decrefp) json_t *o = json_object();
    struct buf b;
    for (size_t i = 0; i < m->n; i++)
        json_object_set_new(o, m->items[i].key, json_string(m->items[i].value));
    buf_init(&b, 1u << 20);
    if (json_write(o, true, &b))
        buf_reset(&b);
    return b.data ? buf_take(&b) : xstrdup("");
}

/* What a spec of an older Baton could not say is hashed only where it is said, so that an upgrade
 * of the controller changes no revision. */
static size_t later_parts(const struct kube_infd *d, const struct infd_role *role, char *text,
                          size_t n, struct hash_part *parts)
{
    size_t k = 0, at = 0;
    const struct infd_placement *p = &role->placement;
    text[0] = 0;
    if (role->parallelism.pods > 1) {
        int len = snprintf(text, n, "%lld", (long long)role->parallelism.pods);
        parts[k++] = (struct hash_part){"pods", text};
        at = (size_t)len + 1;
    }
    if (p->pack_by) {
        parts[k++] = (struct hash_part){"packBy", p->pack_by};
        parts[k++] = (struct hash_part){"packMode", p->mode ? p->mode : "Preferred"};
    }
    if (d->engine_speculation)
        parts[k++] = (struct hash_part){"speculation", d->engine_speculation};
    if (d->engine_redundant_experts) {
        int len = snprintf(text + at, n - at, "%lld", (long long)d->engine_redundant_experts);
        parts[k++] = (struct hash_part){"redundantExperts", text + at};
        at += (size_t)len + 1;
    }
    char *claims = text + at;
    size_t len = 0;
    for (size_t i = 0; i < role->claims.n && at + len < n; i++) {
        const struct infd_claim *c = VIEW_AT(struct infd_claim, role->claims, i);
        len += (size_t)snprintf(claims + len, n - at - len, "%s=%s;", c->name, c->claim_template);
    }
    if (role->claims.n)
        parts[k++] = (struct hash_part){"resourceClaims", claims};
    return k;
}

void pod_pair(const struct kube_infd *d, char out[17])
{
    char block[24];
    snprintf(block, sizeof block, "%lld", (long long)d->kv_block_tokens);
    struct hash_part parts[] = {
        {"source", d->model_source}, {"sha256", d->model_sha256}, {"block", block},
        {"dtype", d->kv_dtype},      {"image", d->engine_image},  {"template", d->engine_template},
    };
    hash_revision(parts, sizeof parts / sizeof *parts, out);
}

void infd_revision(const struct kube_infd *d, char out[17])
{
    struct hash_part parts[REC_STANDBY];
    char hashes[REC_STANDBY][17];
    size_t n = 0;
    for (int i = 0; i < REC_STANDBY; i++) {
        if (!infd_has_role(d, (enum rec_role)i))
            continue;
        pod_revision(d, infd_role_of(d, (enum rec_role)i), hashes[i]);
        parts[n++] = (struct hash_part){rec_role_name((enum rec_role)i), hashes[i]};
    }
    hash_revision(parts, n, out);
}

void pod_revision(const struct kube_infd *d, const struct infd_role *role, char out[17])
{
    char numbers[256], later[4096];
    const struct infd_parallelism *p = &role->parallelism;
    CLEANUP(free_charp) char *requests = map_text(&role->requests);
    CLEANUP(free_charp) char *limits = map_text(&role->limits);
    CLEANUP(free_charp) char *nodes = map_text(&role->node_selector);
    snprintf(numbers, sizeof numbers,
             "ctx=%lld tp=%lld pp=%lld ep=%lld dp=%lld block=%lld port=%lld drain=%llu",
             (long long)d->model_max_context_tokens, (long long)p->tensor, (long long)p->pipeline,
             (long long)p->expert, (long long)p->data, (long long)d->kv_block_tokens,
             (long long)d->engine_port, (unsigned long long)pod_drain_seconds(d));
    if (!GUARD(replicas_no_revision)) {
        size_t n = strlen(numbers);
        snprintf(numbers + n, sizeof numbers - n, " replicas=%lld", (long long)role->replicas);
    }
    struct hash_part parts[19] = {
        {"model", d->model_name},         {"source", d->model_source},
        {"sha256", d->model_sha256},      {"numbers", numbers},
        {"dtype", d->kv_dtype},           {"kv", d->kv_size},
        {"requests", requests},           {"limits", limits},
        {"nodeSelector", nodes},          {"tolerations", role->tolerations},
        {"affinity", role->affinity},     {"image", d->engine_image},
        {"template", d->engine_template},
    };
    hash_revision(parts, 13 + later_parts(d, role, later, sizeof later, parts + 13), out);
}

static bool quantities_valid(const struct view_map *m)
{
    int64_t milli;
    for (size_t i = 0; i < m->n; i++)
        if (str_to_quantity_milli(str_c(m->items[i].value), &milli) || milli < 0)
            return false;
    return true;
}

static bool resources_valid(const struct infd_role *r)
{
    return quantities_valid(&r->requests) && quantities_valid(&r->limits);
}

static bool pods_valid(const struct infd_role *r)
{
    int64_t ranks = role_ranks(r), pods = role_pods(r);
    return pods <= 64 && ranks % pods == 0;
}

const char *pod_invalid(const struct kube_infd *d)
{
    int64_t milli;
    if (!d->model_name || !d->model_source)
        return "spec.model needs a name and a source";
    if (source_invalid(d))
        return source_invalid(d);
    if (!infd_has_role(d, REC_UNIFIED) &&
        !(infd_has_role(d, REC_PREFILL) && infd_has_role(d, REC_DECODE)))
        return "spec needs unified, or prefill and decode";
    if (infd_has_role(d, REC_UNIFIED) &&
        (infd_has_role(d, REC_PREFILL) || infd_has_role(d, REC_DECODE)))
        return "spec.unified excludes prefill and decode";
    if (d->engine_template && !infd_has_role(d, REC_UNIFIED))
        return "spec.engine.template needs the role unified";
    if (!resources_valid(&d->prefill) || !resources_valid(&d->decode) ||
        !resources_valid(&d->unified))
        return "a role's resources hold what is not a quantity such as 2Gi, or a negative one";
    if (d->kv_size && (str_to_quantity_milli(str_c(d->kv_size), &milli) || milli <= 0))
        return "spec.kvCache.size is not a quantity such as 2Gi";
    if (!pods_valid(&d->prefill) || !pods_valid(&d->decode) || !pods_valid(&d->unified))
        return "a role's parallelism.pods does not divide its tensor * pipeline * data ranks";
    if (strlen(d->meta.name) > 50)
        return "the name is longer than 50 characters, which leaves no room for the names of pods";
    return NULL;
}

static void env(json_t *list, const char *name, const char *value)
{
    json_array_append_new(list, json_pack("{s:s, s:s}", "name", name, "value", value ? value : ""));
}

static void env_n(json_t *list, const char *name, int64_t value)
{
    char text[24] = "";
    if (value)
        snprintf(text, sizeof text, "%lld", (long long)value);
    env(list, name, text);
}

static void env_field(json_t *list, const char *name, const char *path)
{
    json_array_append_new(list, json_pack("{s:s, s:{s:{s:s}}}", "name", name, "valueFrom",
                                          "fieldRef", "fieldPath", path));
}

static void env_resource(json_t *list, const char *name, const char *resource, const char *divisor)
{
    json_array_append_new(list,
                          json_pack("{s:s, s:{s:{s:s, s:s}}}", "name", name, "valueFrom",
                                    "resourceFieldRef", "resource", resource, "divisor", divisor));
}

/* A file below the models folder is named through $(BATON_MODELS_DIR), so that process mode can put
 * the real folder there. */
static void env_source(const struct ctl *c, json_t *list, const char *source)
{
    size_t n = strlen(c->opts.models_dir);
    bool inside = strncmp(source, "file://", 7) == 0 &&
                  strncmp(source + 7, c->opts.models_dir, n) == 0 && source[7 + n] == '/';
    CLEANUP(free_charp)
    char *text =
        inside ? xasprintf("file://$(BATON_MODELS_DIR)%s", source + 7 + n) : xstrdup(source);
    env(list, "BATON_MODELS_DIR", c->opts.models_dir);
    env(list, "BATON_MODEL_SOURCE", text);
}

/* What a role asks for decides what computes: a GPU that was asked for must be there, a device
 * claim may be one, and a pod that asked for none uses none of its node's. */
static const char *backend_of(const struct infd_role *role)
{
    const struct view_map *maps[] = {&role->requests, &role->limits};
    for (size_t i = 0; i < 2; i++)
        for (size_t k = 0; k < maps[i]->n; k++)
            if (strncmp(maps[i]->items[k].key, "nvidia.com/", 11) == 0)
                return "cuda";
    return role->claims.n ? "auto" : "cpu";
}

static json_t *environment(const struct ctl *c, const struct kube_infd *d,
                           const struct infd_role *role)
{
    json_t *l = json_array();
    int64_t kv_milli = 0;
    if (d->kv_size && str_to_quantity_milli(str_c(d->kv_size), &kv_milli))
        kv_milli = 0; /* refused before, by pod_invalid */
    env_field(l, "BATON_POD_IP", "status.podIP");
    env_field(l, "BATON_POD_NAME", "metadata.name");
    env_field(l, "BATON_POD_NAMESPACE", "metadata.namespace");
    env_field(l, "BATON_POD_UID", "metadata.uid");
    env_field(l, "BATON_NODE_NAME", "spec.nodeName");
    env_resource(l, "BATON_CPU_LIMIT_MILLI", "limits.cpu", "1m");
    env_resource(l, "BATON_MEMORY_LIMIT_BYTES", "limits.memory", "1");
    env(l, "BATON_INFD", d->meta.name);
    env(l, "BATON_MODEL_NAME", d->model_name);
    env_source(c, l, d->model_source);
    env(l, "BATON_MODEL_SHA256", d->model_sha256);
    env_n(l, "BATON_KV_BLOCK_TOKENS", d->kv_block_tokens ? d->kv_block_tokens : 32);
    env(l, "BATON_KV_DTYPE", d->kv_dtype ? d->kv_dtype : "f16");
    env_n(l, "BATON_KV_BYTES", kv_milli / 1000);
    if (d->engine_speculation)
        env(l, "BATON_SPECULATION",
            strcmp(d->engine_speculation, "None") == 0 ? "off" : "prompt-lookup");
    if (d->engine_redundant_experts)
        env_n(l, "BATON_REDUNDANT_EXPERTS", d->engine_redundant_experts);
    env_n(l, "BATON_MAX_CONTEXT", d->model_max_context_tokens);
    env_n(l, "BATON_TP", at_least_one(role->parallelism.tensor));
    env_n(l, "BATON_PP", at_least_one(role->parallelism.pipeline));
    env_n(l, "BATON_EP", at_least_one(role->parallelism.expert));
    env_n(l, "BATON_DP", at_least_one(role->parallelism.data));
    env_n(l, "BATON_PODS", role_pods(role));
    env(l, "BATON_BACKEND", backend_of(role));
    env(l, "BATON_HTTP_PORT", "8000");
    env(l, "BATON_XFER_PORT", "8001");
    env_n(l, "BATON_DRAIN_SECONDS", (int64_t)pod_drain_seconds(d));
    env(l, "BATON_AGENT_DIR", c->opts.agent_dir);
    env(l, "BATON_PEER_DIR", PEER_DIR);
    env(l, "BATON_SHM_DIR", "/dev/shm");
    return l;
}

static json_t *map_json(const struct view_map *m)
{
    json_t *o = json_object();
    for (size_t i = 0; i < m->n; i++)
        json_object_set_new(o, m->items[i].key, json_string(m->items[i].value));
    return o;
}

static json_t *probe(const char *path, int period, int failures)
{
    return json_pack("{s:{s:s, s:s}, s:i, s:i, s:i}", "httpGet", "path", path, "port", "http",
                     "periodSeconds", period, "failureThreshold", failures, "timeoutSeconds", 5);
}

static json_t *mount(const char *name, const char *path, bool read_only)
{
    json_t *m = json_pack("{s:s, s:s}", "name", name, "mountPath", path);
    if (read_only)
        json_object_set_new(m, "readOnly", json_true());
    return m;
}

static json_t *container(const struct ctl *c, const struct kube_infd *d,
                         const struct infd_role *role)
{
    json_t *o = json_pack(
        "{s:s, s:s, s:[s,s], s:o, s:[{s:s,s:i},{s:s,s:i}], s:{s:o,s:o}, s:[o,o,o,o], s:o, s:o, "
        "s:o, s:{s:b,s:b,s:{s:[s]}}}",
        "name", "worker", "image", d->engine_image ? d->engine_image : c->opts.worker_image,
        "command", "baton-agent", "launch", "env", environment(c, d, role), "ports", "name", "http",
        "containerPort", 8000, "name", "xfer", "containerPort", 8001, "resources", "requests",
        map_json(&role->requests), "limits", map_json(&role->limits), "volumeMounts",
        mount("agent", c->opts.agent_dir, false), mount("models", c->opts.models_dir, true),
        mount("peer", PEER_DIR, true), mount("shm", "/dev/shm", false), "startupProbe",
        probe("/healthz", 1, 900), "readinessProbe", probe("/readyz", 1, 2), "livenessProbe",
        probe("/healthz", 10, 6), "securityContext", "allowPrivilegeEscalation", 0,
        "readOnlyRootFilesystem", 1, "capabilities", "drop", "ALL");
    ASSERT(o);
    return o;
}

static json_t *volumes(const struct ctl *c, const struct kube_infd *d)
{
    CLEANUP(free_charp) char *secret = xasprintf("%s-peer", d->meta.name);
    json_t *v =
        json_pack("[{s:s,s:{s:s,s:s}}, {s:s,s:{s:s,s:s}}, {s:s,s:{s:s,s:i}}, {s:s,s:{s:s}}]",
                  "name", "agent", "hostPath", "path", c->opts.agent_dir, "type",
                  "DirectoryOrCreate", "name", "models", "hostPath", "path", c->opts.models_dir,
                  "type", "DirectoryOrCreate", "name", "peer", "secret", "secretName", secret,
                  "defaultMode", 0440, "name", "shm", "emptyDir", "medium", "Memory");
    ASSERT(v);
    return v;
}

static json_t *own_spec(const struct ctl *c, const struct kube_infd *d,
                        const struct infd_role *role)
{
    json_t *s = json_pack("{s:[o], s:o, s:b, s:b, s:s, s:[{s:s}], s:{s:b,s:i,s:i,s:i,s:{s:s}}}",
                          "containers", container(c, d, role), "volumes", volumes(c, d),
                          "automountServiceAccountToken", 0, "enableServiceLinks", 0,
                          "restartPolicy", "Always", "readinessGates", "conditionType", GATE_ROLE,
                          "securityContext", "runAsNonRoot", 1, "runAsUser", 65532, "runAsGroup",
                          65532, "fsGroup", 65532, "seccompProfile", "type", "RuntimeDefault");
    ASSERT(s);
    return s;
}

/* A server of the user's: their pod template, with our scheduling and grace where the template is
 * silent. */
static json_t *foreign_spec(const struct kube_infd *d, struct err *e)
{
    CLEANUP(json_decrefp) json_t *t = json_parse(str_c(d->engine_template), 1u << 20, 0, e);
    json_t *spec = json_object_get(t, "spec");
    if (t && !json_at(spec, "containers.0.name")) {
        err_set(e, EINVAL, "spec.engine.template has no containers");
        return NULL;
    }
    return json_incref(spec);
}

static void place(json_t *spec, const struct kube_infd *d, const struct infd_role *role)
{
    if (role->node_selector.n && !json_object_get(spec, "nodeSelector"))
        json_object_set_new(spec, "nodeSelector", map_json(&role->node_selector));
    if (role->tolerations && !json_object_get(spec, "tolerations"))
        json_object_set_new(spec, "tolerations",
                            json_parse(str_c(role->tolerations), 1u << 20, 0, NULL));
    if (role->affinity && !json_object_get(spec, "affinity"))
        json_object_set_new(spec, "affinity", json_parse(str_c(role->affinity), 1u << 20, 0, NULL));
    json_object_set_new(spec, "terminationGracePeriodSeconds",
                        json_integer((json_int_t)pod_drain_seconds(d) + 30));
}

json_t *pod_body(const struct ctl *c, const struct kube_infd *d, const struct rec_action *a,
                 struct err *e)
{
    const struct infd_role *role = infd_role_of(d, a->role);
    json_t *spec = d->engine_template ? foreign_spec(d, e) : own_spec(c, d, role);
    if (!spec)
        return NULL;
    place(spec, d, role);
    if (!d->engine_template)
        source_mount(d, spec);
    standby_place(c, d, role, spec);
    group_place(spec, c, role, a);
    if (d->engine_template)
        restart_together(c, spec);
    return json_pack("{s:s, s:s, s:o, s:o}", "apiVersion", "v1", "kind", "Pod", "metadata",
                     group_metadata(d, a), "spec", spec);
}
