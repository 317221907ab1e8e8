/* NodeInventory of this node: devices, weights by rung, tiers, the node's own copy bandwidth.
 * Written when it changes and once a minute. */
#include "agent/devices.h"
#include "agent/models.h"

#include "lib/base/host.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define SOON_MS    200
#define PERIOD_MS  60000
#define MODELS_MAX 128

static char *cpu_model(void)
{
    char line[512], *name = NULL;
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (!name && f && fgets(line, sizeof line, f)) {
        char *colon = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        if (colon) {
            struct str s = str_trim(str_c(colon + 1));
            s.n = s.n < 128 ? s.n : 128;
            name = str_dup(s);
        }
    }
    if (f)
        fclose(f);
    return name ? name : xstrdup("CPU");
}

static const char *cpu_isa(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
        if (!__builtin_cpu_supports("avx512vnni"))
            return "avx512";
        return __builtin_cpu_supports("amx-int8") && __builtin_cpu_supports("amx-bf16")
                   ? "avx512,vnni,amx"
                   : "avx512,vnni";
    }
    if (__builtin_cpu_supports("avx2"))
        return "avx2";
#endif
    return "scalar";
}

static json_t *huge_pages(void)
{
    char text[256] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "re");
    if (f && !fgets(text, sizeof text, f))
        text[0] = 0;
    if (f)
        fclose(f);
    const char *open = strchr(text, '['), *close = open ? strchr(open, ']') : NULL;
    return open && close ? json_sprintf("shmem: %.*s", (int)(close - open - 1), open + 1)
                         : json_string("none: small pages");
}

/* What copying costs on this node, once: 32 MiB back and forth, the best of three. */
static uint64_t copy_bandwidth(void)
{
    size_t n = 32 << 20;
    char *a = xcalloc(1, n), *b = xcalloc(1, n);
    uint64_t best = 0;
    for (int i = 0; i < 3; i++) {
        a[i] = (char)i;
        uint64_t t0 = clock_mono_ns();
        memcpy(b, a, n);
        uint64_t ns = clock_mono_ns() - t0;
        __asm__ volatile("" : : "r"(b) : "memory");
        uint64_t rate = ns ? (uint64_t)((double)n * 1e9 / (double)ns) : 0;
        best = rate > best ? rate : best;
    }
    free(a);
    free(b);
    return best;
}

static void add_weights(struct agent *a, json_t *models)
{
    for (size_t i = 0; i < weights_count(a->weights) && json_array_size(models) < MODELS_MAX; i++) {
        struct weights_info w;
        weights_info(a->weights, i, &w);
        if (!w.ready)
            continue;
        json_t *m = json_pack("{s:s, s:s, s:I}", "source", w.source, "rung", "dram", "bytes",
                              (json_int_t)w.bytes);
        if (*w.sha256)
            json_object_set_new(m, "sha256", json_string(w.sha256));
        json_array_append_new(models, m);
    }
}

static void add_files(struct agent *a, json_t *models)
{
    DIR *d = a->opt.models_dir ? opendir(a->opt.models_dir) : NULL;
    struct dirent *ent;
    while (d && (ent = readdir(d)) && json_array_size(models) < MODELS_MAX) {
        struct stat st;
        CLEANUP(free_charp) char *path = xasprintf("%s/%s", a->opt.models_dir, ent->d_name);
        if (!str_ends(str_c(ent->d_name), STR(".gguf")) || stat(path, &st) || !S_ISREG(st.st_mode))
            continue;
        json_array_append_new(models, json_pack("{s:o, s:s, s:I}", "source",
                                                json_sprintf("file://%s", path), "rung", "nvme",
                                                "bytes", (json_int_t)st.st_size));
    }
    if (d)
        closedir(d);
}

static json_t *describe(struct agent *a)
{
    static uint64_t rate;
    CLEANUP(free_charp) char *model = cpu_model();
    json_t *models = json_array(), *fetches = json_array();
    add_weights(a, models);
    add_files(a, models);
    models_inventory(a, models, fetches);
    rate = rate ? rate : copy_bandwidth();
    json_t *device =
        json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:b}", "name", "cpu0", "kind", "cpu", "model",
                  model, "isa", cpu_isa(), "memoryBytes", (json_int_t)host_memory_bytes(),
                  "milliCPUs", (json_int_t)host_milli_cpus(), "healthy", 1);
    json_t *devices = json_pack("[o]", device);
    devices_inventory(a, devices);
    bool v6 = strchr(a->opt.pod_ip, ':') != NULL;
    json_t *o = json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:[{s:s, s:I, s:I}], s:[{s:s, s:I}]}",
                          "agentVersion", BATON_VERSION, "address",
                          json_sprintf(v6 ? "[%s]:%d" : "%s:%d", a->opt.pod_ip, (int)a->opt.port),
                          "hugePages", huge_pages(), "devices", devices, "models", models,
                          "fetches", fetches, "tiers", "name", "dram", "capacityBytes",
                          (json_int_t)a->opt.tier_budget, "usedBytes", (json_int_t)0, "links",
                          "peer", "memory", "bytesPerSecond", (json_int_t)rate);
    if (devices_quarantine(a))
        json_object_set_new(o, "quarantined", json_string(devices_quarantine(a)));
    return o;
}

static void tick(uv_timer_t *t);

static void done(struct agent *a, bool ok)
{
    a->inventory_asked = false;
    if (!ok)
        uv_timer_start(a->inventory_timer, tick, 2000, PERIOD_MS);
}

static void status_done(const struct kube_result *r, void *ctx)
{
    struct agent *a = ctx;
    if (r->err.code) {
        log_warn("NodeInventory status not written", LI("status", r->status), LERR(&r->err));
        a->inventory_made = r->status != 404;
        json_decref(a->inventory_sent);
        a->inventory_sent = NULL;
    }
    done(a, r->err.code == 0);
}

static void write_status(struct agent *a)
{
    char now[CLOCK_RFC3339_MAX];
    json_t *status = describe(a);
    if (a->inventory_sent && json_equal(status, a->inventory_sent)) {
        json_decref(status);
        a->inventory_asked = false;
        return;
    }
    json_decref(a->inventory_sent);
    a->inventory_sent = json_copy(status);
    json_object_set_new(status, "observedAt", json_string(clock_rfc3339(clock_wall_ns(), 0, now)));
    CLEANUP(json_decrefp)
    json_t *body =
        json_pack("{s:{s:s}, s:o}", "metadata", "name", a->opt.node_name, "status", status);
    struct kube_call call = {.verb = KUBE_APPLY,
                             .kind = &kube_ninvs,
                             .name = a->opt.node_name,
                             .subresource = "status",
                             .body = body,
                             .field_manager = AGENT_MANAGER,
                             .force = true,
                             .done = status_done,
                             .ctx = a};
    struct err e;
    if (kube_start(a->api, &call, &e))
        done(a, false);
}

static void object_done(const struct kube_result *r, void *ctx)
{
    struct agent *a = ctx;
    if (r->err.code) {
        log_warn("NodeInventory not written; trying again", LI("status", r->status), LERR(&r->err));
        done(a, false);
        return;
    }
    a->inventory_made = true;
    write_status(a);
}

static void write_object(struct agent *a)
{
    CLEANUP(json_decrefp)
    json_t *body = json_pack("{s:{s:s, s:[{s:s, s:s, s:s, s:s}]}}", "metadata", "name",
                             a->opt.node_name, "ownerReferences", "apiVersion", "v1", "kind",
                             "Node", "name", a->opt.node_name, "uid", a->node_uid);
    struct kube_call call = {.verb = KUBE_APPLY,
                             .kind = &kube_ninvs,
                             .name = a->opt.node_name,
                             .body = body,
                             .field_manager = AGENT_MANAGER,
                             .force = true,
                             .done = object_done,
                             .ctx = a};
    struct err e;
    if (kube_start(a->api, &call, &e))
        done(a, false);
}

static void node_seen(const struct kube_result *r, void *ctx)
{
    struct agent *a = ctx;
    const char *uid = json_str_at(r->object, "metadata.uid", NULL);
    if (r->err.code || !uid) {
        done(a, false);
        return;
    }
    free(a->node_uid);
    a->node_uid = xstrdup(uid);
    write_object(a);
}

static void tick(uv_timer_t *t)
{
    struct agent *a = t->data;
    uv_timer_start(t, tick, PERIOD_MS, PERIOD_MS);
    if (a->inventory_asked)
        return;
    a->inventory_asked = true;
    if (a->inventory_made) {
        write_status(a);
        return;
    }
    struct kube_call call = {.verb = KUBE_GET,
                             .kind = &kube_nodes,
                             .name = a->opt.node_name,
                             .done = node_seen,
                             .ctx = a};
    struct err e;
    if (kube_start(a->api, &call, &e))
        done(a, false);
}

void inventory_poke(struct agent *a)
{
    uv_timer_start(a->inventory_timer, tick, SOON_MS, PERIOD_MS);
}

void inventory_start(struct agent *a)
{
    a->inventory_timer = xcalloc(1, sizeof *a->inventory_timer);
    uv_timer_init(&a->loop, a->inventory_timer);
    a->inventory_timer->data = a;
    uv_timer_start(a->inventory_timer, tick, 0, PERIOD_MS);
}
