/* things.h: generated objects with every kind of field that a view has, for the tests of lib/json.
 */
#pragma once
#include "lib/base/rng.h"
#include "lib/json/view.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#define SEED 20261130u

struct leaf {
    uint64_t has;
    const char *text;
    int64_t number;
    uint64_t at_ns;
};
struct thing {
    uint64_t has;
    const char *text, *raw, *secret;
    int64_t number, quantity;
    double real;
    bool yes;
    uint64_t at_ns;
    struct view_map map;
    struct leaf leaf;
    struct view_list leaves, texts;
};

#define F(T, p, k, m, s)                                                                           \
    {                                                                                              \
        .path = p, .kind = k, .offset = offsetof(struct T, m), .sub = s                            \
    }
static const struct view leaf_view = {
    .name = "leaf",
    .size = sizeof(struct leaf),
    .fields = (const struct view_field[]){F(leaf, "text", VIEW_STR, text, NULL),
                                          F(leaf, "number", VIEW_INT, number, NULL),
                                          F(leaf, "at", VIEW_TIME, at_ns, NULL),
                                          {0}}};
static const struct view thing_view = {
    .name = "thing",
    .size = sizeof(struct thing),
    .fields = (const struct view_field[]){F(thing, "text", VIEW_STR, text, NULL),
                                          F(thing, "a.raw", VIEW_RAW, raw, NULL),
                                          F(thing, "a.secret", VIEW_B64, secret, NULL),
                                          F(thing, "a.b.number", VIEW_INT, number, NULL),
                                          F(thing, "quantity", VIEW_QTY, quantity, NULL),
                                          F(thing, "real", VIEW_NUM, real, NULL),
                                          F(thing, "yes", VIEW_BOOL, yes, NULL),
                                          F(thing, "at", VIEW_TIME, at_ns, NULL),
                                          F(thing, "map", VIEW_MAP, map, NULL),
                                          F(thing, "leaf", VIEW_OBJ, leaf, &leaf_view),
                                          F(thing, "leaves", VIEW_LIST, leaves, &leaf_view),
                                          F(thing, "texts", VIEW_STRS, texts, NULL),
                                          {0}}};

static json_t *text(struct rng *r)
{
    char out[300];
    switch (rng_below(r, 4)) {
    case 0: return json_string("True");
    case 1: snprintf(out, sizeof out, "word %u", (unsigned)rng_below(r, 20)); break;
    case 2: snprintf(out, sizeof out, "%016llx", (unsigned long long)rng_next(r)); break;
    default: snprintf(out, sizeof out, "%*s", (int)rng_below(r, 299), "é"); break;
    }
    return json_string(out);
}

static json_t *when(struct rng *r)
{
    char out[64];
    snprintf(out, sizeof out, "20%02u-03-0%uT10:00:0%u%sZ", (unsigned)rng_below(r, 40),
             1 + (unsigned)rng_below(r, 9), (unsigned)rng_below(r, 10),
             rng_below(r, 2) ? ".250001" : "");
    return json_string(out);
}

static int64_t whole(struct rng *r)
{
    static const int64_t edges[] = {0, -1, 63, 64, -64, -65, INT64_MAX, INT64_MIN};
    return rng_below(r, 2) ? edges[rng_below(r, 8)] : (int64_t)rng_next(r);
}

static json_t *leaf(struct rng *r)
{
    json_t *o = json_object();
    if (rng_below(r, 4))
        json_object_set_new(o, "text", text(r));
    if (rng_below(r, 4))
        json_object_set_new(o, "number", json_integer(whole(r)));
    if (rng_below(r, 4))
        json_object_set_new(o, "at", when(r));
    return o;
}

static void set(struct rng *r, json_t *o, const char *path, json_t *value)
{
    if (rng_below(r, 8) == 0)
        json_decref(value);
    else
        assert_int_equal(json_put(o, path, value), 0);
}

static json_t *thing(struct rng *r)
{
    json_t *o = json_object(), *leaves = json_array(), *texts = json_array(), *map = json_object();
    for (uint64_t i = rng_below(r, 5); i; i--)
        json_array_append_new(leaves, leaf(r));
    for (uint64_t i = rng_below(r, 5); i; i--)
        json_array_append_new(texts, text(r));
    for (uint64_t i = rng_below(r, 9); i; i--) {
        char key[32];
        snprintf(key, sizeof key, "example.com/key-%u", (unsigned)rng_below(r, 12));
        json_object_set_new(map, key, text(r));
    }
    set(r, o, "text", text(r));
    set(r, o, "a.raw", json_pack("{s:[i,{s:o}]}", "x", 1, "y", text(r)));
    set(r, o, "a.secret", json_string(rng_below(r, 2) ? "aGVsbG8=" : ""));
    set(r, o, "a.b.number", json_integer(whole(r)));
    set(r, o, "quantity", json_string(rng_below(r, 2) ? "250m" : "2Gi"));
    set(r, o, "real", json_real((double)rng_below(r, 1000000) / 7 - 1000));
    set(r, o, "yes", json_boolean(rng_below(r, 2)));
    set(r, o, "at", when(r));
    set(r, o, "map", map);
    set(r, o, "leaf", leaf(r));
    set(r, o, "leaves", leaves);
    set(r, o, "texts", texts);
    return o;
}
