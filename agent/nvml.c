#include "agent/nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

typedef struct nvmlDevice_st *device_handle;
typedef struct nvmlEventSet_st *set_handle;

enum { NV_SUCCESS = 0, NV_TIMEOUT = 10, NV_GPU_IS_LOST = 15 };
enum { EVENT_XID = 8 };                          /* nvmlEventTypeXidCriticalError */
enum { UNCORRECTED = 1, SINCE_DRIVER_LOAD = 0 }; /* NVML_MEMORY_ERROR_TYPE_…, NVML_VOLATILE_ECC */
/* nvmlClocksEventReasonHwSlowdown, …HwThermalSlowdown, …HwPowerBrakeSlowdown */
#define SLOWED (0x8ull | 0x40ull | 0x80ull)

struct memory_info {
    unsigned long long total, free, used;
};
struct event_data {
    device_handle device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

struct nvml {
    void *lib;
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*error_string)(int code);
    int (*get_count)(unsigned *n);
    int (*by_index)(unsigned i, device_handle *out);
    int (*get_uuid)(device_handle d, char *out, unsigned n);
    int (*get_name)(device_handle d, char *out, unsigned n);
    int (*get_memory)(device_handle d, struct memory_info *out);
    int (*get_ecc)(device_handle d, int error, int counter, unsigned long long *out);
    int (*get_remapped)(device_handle d, unsigned *corrected, unsigned *uncorrected,
                        unsigned *pending, unsigned *failed);
    int (*get_reasons)(device_handle d, unsigned long long *out);
    int (*set_create)(set_handle *out);
    int (*set_free)(set_handle s);
    int (*register_events)(device_handle d, unsigned long long types, set_handle s);
    int (*set_wait)(set_handle s, struct event_data *out, unsigned timeout_ms);
    device_handle devices[NVML_DEVICES_MAX];
    unsigned n;
    set_handle set;
};

/* dlsym gives an object pointer; the copy makes a function pointer of it. */
static bool symbol(struct nvml *n, const char *name, void *out)
{
    void *p = dlsym(n->lib, name);
    memcpy(out, &p, sizeof p);
    return p != NULL;
}

static bool symbols(struct nvml *n)
{
    bool ok = symbol(n, "nvmlInit_v2", &n->init) && symbol(n, "nvmlShutdown", &n->shutdown) &&
              symbol(n, "nvmlErrorString", &n->error_string) &&
              symbol(n, "nvmlDeviceGetCount_v2", &n->get_count) &&
              symbol(n, "nvmlDeviceGetHandleByIndex_v2", &n->by_index) &&
              symbol(n, "nvmlDeviceGetUUID", &n->get_uuid) &&
              symbol(n, "nvmlDeviceGetName", &n->get_name) &&
              symbol(n, "nvmlDeviceGetMemoryInfo", &n->get_memory) &&
              symbol(n, "nvmlDeviceGetTotalEccErrors", &n->get_ecc) &&
              symbol(n, "nvmlEventSetCreate", &n->set_create) &&
              symbol(n, "nvmlEventSetFree", &n->set_free) &&
              symbol(n, "nvmlDeviceRegisterEvents", &n->register_events) &&
              symbol(n, "nvmlEventSetWait_v2", &n->set_wait);
    /* newer, or renamed: without them these signs are not seen */
    (void)symbol(n, "nvmlDeviceGetRemappedRows", &n->get_remapped);
    if (!symbol(n, "nvmlDeviceGetCurrentClocksEventReasons", &n->get_reasons))
        (void)symbol(n, "nvmlDeviceGetCurrentClocksThrottleReasons", &n->get_reasons);
    return ok;
}

static int find_devices(struct nvml *n, struct err *e)
{
    int r = n->get_count(&n->n);
    if (r != NV_SUCCESS)
        return err_set(e, EIO, "NVML does not list devices: %s", n->error_string(r));
    n->n = n->n < NVML_DEVICES_MAX ? n->n : NVML_DEVICES_MAX;
    for (unsigned i = 0; i < n->n; i++)
        if (n->by_index(i, &n->devices[i]) != NV_SUCCESS)
            n->devices[i] = NULL;
    return 0;
}

int nvml_open(const char *path, struct nvml **out, struct err *e)
{
    struct nvml *n = xcalloc(1, sizeof *n);
    n->lib = dlopen(path && *path ? path : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!n->lib) {
        free(n);
        return err_set(e, ENOENT, "no NVML: %s", dlerror());
    }
    if (!symbols(n)) {
        nvml_close(n);
        return err_set(e, ENOTSUP, "this NVML is too old: it lacks functions");
    }
    int r = n->init();
    if (r != NV_SUCCESS) {
        err_set(e, ENODEV, "NVML does not start: %s", n->error_string(r));
        n->shutdown = NULL;
        nvml_close(n);
        return -ENODEV;
    }
    if ((r = find_devices(n, e))) {
        nvml_close(n);
        return r;
    }
    *out = n;
    return 0;
}

void nvml_close(struct nvml *n)
{
    if (n->set)
        n->set_free(n->set);
    if (n->shutdown)
        n->shutdown();
    dlclose(n->lib);
    free(n);
}

unsigned nvml_count(const struct nvml *n)
{
    return n->n;
}

int nvml_device(struct nvml *n, unsigned i, struct nvml_device *out, struct err *e)
{
    struct nvml_device d = {0};
    struct memory_info m = {0};
    int r = n->devices[i] ? n->get_uuid(n->devices[i], d.uuid, sizeof d.uuid - 1) : NV_GPU_IS_LOST;
    r = r ? r : n->get_name(n->devices[i], d.name, sizeof d.name - 1);
    if (r != NV_SUCCESS)
        return err_set(e, EIO, "GPU %u: %s", i, n->error_string(r));
    if (n->get_memory(n->devices[i], &m) == NV_SUCCESS)
        d.memory_bytes = m.total;
    *out = d;
    return 0;
}

void nvml_health(struct nvml *n, unsigned i, struct nvml_health *out)
{
    unsigned long long ecc = 0, reasons = 0;
    unsigned corrected, uncorrected, pending = 0, failed = 0;
    char uuid[96];
    device_handle d = n->devices[i];
    *out = (struct nvml_health){0};
    if (!d || n->get_uuid(d, uuid, sizeof uuid) == NV_GPU_IS_LOST) {
        out->lost = true;
        return;
    }
    if (n->get_ecc(d, UNCORRECTED, SINCE_DRIVER_LOAD, &ecc) == NV_SUCCESS)
        out->ecc_uncorrected = ecc;
    if (n->get_remapped &&
        n->get_remapped(d, &corrected, &uncorrected, &pending, &failed) == NV_SUCCESS) {
        out->remap_pending = pending != 0;
        out->remap_failed = failed != 0;
    }
    if (n->get_reasons && n->get_reasons(d, &reasons) == NV_SUCCESS)
        out->throttled = (reasons & SLOWED) != 0;
}

static int listen(struct nvml *n, struct err *e)
{
    unsigned heard = 0;
    int r = n->set_create(&n->set);
    if (r != NV_SUCCESS) {
        n->set = NULL;
        return err_set(e, ENOTSUP, "NVML has no events here: %s", n->error_string(r));
    }
    for (unsigned i = 0; i < n->n; i++)
        heard +=
            n->devices[i] && n->register_events(n->devices[i], EVENT_XID, n->set) == NV_SUCCESS;
    return heard ? 0 : err_set(e, ENOTSUP, "no GPU of this node reports Xid events");
}

int nvml_wait(struct nvml *n, unsigned timeout_ms, unsigned *device, uint64_t *xid, struct err *e)
{
    struct event_data ev = {0};
    int r = n->set ? 0 : listen(n, e);
    if (r)
        return r;
    r = n->set_wait(n->set, &ev, timeout_ms);
    if (r == NV_TIMEOUT)
        return 0;
    if (r != NV_SUCCESS && r != NV_GPU_IS_LOST)
        return err_set(e, EIO, "NVML's events failed: %s", n->error_string(r));
    if (r == NV_GPU_IS_LOST || ev.type != EVENT_XID)
        return 0; /* the next look at the devices sees it */
    for (unsigned i = 0; i < n->n; i++) {
        if (n->devices[i] != ev.device)
            continue;
        *device = i;
        *xid = ev.data;
        return 1;
    }
    return 0;
}
