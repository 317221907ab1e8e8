#include "lib/base/log.h"

#include "lib/base/buf.h"
#include "lib/base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static struct {
    const char *prog;
    bool text;
    enum log_level max;
    pthread_mutex_t lock;
} L = {.prog = "baton", .max = LOG_INFO, .lock = PTHREAD_MUTEX_INITIALIZER};

static const char *const level_name[] = {"error", "warn", "info", "debug"};

void log_init(const char *prog, const char *format, enum log_level max)
{
    L.prog = prog;
    L.text = format && strcmp(format, "text") == 0;
    L.max = max;
}

int log_level_parse(const char *name, enum log_level *out)
{
    for (int i = 0; i < 4; i++)
        if (strcmp(name, level_name[i]) == 0) {
            *out = (enum log_level)i;
            return 0;
        }
    return -EINVAL;
}

/* Burst of 20 in a 4 s window, i.e. 5 a second when sustained. Call with the lock held. */
static bool over_limit(struct log_site *site, uint64_t now)
{
    if (now - site->window_ns > 4 * NS_PER_S) {
        site->window_ns = now;
        site->count = 0;
    }
    if (site->count >= 20) {
        site->suppressed++;
        return true;
    }
    site->count++;
    return false;
}

static int put_field(struct buf *b, const struct log_field *f, bool text)
{
    int rc = text ? buf_printf(b, " %s=", f->key) : buf_printf(b, ",\"%s\":", f->key);
    if (rc)
        return rc;
    switch (f->kind) {
    case LOG_STR: return buf_json_str(b, (struct str){f->s.p, f->s.n > 4096 ? 4096 : f->s.n});
    case LOG_INT: return buf_printf(b, "%lld", (long long)f->i);
    case LOG_FLOAT: return buf_printf(b, "%.9g", f->f);
    }
    return 0;
}

void log_write(enum log_level level, struct log_site *site, const char *msg,
               const struct log_field *fields)
{
    if (level > L.max)
        return;
    char ts[CLOCK_RFC3339_MAX];
    struct buf b;
    buf_init(&b, 65536);
    pthread_mutex_lock(&L.lock);
    if (!over_limit(site, clock_mono_ns())) {
        clock_rfc3339(clock_wall_ns(), 3, ts);
        int rc =
            L.text
                ? buf_printf(&b, "%s %-5s %s: %s", ts, level_name[level], L.prog, msg)
                : buf_printf(&b, "{\"ts\":\"%s\",\"level\":\"%s\",\"prog\":\"%s\",\"msg\":\"%s\"",
                             ts, level_name[level], L.prog, msg);
        for (; !rc && fields->key; fields++)
            rc = put_field(&b, fields, L.text);
        if (!rc && site->suppressed)
            rc = put_field(&b, &LI("suppressed", site->suppressed), L.text);
        site->suppressed = 0;
        if (!rc && buf_cstr(&b, L.text ? "\n" : "}\n") == 0)
            while (write(STDERR_FILENO, b.data, b.n) < 0 && errno == EINTR)
                ;
    }
    pthread_mutex_unlock(&L.lock);
    buf_fini(&b);
}
