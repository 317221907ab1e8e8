/* A management library that plays a scenario: cc -shared -fPIC -o libnvml.so nvml_script.c;
 * NVML_SCRIPT names a file, read anew at each call, one event a line, to which a test appends:
 *   devices 2        (first)            xid DEVICE CODE         ecc DEVICE COUNT        remap
 * DEVICE pending|failed throttle DEVICE on|off              lost DEVICE             noevents broken
 * (nvmlInit fails) Xids are delivered once each, in order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct nvmlDevice_st {
    unsigned index;
};
static struct nvmlDevice_st handles[8] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
static unsigned xids_told;

struct state {
    unsigned devices, xids, no_events, broken;
    struct {
        unsigned long long ecc;
        unsigned pending, failed, throttled, lost;
    } d[8];
    unsigned xid_device;
    unsigned long long xid;
};

static struct state play(void)
{
    struct state s = {.devices = 1};
    char line[128], word[16];
    unsigned i = 0;
    unsigned long long n;
    FILE *f = fopen(getenv("NVML_SCRIPT"), "r");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "devices %u", &s.devices) == 1)
            continue;
        s.no_events |= strncmp(line, "noevents", 8) == 0;
        s.broken |= strncmp(line, "broken", 6) == 0;
        if (sscanf(line, "xid %u %llu", &i, &n) == 2 && s.xids++ == xids_told) {
            s.xid_device = i;
            s.xid = n;
        }
        if (sscanf(line, "ecc %u %llu", &i, &n) == 2)
            s.d[i].ecc = n;
        if (sscanf(line, "remap %u %15s", &i, word) == 2)
            *(strcmp(word, "failed") ? &s.d[i].pending : &s.d[i].failed) = 1;
        if (sscanf(line, "throttle %u %15s", &i, word) == 2)
            s.d[i].throttled = strcmp(word, "on") == 0;
        if (sscanf(line, "lost %u", &i) == 1)
            s.d[i].lost = 1;
    }
    if (f)
        fclose(f);
    return s;
}

int nvmlInit_v2(void)
{
    return play().broken ? 9 : 0;
}
int nvmlShutdown(void)
{
    return 0;
}
const char *nvmlErrorString(int code)
{
    return code == 9 ? "Driver Not Loaded" : code == 15 ? "GPU is lost" : "scripted failure";
}
int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = play().devices;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, struct nvmlDevice_st **out)
{
    *out = &handles[i];
    return 0;
}
int nvmlDeviceGetUUID(struct nvmlDevice_st *d, char *out, unsigned n)
{
    snprintf(out, n, "GPU-scripted-%u", d->index);
    return play().d[d->index].lost ? 15 : 0;
}
int nvmlDeviceGetName(struct nvmlDevice_st *d, char *out, unsigned n)
{
    (void)d;
    snprintf(out, n, "Scripted GPU");
    return 0;
}
int nvmlDeviceGetMemoryInfo(struct nvmlDevice_st *d, unsigned long long out[3])
{
    (void)d;
    out[0] = 80ull << 30;
    out[1] = out[2] = 40ull << 30;
    return 0;
}
int nvmlDeviceGetTotalEccErrors(struct nvmlDevice_st *d, int error, int counter,
                                unsigned long long *out)
{
    (void)error, (void)counter;
    *out = play().d[d->index].ecc;
    return 0;
}
int nvmlDeviceGetRemappedRows(struct nvmlDevice_st *d, unsigned *c, unsigned *u, unsigned *pending,
                              unsigned *failed)
{
    struct state s = play();
    *c = *u = 0;
    *pending = s.d[d->index].pending;
    *failed = s.d[d->index].failed;
    return 0;
}
int nvmlDeviceGetCurrentClocksEventReasons(struct nvmlDevice_st *d, unsigned long long *out)
{
    *out = play().d[d->index].throttled ? 0x40 : 0x1;
    return 0;
}
int nvmlEventSetCreate(void **out)
{
    *out = handles;
    return play().no_events ? 3 : 0;
}
int nvmlEventSetFree(void *s)
{
    (void)s;
    return 0;
}
int nvmlDeviceRegisterEvents(struct nvmlDevice_st *d, unsigned long long types, void *s)
{
    (void)d, (void)s;
    return types == 8 ? 0 : 3;
}
struct event {
    struct nvmlDevice_st *device;
    unsigned long long type, data;
    unsigned gi, ci;
};
int nvmlEventSetWait_v2(void *s, struct event *out, unsigned timeout_ms)
{
    (void)s;
    for (unsigned waited = 0; waited <= timeout_ms; waited += 20) {
        struct state now = play();
        if (now.xids > xids_told) {
            xids_told++;
            *out = (struct event){&handles[now.xid_device], 8, now.xid, 0, 0};
            return 0;
        }
        usleep(20000);
    }
    return 10;
}
