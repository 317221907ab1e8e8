#include "lib/base/buf.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void buf_init(struct buf *b, size_t max)
{
    *b = (struct buf){.max = max};
}

void buf_fini(struct buf *b)
{
    free(b->data);
    *b = (struct buf){.max = b->max};
}

void buf_reset(struct buf *b)
{
    b->n = 0;
    if (b->data)
        b->data[0] = 0;
}

int buf_reserve(struct buf *b, size_t extra)
{
    if (extra > b->max || b->n > b->max - extra)
        return -EMSGSIZE;
    size_t need = b->n + extra + 1;
    if (need <= b->cap)
        return 0;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need)
        cap *= 2;
    if (cap > b->max + 1)
        cap = b->max + 1;
    char *p = realloc(b->data, cap);
    if (!p)
        return -ENOMEM;
    b->data = p;
    b->cap = cap;
    return 0;
}

int buf_append(struct buf *b, const void *p, size_t n)
{
    int rc = buf_reserve(b, n);
    if (rc)
        return rc;
    if (n)
        memcpy(b->data + b->n, p, n);
    b->n += n;
    b->data[b->n] = 0;
    return 0;
}

int buf_str(struct buf *b, struct str s)
{
    return buf_append(b, s.p, s.n);
}

int buf_cstr(struct buf *b, const char *z)
{
    return buf_append(b, z, strlen(z));
}

int buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return -EINVAL;
    int rc = buf_reserve(b, (size_t)n);
    if (rc)
        return rc;
    va_start(ap, fmt);
    vsnprintf(b->data + b->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->n += (size_t)n;
    return 0;
}

/* Length of the valid UTF-8 sequence at p (1..4), or 0 when there is none. */
static size_t utf8_len(const unsigned char *p, size_t n)
{
    if (p[0] < 0x80)
        return 1;
    size_t len = p[0] >= 0xf0 && p[0] <= 0xf4  ? 4
                 : p[0] >= 0xe0 && p[0] < 0xf0 ? 3
                 : p[0] >= 0xc2 && p[0] < 0xe0 ? 2
                                               : 0;
    if (len == 0 || len > n)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return len;
}

int buf_json_str(struct buf *b, struct str s)
{
    size_t start = b->n;
    int rc = buf_append(b, "\"", 1);
    for (size_t i = 0; i < s.n && !rc;) {
        unsigned char c = (unsigned char)s.p[i];
        size_t len = utf8_len((const unsigned char *)s.p + i, s.n - i);
        if (len == 0)
            rc = buf_cstr(b, "\xef\xbf\xbd");
        else if (c == '"' || c == '\\')
            rc = buf_printf(b, "\\%c", c);
        else if (c == '\n')
            rc = buf_cstr(b, "\\n");
        else if (c < 0x20 || c == 0x7f)
            rc = buf_printf(b, "\\u%04x", c);
        else {
            size_t run = len;
            while (len == 1 && i + run < s.n) {
                unsigned char d = (unsigned char)s.p[i + run];
                if (d < 0x20 || d >= 0x7f || d == '"' || d == '\\')
                    break;
                run++;
            }
            rc = buf_append(b, s.p + i, run);
            len = run;
        }
        i += len ? len : 1;
    }
    if (!rc)
        rc = buf_append(b, "\"", 1);
    if (rc) {
        b->n = start;
        if (b->data)
            b->data[start] = 0;
    }
    return rc;
}

void buf_consume(struct buf *b, size_t n)
{
    ASSERT(n <= b->n);
    if (n == 0)
        return;
    memmove(b->data, b->data + n, b->n - n);
    b->n -= n;
    b->data[b->n] = 0;
}

struct str buf_view(const struct buf *b)
{
    return (struct str){b->data ? b->data : "", b->n};
}

char *buf_take(struct buf *b)
{
    char *p = b->data ? b->data : xstrdup("");
    b->data = NULL;
    b->n = b->cap = 0;
    return p;
}
