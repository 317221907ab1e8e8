#include "lib/base/host.h"

#include "lib/base/str.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static bool read_numbers(const char *path, uint64_t *a, uint64_t *b)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    char x[32] = "", y[32] = "";
    int n = fscanf(f, "%31s %31s", x, y);
    fclose(f);
    if (n < 1 || x[0] < '0' || x[0] > '9') /* "max", "-1" */
        return false;
    *a = strtoull(x, NULL, 10);
    if (b)
        *b = strtoull(y, NULL, 10);
    return true;
}

/* Calls fn with the folder of each cgroup of this process for a controller, from its own up to the
 * root. In a container /proc/self/cgroup may name a path that is not visible: the root of the mount
 * is then the one that counts. */
static void each_cgroup(const char *controller, const char *mount,
                        void (*fn)(const char *dir, void *ctx), void *ctx)
{
    char line[1024], path[1024] = "";
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *names = strchr(line, ':');
        char *where = names ? strchr(names + 1, ':') : NULL;
        if (!where)
            continue;
        *where++ = 0;
        if (strcmp(names + 1, controller) == 0)
            snprintf(path, sizeof path, "%s", where);
    }
    if (f)
        fclose(f);
    for (;;) {
        char dir[2048];
        snprintf(dir, sizeof dir, "%s%s", mount, strcmp(path, "/") ? path : "");
        fn(dir, ctx);
        char *slash = strrchr(path, '/');
        if (!slash)
            return;
        *slash = 0;
    }
}

static void cpu_v1(const char *dir, void *ctx)
{
    char path[2200];
    uint64_t quota, period, *milli = ctx;
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir);
    if (!read_numbers(path, &quota, NULL) || !quota)
        return;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
    if (read_numbers(path, &period, NULL) && period && quota * 1000 / period < *milli)
        *milli = quota * 1000 / period;
}

static void cpu_v2(const char *dir, void *ctx)
{
    char path[2200];
    uint64_t quota, period = 0, *milli = ctx;
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    if (read_numbers(path, &quota, &period) && period && quota * 1000 / period < *milli)
        *milli = quota * 1000 / period;
}

uint64_t host_milli_cpus(void)
{
    cpu_set_t set;
    long n =
        sched_getaffinity(0, sizeof set, &set) ? sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
    uint64_t milli = n > 0 ? (uint64_t)n * 1000 : 1000;
    each_cgroup("cpu", "/sys/fs/cgroup/cpu", cpu_v1, &milli);
    each_cgroup("cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct", cpu_v1, &milli);
    each_cgroup("", "/sys/fs/cgroup", cpu_v2, &milli);
    return milli ? milli : 1;
}

struct memory {
    uint64_t limit, left;
};

static void memory_of(const char *dir, const char *limit_file, const char *usage_file,
                      struct memory *m)
{
    char path[2200];
    uint64_t limit, used;
    snprintf(path, sizeof path, "%s/%s", dir, limit_file);
    if (!read_numbers(path, &limit, NULL))
        return;
    if (limit < m->limit)
        m->limit = limit;
    snprintf(path, sizeof path, "%s/%s", dir, usage_file);
    if (read_numbers(path, &used, NULL)) {
        uint64_t left = limit > used ? limit - used : 0;
        if (left < m->left)
            m->left = left;
    }
}

static void memory_v1(const char *dir, void *ctx)
{
    memory_of(dir, "memory.limit_in_bytes", "memory.usage_in_bytes", ctx);
}

static void memory_v2(const char *dir, void *ctx)
{
    memory_of(dir, "memory.max", "memory.current", ctx);
}

static uint64_t meminfo(const char *key)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), ": %llu", &kib) == 1)
            break;
    }
    if (f)
        fclose(f);
    return (uint64_t)kib * 1024;
}

static struct memory memory_read(void)
{
    struct memory m = {meminfo("MemTotal"), meminfo("MemAvailable")};
    each_cgroup("memory", "/sys/fs/cgroup/memory", memory_v1, &m);
    each_cgroup("", "/sys/fs/cgroup", memory_v2, &m);
    return m;
}

uint64_t host_memory_bytes(void)
{
    return memory_read().limit;
}

uint64_t host_memory_available_bytes(void)
{
    return memory_read().left;
}
