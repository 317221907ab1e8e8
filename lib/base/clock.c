#include "lib/base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static uint64_t get(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

uint64_t clock_mono_ns(void)
{
    return get(CLOCK_MONOTONIC);
}

uint64_t clock_wall_ns(void)
{
    return get(CLOCK_REALTIME);
}

uint64_t clock_thread_cpu_ns(void)
{
    return get(CLOCK_THREAD_CPUTIME_ID);
}

char *clock_rfc3339(uint64_t wall_ns, int fraction_digits, char out[CLOCK_RFC3339_MAX])
{
    time_t s = (time_t)(wall_ns / NS_PER_S);
    struct tm tm;
    gmtime_r(&s, &tm);
    size_t n = strftime(out, CLOCK_RFC3339_MAX, "%Y-%m-%dT%H:%M:%S", &tm);
    unsigned long frac = (unsigned long)(wall_ns % NS_PER_S);
    if (fraction_digits == 3)
        snprintf(out + n, CLOCK_RFC3339_MAX - n, ".%03luZ", frac / 1000000ul);
    else if (fraction_digits == 6)
        snprintf(out + n, CLOCK_RFC3339_MAX - n, ".%06luZ", frac / 1000ul);
    else
        snprintf(out + n, CLOCK_RFC3339_MAX - n, "Z");
    return out;
}

int clock_parse_rfc3339(const char *s, uint64_t *wall_ns)
{
    struct tm tm = {0};
    const char *p = strptime(s, "%Y-%m-%dT%H:%M:%S", &tm);
    if (!p)
        return -EINVAL;
    uint64_t frac = 0, scale = NS_PER_S / 10;
    if (*p == '.')
        for (p++; *p >= '0' && *p <= '9'; p++, scale /= 10)
            frac += (uint64_t)(*p - '0') * scale;
    long off = 0;
    if (*p == '+' || *p == '-') {
        int h, m;
        if (sscanf(p + 1, "%2d:%2d", &h, &m) != 2 || strlen(p) != 6)
            return -EINVAL;
        off = (*p == '+' ? 1 : -1) * (h * 3600L + m * 60L);
    } else if (strcmp(p, "Z") != 0) {
        return -EINVAL;
    }
    time_t t = timegm(&tm) - off;
    if (t < 0)
        return -EINVAL;
    *wall_ns = (uint64_t)t * NS_PER_S + frac;
    return 0;
}
