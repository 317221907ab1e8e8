#include "local/types.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#define REF_PREFIX "#/components/schemas/"

static json_t *components; /* name → schema */
static json_t *kinds;      /* "group/version/Kind" → name */
static json_t
    *short_names; /* "Container" → full name; "pkg Name" → full name for the section's own */

struct section {
    char pkg[96], group[64], version[16];
};

struct cursor {
    const char *p;
    const struct section *sec;
};

static json_t *parse_type(struct cursor *c);

static json_t *scalar(const char *type, const char *format)
{
    json_t *o = json_pack("{s:s}", "type", type);
    if (format)
        json_object_set_new(o, "format", json_string(format));
    return o;
}

static json_t *letter_type(char letter)
{
    switch (letter) {
    case 's': return scalar("string", NULL);
    case 'i': return scalar("integer", "int64");
    case 'j': return scalar("integer", "int32");
    case 'b': return scalar("boolean", NULL);
    case 'n': return scalar("number", "double");
    case 't': return scalar("string", "date-time");
    case 'y': return scalar("string", "byte");
    case 'q':
        return json_pack("{s:[{s:s},{s:s}],s:s}", "oneOf", "type", "string", "type", "number",
                         "x-baton-format", "quantity");
    case 'x':
        return json_pack("{s:[{s:s},{s:s}],s:s,s:b}", "oneOf", "type", "integer", "type", "string",
                         "format", "int-or-string", "x-kubernetes-int-or-string", 1);
    case 'o':
        return json_pack("{s:s,s:b}", "type", "object", "x-kubernetes-preserve-unknown-fields", 1);
    case 'v': return json_pack("{s:b}", "x-kubernetes-preserve-unknown-fields", 1);
    default: ASSERT(letter == 0); return NULL; /* an unknown letter in the table */
    }
}

static json_t *ref_type(const struct section *sec, const char *name)
{
    CLEANUP(free_charp) char *own = xasprintf("%s %s", sec->pkg, name);
    const char *full = json_string_value(json_object_get(short_names, own));
    if (!full)
        full = json_string_value(json_object_get(short_names, name));
    ASSERT(full);
    CLEANUP(free_charp) char *ref = xasprintf(REF_PREFIX "%s", full);
    return json_pack("{s:s}", "$ref", ref);
}

static size_t word_len(const char *p)
{
    size_t n = 0;
    while (isalnum((unsigned char)p[n]) || p[n] == '_')
        n++;
    return n;
}

static void list_tail(struct cursor *c, json_t *list)
{
    const char *kind = "atomic";
    if (*c->p == '=') {
        kind = "set";
        c->p++;
    } else if (*c->p == '|') {
        json_t *keys = json_array();
        do {
            size_t n = word_len(++c->p);
            json_array_append_new(keys, json_stringn(c->p, n));
            c->p += n;
        } while (*c->p == ',');
        json_object_set_new(list, "x-kubernetes-list-map-keys", keys);
        kind = "map";
    }
    json_object_set_new(list, "x-kubernetes-list-type", json_string(kind));
    ASSERT(*c->p == ']');
    c->p++;
}

static json_t *parse_type(struct cursor *c)
{
    if (*c->p == '[') {
        c->p++;
        json_t *list = json_pack("{s:s,s:o}", "type", "array", "items", parse_type(c));
        list_tail(c, list);
        return list;
    }
    if (*c->p == '{') {
        c->p++;
        json_t *map =
            json_pack("{s:s,s:o}", "type", "object", "additionalProperties", parse_type(c));
        ASSERT(*c->p == '}');
        c->p++;
        if (*c->p == '~') {
            c->p++;
            json_object_set_new(map, "x-kubernetes-map-type", json_string("atomic"));
        }
        return map;
    }
    size_t n = word_len(c->p);
    ASSERT(n > 0);
    if (n == 1)
        return letter_type(*c->p++);
    char name[96];
    snprintf(name, sizeof name, "%.*s", (int)n, c->p);
    c->p += n;
    return ref_type(c->sec, name);
}

/* "name:type!=default" → properties and required. A default beside a $ref needs allOf. */
static void parse_field(struct cursor *c, json_t *schema)
{
    char name[64];
    size_t n = word_len(c->p);
    snprintf(name, sizeof name, "%.*s", (int)n, c->p);
    c->p += n;
    ASSERT(*c->p == ':');
    c->p++;
    json_t *type = parse_type(c);
    if (*c->p == '=') {
        size_t len = strcspn(++c->p, " !");
        json_t *dflt = json_loadb(c->p, len, JSON_DECODE_ANY, NULL);
        ASSERT(dflt);
        c->p += len;
        if (json_object_get(type, "$ref"))
            type = json_pack("{s:[o]}", "allOf", type);
        json_object_set_new(type, "default", dflt);
    }
    if (*c->p == '!') {
        c->p++;
        json_array_append_new(json_object_get(schema, "required"), json_string(name));
    }
    json_object_set_new(json_object_get(schema, "properties"), name, type);
}

static void add_kind(json_t *schema, const struct section *s, const char *name)
{
    json_t *props = json_object_get(schema, "properties");
    json_object_set_new(props, "apiVersion", scalar("string", NULL));
    json_object_set_new(props, "kind", scalar("string", NULL));
    json_object_set_new(props, "metadata", ref_type(s, "ObjectMeta"));
    json_object_set_new(
        schema, "x-kubernetes-group-version-kind",
        json_pack("[{s:s,s:s,s:s}]", "group", s->group, "version", s->version, "kind", name));
    CLEANUP(free_charp) char *gvk = xasprintf("%s/%s/%s", s->group, s->version, name);
    json_object_set_new(kinds, gvk, json_sprintf("%s.%s", s->pkg, name));
}

static void parse_section(const char *line, struct section *s)
{
    char gv[80];
    int got = sscanf(line, "@%95s %79s", s->pkg, gv);
    ASSERT(got == 2);
    char *slash = strchr(gv, '/');
    ASSERT(slash);
    snprintf(s->group, sizeof s->group, "%.*s", (int)(slash - gv), gv);
    snprintf(s->version, sizeof s->version, "%.15s", slash + 1);
}

static const char *type_name(const char *line, char out[96])
{
    const char *p = line;
    if (*p == '*' || *p == '~')
        p++;
    size_t n = word_len(p);
    snprintf(out, 96, "%.*s", (int)n, p);
    return p + n;
}

static void register_names(const char *const *table)
{
    struct section s = {0};
    for (; *table; table++) {
        if (**table == '@') {
            parse_section(*table, &s);
            continue;
        }
        char name[96];
        (void)type_name(*table, name);
        json_t *full = json_sprintf("%s.%s", s.pkg, name);
        CLEANUP(free_charp) char *own = xasprintf("%s %s", s.pkg, name);
        if (!json_object_get(short_names, name))
            json_object_set(short_names, name, full);
        json_object_set_new(short_names, own, full);
    }
}

static void parse_line(const char *line, const struct section *s)
{
    char name[96];
    struct cursor c = {.p = type_name(line, name), .sec = s};
    json_t *schema = json_pack("{s:s,s:{},s:[]}", "type", "object", "properties", "required");
    if (*line == '*')
        add_kind(schema, s, name);
    if (*line == '~')
        json_object_set_new(schema, "x-kubernetes-map-type", json_string("atomic"));
    while (*c.p) {
        while (*c.p == ' ')
            c.p++;
        if (*c.p)
            parse_field(&c, schema);
    }
    if (!json_array_size(json_object_get(schema, "required")))
        json_object_del(schema, "required");
    CLEANUP(free_charp) char *full = xasprintf("%s.%s", s->pkg, name);
    json_object_set_new(components, full, schema);
}

static void parse_table(const char *const *table)
{
    struct section s = {0};
    for (; *table; table++) {
        if (**table == '@')
            parse_section(*table, &s);
        else
            parse_line(*table, &s);
    }
}

static void init(void)
{
    if (components)
        return;
    components = json_object();
    kinds = json_object();
    short_names = json_object();
    register_names(types_table_core);
    register_names(types_table_more);
    parse_table(types_table_core);
    parse_table(types_table_more);
}

const json_t *types_components(void)
{
    init();
    return components;
}

const json_t *types_kind(const char *group, const char *version, const char *kind)
{
    init();
    char key[256];
    int n = snprintf(key, sizeof key, "%s/%s/%s", group, version, kind);
    if (n < 0 || n >= (int)sizeof key)
        return NULL;
    const char *name = json_string_value(json_object_get(kinds, key));
    return name ? json_object_get(components, name) : NULL;
}

const json_t *types_object_meta(void)
{
    init();
    return json_object_get(components, "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
}

const json_t *types_resolve(const json_t *node)
{
    for (int i = 0; node && i < 8; i++) {
        const json_t *all = json_object_get(node, "allOf");
        const char *ref = json_string_value(json_object_get(node, "$ref"));
        if (!ref && json_array_size(all) == 1)
            ref = json_string_value(json_object_get(json_array_get(all, 0), "$ref"));
        if (!ref || strncmp(ref, REF_PREFIX, strlen(REF_PREFIX)) != 0)
            return node;
        const json_t *to = json_object_get(types_components(), ref + strlen(REF_PREFIX));
        if (!to)
            return node;
        node = to;
    }
    return node;
}

const json_t *types_field(const json_t *node, const char *field)
{
    node = types_resolve(node);
    const json_t *f = json_object_get(json_object_get(node, "properties"), field);
    if (f)
        return f;
    const json_t *more = json_object_get(node, "additionalProperties");
    if (json_is_object(more))
        return more;
    if (strcmp(field, "metadata") == 0 &&
        json_is_true(json_object_get(node, "x-kubernetes-embedded-resource")))
        return types_object_meta();
    return NULL;
}

const json_t *types_items(const json_t *node)
{
    return json_object_get(types_resolve(node), "items");
}

enum types_list types_list_kind(const json_t *node, const json_t **keys)
{
    node = types_resolve(node);
    const char *type = json_string_value(json_object_get(node, "x-kubernetes-list-type"));
    if (type && strcmp(type, "set") == 0)
        return TYPES_SET;
    if (!type || strcmp(type, "map") != 0)
        return TYPES_ATOMIC;
    const json_t *k = json_object_get(node, "x-kubernetes-list-map-keys");
    if (!json_array_size(k))
        return TYPES_ATOMIC;
    *keys = k;
    return TYPES_MAP;
}

bool types_is_atomic_map(const json_t *node)
{
    node = types_resolve(node);
    const char *type = json_string_value(json_object_get(node, "x-kubernetes-map-type"));
    return type && strcmp(type, "atomic") == 0;
}

bool types_preserves_unknown(const json_t *node)
{
    node = types_resolve(node);
    if (!node || json_is_true(json_object_get(node, "x-kubernetes-preserve-unknown-fields")))
        return true;
    const json_t *more = json_object_get(node, "additionalProperties");
    return json_is_true(more);
}
