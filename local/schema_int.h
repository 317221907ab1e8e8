/* schema_int.h: the compiled schema, shared by schema*.c. Not for others. */
#pragma once
#include "local/cel.h"
#include "local/regex.h"
#include "local/schema.h"

#include <uthash.h>

#define SCHEMA_MAX_DEPTH 32

enum schema_type { T_ANY, T_OBJECT, T_ARRAY, T_STRING, T_INTEGER, T_NUMBER, T_BOOLEAN };

struct schema_rule {
    struct cel *rule, *message_expression;
    char *text, *message, *field_path;
    const char *reason;
    bool optional_old_self;
};

struct schema_prop {
    char *name;
    struct schema *schema;
    UT_hash_handle hh;
};

struct schema {
    enum schema_type type;
    bool nullable, preserve_unknown, int_or_string, embedded, root, unique_items, map_atomic;
    struct schema_prop *props;
    struct schema *additional, *items, *negated;
    struct schema **all_of, **any_of, **one_of;
    size_t n_all, n_any, n_one;
    const char **required;
    size_t n_required;
    enum list_kind list_kind;
    const char **map_keys;
    size_t n_map_keys;
    json_t *dflt, *enumeration;
    bool has_min, has_max, min_exclusive, max_exclusive;
    double min, max, multiple_of;
    int64_t min_length, max_length, min_items, max_items, min_props, max_props; /* -1: none */
    struct regex *pattern;
    char *pattern_text, *format;
    struct schema_rule *rules;
    size_t n_rules;
    json_t *source; /* owns the strings that required and map_keys point to */
};

/* Path of the value being looked at, built on the stack from the inside out. */
struct path {
    const struct path *up;
    const char *key; /* NULL: array index */
    size_t index;
};
char *path_text(const struct path *p);       /* heap; "" at the root */
bool schema_is_meta_field(const char *name); /* apiVersion, kind, metadata */
