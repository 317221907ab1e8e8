/* strings.h: the generator of tools/goldens-llm.py in C (the same strings, byte for byte), and what
 * the tests here share. */
#pragma once
#include "lib/base/rng.h"
#include "lib/json/json.h"

#include <stdio.h>
#include <stdlib.h>

#define GOLDEN      "tests/golden/llm/"
#define GOLDEN_SEED 20261130u

struct tables {
    json_t *all, *pieces, *words, *spaces, *digits, *ranges;
};

static inline void tables_open(struct tables *t)
{
    struct err e = {0};
    t->all = json_parse_file(GOLDEN "strings.json", 1 << 20, &e);
    if (!t->all)
        fprintf(stderr, "%s (run from the repository's root)\n", e.msg);
    t->pieces = json_at(t->all, "pieces");
    t->words = json_at(t->all, "words");
    t->spaces = json_at(t->all, "spaces");
    t->digits = json_at(t->all, "digits");
    t->ranges = json_at(t->all, "ranges");
}

static inline void put(struct buf *out, const char *p, size_t n)
{
    ASSERT(buf_append(out, p, n) == 0);
}

static inline void put_cstr(struct buf *out, const char *z)
{
    put(out, z, strlen(z));
}

static inline void put_one_of(struct buf *out, const json_t *list, struct rng *r)
{
    const json_t *s = json_array_get(list, (size_t)rng_below(r, json_array_size(list)));
    put(out, json_string_value(s), json_string_length(s));
}

static inline void put_code_point(struct buf *out, uint32_t c)
{
    char u[4];
    size_t n = 0;
    if (c >= 0xd800 && c <= 0xdfff)
        c = 0xfffd;
    if (c < 0x80) {
        u[n++] = (char)c;
    } else {
        size_t more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
        u[n++] = (char)((more == 1 ? 0xc0u : more == 2 ? 0xe0u : 0xf0u) | c >> 6 * more);
        while (more--)
            u[n++] = (char)(0x80 | (c >> 6 * more & 0x3f));
    }
    put(out, u, n);
}

static inline void put_range(struct buf *out, const struct tables *t, struct rng *r)
{
    const json_t *range =
        json_array_get(t->ranges, (size_t)rng_below(r, json_array_size(t->ranges)));
    uint64_t first = (uint64_t)json_integer_value(json_array_get(range, 0));
    uint64_t last = (uint64_t)json_integer_value(json_array_get(range, 1));
    put_code_point(out, (uint32_t)(first + rng_below(r, last - first + 1)));
}

static inline void put_piece(struct buf *out, const struct tables *t, struct rng *r)
{
    uint64_t kind = rng_below(r, 12);
    static const uint32_t times[12] = {0, 0, 0, 0, 0, 12, 40, 70, 12, 10, 60, 40};
    if (kind < 5) {
        put_one_of(out, t->pieces, r);
        return;
    }
    uint64_t n = 1 + rng_below(r, times[kind]);
    for (uint64_t i = 0; i < n; i++) {
        char letter = 0;
        if (kind == 5 && i)
            put(out, " ", 1);
        if (kind == 5)
            put_one_of(out, t->words, r);
        else if (kind == 6)
            put_one_of(out, t->spaces, r);
        else if (kind == 8)
            put_one_of(out, t->digits, r);
        else if (kind == 9)
            put_range(out, t, r);
        else
            letter = kind == 7 ? ' ' : kind == 11 ? '\n' : (char)('a' + rng_below(r, 26));
        if (letter)
            put(out, &letter, 1);
    }
}

static inline void damage(struct buf *b, struct rng *r)
{
    uint64_t n = 1 + rng_below(r, 6);
    for (uint64_t i = 0; i < n; i++) {
        size_t at = (size_t)rng_below(r, b->n + 1);
        uint64_t op = rng_below(r, 3);
        if (op == 0) {
            put(b, "x", 1);
            memmove(b->data + at + 1, b->data + at, b->n - 1 - at);
            b->data[at] = (char)(128 + rng_below(r, 128));
        } else if (at < b->n && op == 1) {
            memmove(b->data + at, b->data + at + 1, b->n - at);
            b->n--;
        } else if (at < b->n) {
            b->data[at] = (char)rng_below(r, 256);
        }
    }
}

/* Replaces what out holds. */
static inline void string_at(const struct tables *t, uint64_t i, struct buf *out)
{
    struct rng r = {GOLDEN_SEED * 1000003ull + i};
    buf_reset(out);
    put(out, "", 0);
    uint64_t n = 1 + rng_below(&r, 8);
    for (uint64_t k = 0; k < n; k++)
        put_piece(out, t, &r);
    if (rng_below(&r, 100) < 15)
        damage(out, &r);
}

static inline uint32_t fnv(const void *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const unsigned char *)p)[i]) * 0x100000001b3u;
    return (uint32_t)(h ^ h >> 32);
}

static inline char *model_path(const char *name)
{
    const char *cache = getenv("BATON_CACHE"), *home = getenv("HOME");
    return cache ? xasprintf("%s/models/%s", cache, name)
                 : xasprintf("%s/.cache/baton/models/%s", home ? home : "/root", name);
}
