#include "lib/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int err_set(struct err *e, int code, const char *fmt, ...)
{
    if (e) {
        va_list ap;
        e->code = code;
        va_start(ap, fmt);
        vsnprintf(e->msg, sizeof e->msg, fmt, ap);
        va_end(ap);
    }
    return -code;
}

int err_wrap(struct err *e, const char *fmt, ...)
{
    if (!e)
        return -EIO;
    char old[sizeof e->msg];
    memcpy(old, e->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof e->msg)
        snprintf(e->msg + n, sizeof e->msg - (size_t)n, ": %s", old);
    if (e->code == 0)
        e->code = EIO;
    return -e->code;
}

_Noreturn void err_assert_failed(const char *expr, const char *file, int line)
{
    fprintf(stderr, "assertion failed: %s (%s:%d)\n", expr, file, line);
    abort();
}

static void *check(void *p, size_t n)
{
    if (!p && n) {
        fprintf(stderr, "out of memory: %zu bytes\n", n);
        abort();
    }
    return p;
}

void *xmalloc(size_t n)
{
    return check(malloc(n ? n : 1), n);
}

void *xcalloc(size_t n, size_t size)
{
    return check(calloc(n ? n : 1, size ? size : 1), n);
}

void *xrealloc(void *p, size_t n)
{
    return check(realloc(p, n ? n : 1), n);
}

char *xstrdup(const char *s)
{
    return check(strdup(s), 1);
}

char *xasprintf(const char *fmt, ...)
{
    char *s = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&s, fmt, ap);
    va_end(ap);
    return check(n < 0 ? NULL : s, 1);
}

void free_charp(char **p)
{
    free(*p);
}

void close_fdp(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}
