#include "lib/base/arena.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct arena_chunk {
    struct arena_chunk *next;
    size_t n, cap;
    _Alignas(16) char data[];
};

void arena_init(struct arena *a, size_t max_bytes)
{
    *a = (struct arena){.max = max_bytes};
}

void arena_fini(struct arena *a)
{
    for (struct arena_chunk *c = a->head, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    *a = (struct arena){.max = a->max};
}

void *arena_alloc(struct arena *a, size_t n)
{
    if (n > a->max || a->used > a->max - n)
        return NULL;
    n = (n + 15) & ~(size_t)15;
    struct arena_chunk *c = a->head;
    if (!c || c->cap - c->n < n) {
        size_t cap = n > 8192 ? n : 8192;
        c = malloc(sizeof *c + cap);
        if (!c)
            return NULL;
        *c = (struct arena_chunk){.next = a->head, .cap = cap};
        a->head = c;
    }
    void *p = c->data + c->n;
    c->n += n;
    a->used += n;
    return p;
}

void *arena_calloc(struct arena *a, size_t n)
{
    void *p = arena_alloc(a, n);
    if (p)
        memset(p, 0, n);
    return p;
}

char *arena_dup(struct arena *a, struct str s)
{
    char *p = arena_alloc(a, s.n + 1);
    if (p) {
        if (s.n)
            memcpy(p, s.p, s.n);
        p[s.n] = 0;
    }
    return p;
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *p = n < 0 ? NULL : arena_alloc(a, (size_t)n + 1);
    if (p) {
        va_start(ap, fmt);
        vsnprintf(p, (size_t)n + 1, fmt, ap);
        va_end(ap);
    }
    return p;
}
