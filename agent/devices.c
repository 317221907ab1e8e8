#include "agent/devices.h"

#include "agent/nvml.h"
#include "lib/base/file.h"
#include "lib/base/metrics.h"
#include "lib/decide/fault.h"
#include "lib/decide/guard.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <utlist.h>

#define LOOK_MS    5000
#define WAIT_MS    1000
#define FAULTS_MAX 32
#define QUEUE_MAX  64
#define FORGIVE_NS (3600 * NS_PER_S)

struct device {
    struct nvml_device d;
    struct fault faults[FAULTS_MAX]; /* newest last */
    size_t n_faults;
    enum fault_action action; /* what its faults ask for, the worst since it was fine */
    char reason[200];
    uint64_t fault_wall_ns;
    struct nvml_health seen;
    bool seen_once, throttle_told;
    uint64_t throttled_since_ns;
};

struct devices {
    struct agent *a;
    struct nvml *nvml;
    struct device list[NVML_DEVICES_MAX];
    unsigned n;
    char *path, *lifted, boot[64];
    uv_timer_t *timer;
    uv_async_t *wake;
    pthread_t thread;
    pthread_mutex_t lock; /* of the queue */
    struct {
        unsigned device;
        uint64_t xid;
    } queue[QUEUE_MAX];
    unsigned queued;
};

/* ---- what outlives the agent ---- */

static void save(const struct devices *ds)
{
    struct buf b;
    struct err e;
    CLEANUP(json_decrefp) json_t *list = json_object();
    for (unsigned i = 0; i < ds->n; i++) {
        const struct device *d = &ds->list[i];
        if (d->action > FAULT_NONE)
            json_object_set_new(list, d->d.uuid,
                                json_pack("{s:s, s:s, s:I}", "action", fault_action_name(d->action),
                                          "reason", d->reason, "at", (json_int_t)d->fault_wall_ns));
    }
    CLEANUP(json_decrefp)
    json_t *o = json_pack("{s:s, s:s, s:O}", "boot", ds->boot, "lifted",
                          ds->lifted ? ds->lifted : "", "devices", list);
    buf_init(&b, 1u << 20);
    if (!o || json_write(o, true, &b) || file_write(ds->path, buf_view(&b), 0600, &e))
        log_warn("faults of devices could not be noted", LS("file", ds->path));
    buf_fini(&b);
}

static void load(struct devices *ds)
{
    CLEANUP(json_decrefp) json_t *o = json_parse_file(ds->path, 1u << 20, NULL);
    ds->lifted = xstrdup(json_str_at(o, "lifted", ""));
    if (strcmp(json_str_at(o, "boot", ""), ds->boot) != 0)
        return; /* a reboot resets devices */
    for (unsigned i = 0; i < ds->n; i++) {
        struct device *d = &ds->list[i];
        const json_t *x = json_object_get(json_object_get(o, "devices"), d->d.uuid);
        if (!x)
            continue;
        d->action = fault_action_parse(json_str_at(x, "action", ""));
        d->fault_wall_ns = (uint64_t)json_int_at(x, "at", 0);
        snprintf(d->reason, sizeof d->reason, "%s", json_str_at(x, "reason", ""));
        log_warn(d->action >= FAULT_QUARANTINE_DEVICE ? "a device stays in quarantine"
                                                      : "a device had a fault",
                 LS("uuid", d->d.uuid), LS("reason", d->reason));
    }
}

/* ---- faults ---- */

static void count(const struct fault *f, enum fault_action action)
{
    static struct metric_family *family;
    char xid[24] = "";
    if (!family)
        family = metric_family(METRIC_COUNTER, "baton_agent_device_faults_total",
                               "Faults of devices, by Xid (empty: other signs) and action",
                               "xid,action", NULL, 0);
    if (f->kind == FAULT_XID)
        snprintf(xid, sizeof xid, "%llu", (unsigned long long)f->code);
    metric_add(metric_series(family, xid, fault_action_name(action)), 1);
}

/* What is thought of a device changed: pods' gates and the inventory follow. */
static void changed(struct devices *ds)
{
    struct apod *p;
    DL_FOREACH (ds->a->pods, p)
        pods_poke(p);
    inventory_poke(ds->a);
}

static void restart_ranks(struct devices *ds, const struct device *d)
{
    struct launcher *l;
    DL_FOREACH (ds->a->launchers, l) {
        CLEANUP(free_charp) char *fault = devices_fault_of(ds->a, l->devices, 0);
        if (!fault || !strstr(fault, d->d.uuid))
            continue;
        CLEANUP(json_decrefp)
        json_t *o = json_pack("{s:s, s:s}", "type", "restart", "reason", d->reason);
        if (lines_send(l->lines, o, -1))
            log_warn("a launcher does not listen", LS("pod", l->pod));
    }
}

static void happened(struct devices *ds, struct device *d, struct fault f)
{
    char reason[160];
    f.at_ns = clock_mono_ns();
    enum fault_action action = fault_decide(&f, d->faults, d->n_faults, reason);
    if (d->n_faults == FAULTS_MAX)
        memmove(d->faults, d->faults + 1, --d->n_faults * sizeof *d->faults);
    d->faults[d->n_faults++] = f;
    count(&f, action);
    log_write(action >= FAULT_DRAIN ? LOG_ERROR : LOG_WARN, &(struct log_site){0},
              "a device has a fault",
              (struct log_field[]){LS("uuid", d->d.uuid),
                                   LS("reason", reason),
                                   LS("action", fault_action_name(action)),
                                   {0}});
    if (action < d->action && GUARD(quarantine_stays))
        return; /* it was worse already */
    d->action = action;
    d->fault_wall_ns = clock_wall_ns();
    snprintf(d->reason, sizeof d->reason, "%s", reason);
    if (action > FAULT_NONE)
        save(ds);
    if (action == FAULT_RESTART)
        restart_ranks(ds, d);
    changed(ds);
}

static void look(struct devices *ds, unsigned i)
{
    struct device *d = &ds->list[i];
    struct nvml_health h, was = d->seen;
    uint64_t now = clock_mono_ns();
    nvml_health(ds->nvml, i, &h);
    bool first = !d->seen_once;
    d->seen = h;
    d->seen_once = true;
    if (h.lost && !was.lost)
        happened(ds, d, (struct fault){.kind = FAULT_LOST});
    if (h.lost)
        return;
    if (!first && h.ecc_uncorrected > was.ecc_uncorrected)
        happened(ds, d,
                 (struct fault){.kind = FAULT_ECC_DOUBLE,
                                .code = h.ecc_uncorrected - was.ecc_uncorrected});
    if (h.remap_failed && !was.remap_failed)
        happened(ds, d, (struct fault){.kind = FAULT_REMAP_FAILED});
    else if (h.remap_pending && !was.remap_pending)
        happened(ds, d, (struct fault){.kind = FAULT_REMAP_PENDING});
    if (!h.throttled) {
        d->throttled_since_ns = 0;
        d->throttle_told = false;
        return;
    }
    d->throttled_since_ns = d->throttled_since_ns ? d->throttled_since_ns : now;
    struct fault slow = {
        .kind = FAULT_THROTTLED, .code = (now - d->throttled_since_ns) / NS_PER_S, .at_ns = now};
    char reason[160];
    bool drains = fault_decide(&slow, NULL, 0, reason) >= FAULT_DRAIN;
    if (!was.throttled || (drains && !d->throttle_told))
        happened(ds, d, slow);
    d->throttle_told = drains;
}

/* A fault that asked for no quarantine is history after an hour. */
static void forgive(struct devices *ds, struct device *d)
{
    bool light = d->action == FAULT_RESTART || d->action == FAULT_DRAIN;
    if (!light || clock_wall_ns() < d->fault_wall_ns + FORGIVE_NS)
        return;
    d->action = FAULT_NONE;
    save(ds);
    changed(ds);
}

static void on_timer(uv_timer_t *t)
{
    struct devices *ds = t->data;
    for (unsigned i = 0; i < ds->n; i++) {
        look(ds, i);
        forgive(ds, &ds->list[i]);
    }
}

static void on_wake(uv_async_t *h)
{
    struct devices *ds = h->data;
    pthread_mutex_lock(&ds->lock);
    unsigned n = ds->queued;
    struct fault faults[QUEUE_MAX];
    unsigned of[QUEUE_MAX];
    for (unsigned i = 0; i < n; i++) {
        faults[i] = (struct fault){.kind = FAULT_XID, .code = ds->queue[i].xid};
        of[i] = ds->queue[i].device;
    }
    ds->queued = 0;
    pthread_mutex_unlock(&ds->lock);
    for (unsigned i = 0; i < n; i++)
        happened(ds, &ds->list[of[i]], faults[i]);
}

/* Waits in NVML for the life of the process. */
static void *wait_for_xids(void *ctx)
{
    struct devices *ds = ctx;
    struct err e;
    for (;;) {
        unsigned device;
        uint64_t xid;
        int r = nvml_wait(ds->nvml, WAIT_MS, &device, &xid, &e);
        if (r < 0) {
            log_warn("Xid events are not seen; other signs still are", LERR(&e));
            return NULL;
        }
        if (r == 0 || device >= ds->n)
            continue;
        pthread_mutex_lock(&ds->lock);
        if (ds->queued < QUEUE_MAX) {
            ds->queue[ds->queued].device = device;
            ds->queue[ds->queued++].xid = xid;
        }
        pthread_mutex_unlock(&ds->lock);
        uv_async_send(ds->wake);
    }
}

/* ---- for others ---- */

/* Whether a list such as "GPU-1,GPU-2", "0,3" or "all" names device i. */
static bool names_device(const char *list, unsigned i, const char *uuid)
{
    struct str rest = str_c(list), item;
    while (rest.n) {
        uint64_t index;
        rest = str_cut(rest, ',', &item);
        item = str_trim(item);
        if (str_eq_c(item, "all") || str_eq_c(item, uuid) ||
            (str_to_u64(item, 0, NVML_DEVICES_MAX, &index) == 0 && index == i))
            return true;
    }
    return false;
}

char *devices_fault_of(const struct agent *a, const char *devices, uint64_t since_wall_ns)
{
    const struct device *worst = NULL;
    char time[CLOCK_RFC3339_MAX];
    for (unsigned i = 0; a->devices && devices && i < a->devices->n; i++) {
        const struct device *d = &a->devices->list[i];
        bool over = d->action < FAULT_QUARANTINE_DEVICE && d->fault_wall_ns < since_wall_ns;
        if (d->action > FAULT_NONE && !over && names_device(devices, i, d->d.uuid) &&
            (!worst || d->action > worst->action))
            worst = d;
    }
    if (!worst)
        return NULL;
    CLEANUP(json_decrefp)
    json_t *o = json_pack("{s:s, s:s, s:s, s:s}", "device", worst->d.uuid, "action",
                          fault_action_name(worst->action), "reason", worst->reason, "time",
                          clock_rfc3339(worst->fault_wall_ns, 0, time));
    return o ? json_dumps(o, JSON_COMPACT) : NULL;
}

bool devices_known(const struct agent *a)
{
    return a->devices && a->devices->n;
}

const char *devices_quarantine(const struct agent *a)
{
    for (unsigned i = 0; a->devices && i < a->devices->n; i++)
        if (a->devices->list[i].action == FAULT_QUARANTINE_NODE)
            return a->devices->list[i].reason;
    return NULL;
}

void devices_inventory(struct agent *a, json_t *devices)
{
    for (unsigned i = 0; a->devices && i < a->devices->n; i++) {
        const struct device *d = &a->devices->list[i];
        json_t *o = json_pack("{s:o, s:s, s:s, s:s, s:I, s:b}", "name", json_sprintf("gpu%u", i),
                              "kind", "gpu", "model", d->d.name, "uuid", d->d.uuid, "memoryBytes",
                              (json_int_t)d->d.memory_bytes, "healthy",
                              d->action < FAULT_QUARANTINE_DEVICE);
        if (!o)
            continue;
        if (d->action > FAULT_NONE)
            json_object_set_new(o, "action", json_string(fault_action_name(d->action)));
        if (*d->reason)
            json_object_set_new(o, "reason", json_string(d->reason));
        json_array_append_new(devices, o);
    }
}

void devices_lift(struct agent *a, const char *what)
{
    struct devices *ds = a->devices;
    struct str name;
    if (!ds || !what || strcmp(what, ds->lifted) == 0)
        return;
    (void)str_cut(str_c(what), ' ', &name);
    for (unsigned i = 0; i < ds->n; i++) {
        struct device *d = &ds->list[i];
        if (!str_eq_c(name, "all") && !str_eq_c(name, d->d.uuid))
            continue;
        log_info("a device's quarantine is lifted", LS("uuid", d->d.uuid));
        d->action = FAULT_NONE;
        d->reason[0] = 0;
        d->n_faults = 0;
    }
    free(ds->lifted);
    ds->lifted = xstrdup(what);
    save(ds);
    changed(ds);
}

static void read_boot(char out[64])
{
    struct err e;
    CLEANUP(free_charp) char *text = file_read("/proc/sys/kernel/random/boot_id", 63, &e);
    struct str id = str_trim(str_c(text ? text : ""));
    memcpy(out, id.p, id.n);
    out[id.n] = 0;
}

void devices_start(struct agent *a)
{
    struct nvml *nvml;
    struct err e = {0};
    int r = nvml_open(a->opt.nvml, &nvml, &e);
    if (r) {
        if (*a->opt.nvml)
            log_warn("no device health", LERR(&e));
        else
            log_info("no GPUs", LS("why", e.msg));
        return;
    }
    struct devices *ds = a->devices = xcalloc(1, sizeof *ds);
    ds->a = a;
    ds->nvml = nvml;
    ds->path = xasprintf("%s/devices.json", a->opt.agent_dir);
    read_boot(ds->boot);
    ds->n = nvml_count(nvml);
    for (unsigned i = 0; i < ds->n; i++)
        if (nvml_device(nvml, i, &ds->list[i].d, &e))
            snprintf(ds->list[i].d.uuid, sizeof ds->list[i].d.uuid, "gpu%u", i);
    load(ds);
    pthread_mutex_init(&ds->lock, NULL);
    ds->timer = xcalloc(1, sizeof *ds->timer);
    ds->wake = xcalloc(1, sizeof *ds->wake);
    uv_timer_init(&a->loop, ds->timer);
    uv_async_init(&a->loop, ds->wake, on_wake);
    ds->timer->data = ds->wake->data = ds;
    uint64_t every = a->opt.device_look_ms ? a->opt.device_look_ms : LOOK_MS;
    uv_timer_start(ds->timer, on_timer, 0, every);
    if (pthread_create(&ds->thread, NULL, wait_for_xids, ds))
        log_warn("no thread for Xid events");
    log_info("GPUs are watched", LI("devices", ds->n));
}
