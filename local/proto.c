#include "local/proto.h"
#include "local/types.h"

#include "lib/base/clock.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>

#define META_PACKAGE "io.k8s.apimachinery.pkg.apis.meta.v1"

struct field {
    uint64_t number;
    unsigned wire;
    uint64_t value;   /* wire 0 */
    struct str bytes; /* wire 2 */
};

static json_t *message(const char *type, struct str b, int depth, struct err *e);

/* ---- wire format ---- */

static int varint(struct str *b, uint64_t *out)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64 && b->n; shift += 7) {
        uint8_t c = (uint8_t)*b->p;
        b->p++;
        b->n--;
        v |= (uint64_t)(c & 0x7f) << shift;
        if (!(c & 0x80)) {
            *out = v;
            return 0;
        }
    }
    return -EINVAL;
}

static int take(struct str *b, uint64_t n, struct str *out)
{
    if (n > b->n)
        return -EINVAL;
    *out = (struct str){b->p, (size_t)n};
    b->p += n;
    b->n -= (size_t)n;
    return 0;
}

static int next_field(struct str *b, struct field *f)
{
    uint64_t tag, n;
    *f = (struct field){0};
    if (varint(b, &tag))
        return -EINVAL;
    f->number = tag >> 3;
    f->wire = tag & 7;
    switch (f->wire) {
    case 0: return varint(b, &f->value);
    case 1: return take(b, 8, &f->bytes);
    case 2: return varint(b, &n) ? -EINVAL : take(b, n, &f->bytes);
    case 5: return take(b, 4, &f->bytes);
    default: return -EINVAL;
    }
}

/* Value of one field of a small message; 0 or empty when absent. */
static int pick(struct str b, uint64_t number, struct field *out)
{
    struct field f;
    *out = (struct field){0};
    while (b.n) {
        if (next_field(&b, &f))
            return -EINVAL;
        if (f.number == number)
            *out = f;
    }
    return 0;
}

/* ---- names ---- */

static json_t *numbers; /* type → number → field name */

static void load_numbers(void)
{
    if (numbers)
        return;
    numbers = json_object();
    for (const char *const *row = proto_table; *row; row++) {
        struct str rest = str_c(*row), type, number, name;
        rest = str_cut(rest, ' ', &type);
        json_t *t = json_object();
        while (rest.n) {
            rest = str_cut(rest, ' ', &number);
            rest = str_cut(rest, ' ', &name);
            CLEANUP(free_charp) char *k = str_dup(number);
            json_object_set_new(t, k, json_stringn(name.p, name.n));
        }
        CLEANUP(free_charp) char *full = str_dup(type);
        json_object_set_new(numbers, full, t);
    }
}

static const char *field_name(const char *type, uint64_t number)
{
    char k[24];
    snprintf(k, sizeof k, "%llu", (unsigned long long)number);
    return json_string_value(json_object_get(json_object_get(numbers, type), k));
}

static bool in_words(const char *words, const char *w)
{
    struct str rest = str_c(words), head;
    while (rest.n) {
        rest = str_cut(rest, ' ', &head);
        if (str_eq_c(head, w))
            return true;
    }
    return false;
}

/* Numbers and booleans that are pointers in Go: zero and false are values. */
static const char pointers[] =
    "replicas gracePeriodSeconds terminationGracePeriodSeconds expirationSeconds minReplicas "
    "leaseTransitions leaseDurationSeconds runAsUser runAsGroup fsGroup tolerationSeconds "
    "defaultMode mode "
    "activeDeadlineSeconds revisionHistoryLimit progressDeadlineSeconds value optional immutable "
    "controller "
    "blockOwnerDeletion automountServiceAccountToken enableServiceLinks allowPrivilegeEscalation "
    "runAsNonRoot readOnlyRootFilesystem privileged hostUsers orphanDependents port minDomains "
    "exitCode "
    "terminationGracePeriodSeconds shareProcessNamespace setHostnameAsFQDN "
    "publishNotReadyAddresses";
/* Structs that are not: an empty one says nothing. */
static const char plain_structs[] = "status strategy updateStrategy resources source state "
                                    "lastState loadBalancer spec metadata behavior "
                                    "target";

/* ---- values ---- */

static json_t *time_value(struct str b, const char *name, struct err *e)
{
    struct field s, ns;
    char text[CLOCK_RFC3339_MAX];
    if (pick(b, 1, &s) || pick(b, 2, &ns)) {
        err_set(e, EINVAL, "%s: a malformed time", name);
        return NULL;
    }
    if (!s.value || (int64_t)s.value < 0)
        return json_null();
    bool micro = in_words("eventTime acquireTime renewTime lastObservedTime", name);
    if (s.value > UINT64_MAX / NS_PER_S - 1)
        return json_null();
    return json_string(
        clock_rfc3339(s.value * NS_PER_S + ns.value % NS_PER_S, micro ? 6 : 0, text));
}

static json_t *int_or_string(struct str b)
{
    struct field type, num, text;
    if (pick(b, 1, &type) || pick(b, 2, &num) || pick(b, 3, &text))
        return NULL;
    return type.value ? json_stringn(text.bytes.p, text.bytes.n) : json_integer((int32_t)num.value);
}

static json_t *bytes_value(struct str b)
{
    unsigned char *out = xmalloc((b.n + 2) / 3 * 4 + 1);
    EVP_EncodeBlock(out, (const unsigned char *)b.p, (int)b.n);
    json_t *v = json_string((const char *)out);
    free(out);
    return v;
}

static json_t *string_value(const json_t *schema, const struct field *f, const char *name,
                            struct err *e)
{
    const char *format = json_str_at(schema, "format", "");
    if (!strcmp(format, "date-time"))
        return time_value(f->bytes, name, e);
    if (!strcmp(format, "byte"))
        return bytes_value(f->bytes);
    json_t *v = json_stringn(f->bytes.p ? f->bytes.p : "", f->bytes.n);
    if (!v)
        err_set(e, EINVAL, "%s: not UTF-8", name);
    return v;
}

static json_t *value(const json_t *schema, const struct field *f, const char *name, int depth,
                     struct err *e)
{
    static const char prefix[] = "#/components/schemas/";
    const json_t *all = json_array_get(json_object_get(schema, "allOf"), 0);
    const char *ref = json_string_value(json_object_get(all ? all : schema, "$ref"));
    if (ref)
        return message(ref + sizeof prefix - 1, f->bytes, depth + 1, e);
    struct field q;
    const char *type = json_str_at(schema, "type", "");
    if (json_object_get(schema, "x-baton-format"))
        return pick(f->bytes, 1, &q)
                   ? NULL
                   : json_stringn(q.bytes.p ? q.bytes.p : "0", q.bytes.p ? q.bytes.n : 1);
    if (json_is_true(json_object_get(schema, "x-kubernetes-int-or-string")))
        return int_or_string(f->bytes);
    if (!strcmp(type, "string"))
        return string_value(schema, f, name, e);
    if (!strcmp(type, "integer"))
        return json_integer((json_int_t)f->value);
    if (!strcmp(type, "boolean"))
        return json_boolean(f->value != 0);
    err_set(e, EINVAL, "%s: can't be read from protobuf, send JSON", name);
    return NULL;
}

static bool is_nothing(const json_t *v, const char *name)
{
    if (json_is_null(v) || (json_is_string(v) && !json_string_length(v)))
        return true;
    if (json_is_integer(v) || json_is_boolean(v))
        return (json_is_false(v) || (json_is_integer(v) && !json_integer_value(v))) &&
               !in_words(pointers, name);
    return json_is_object(v) && !json_object_size(v) && in_words(plain_structs, name);
}

static int add_entry(json_t *doc, const json_t *schema, const struct field *f, const char *name,
                     int depth, struct err *e)
{
    struct field k, v;
    if (pick(f->bytes, 1, &k) || pick(f->bytes, 2, &v))
        return err_set(e, EINVAL, "%s: a malformed map entry", name);
    if (!v.bytes.p)
        v.bytes = STR("");
    json_t *map = json_object_get(doc, name);
    if (!map) {
        map = json_object();
        json_object_set_new(doc, name, map);
    }
    json_t *x = value(json_object_get(schema, "additionalProperties"), &v, name, depth, e);
    if (!x)
        return -EINVAL;
    CLEANUP(free_charp) char *key = str_dup(k.bytes);
    return json_object_set_new(map, key, x) ? err_set(e, EINVAL, "%s: a key is not UTF-8", name)
                                            : 0;
}

static int add_field(json_t *doc, const json_t *schema, const struct field *f, const char *name,
                     int depth, struct err *e)
{
    if (json_is_object(json_object_get(schema, "additionalProperties")))
        return add_entry(doc, schema, f, name, depth, e);
    bool list = !strcmp(json_str_at(schema, "type", ""), "array");
    json_t *v = value(list ? json_object_get(schema, "items") : schema, f, name, depth, e);
    if (!v)
        return e && e->code ? -EINVAL : err_set(e, EINVAL, "%s: malformed", name);
    if (list) {
        json_t *items = json_object_get(doc, name);
        if (!items) {
            items = json_array();
            json_object_set_new(doc, name, items);
        }
        json_array_append_new(items, v);
    } else if (is_nothing(v, name)) {
        json_decref(v);
    } else {
        json_object_set_new(doc, name, v);
    }
    return 0;
}

static json_t *message(const char *type, struct str b, int depth, struct err *e)
{
    const json_t *schema = json_object_get(types_components(), type);
    if (depth > 32 || !schema || !json_object_get(numbers, type)) {
        err_set(e, EINVAL, "%s can't be read from protobuf, send JSON", type);
        return NULL;
    }
    json_t *doc = json_object();
    struct field f;
    int rc = 0;
    while (b.n && !rc) {
        rc = next_field(&b, &f) ? err_set(e, EINVAL, "%s: malformed protobuf", type) : 0;
        const char *name = rc ? NULL : field_name(type, f.number);
        const json_t *prop =
            name ? json_object_get(json_object_get(schema, "properties"), name) : NULL;
        if (prop)
            rc = add_field(doc, prop, &f, name, depth, e);
    }
    if (!rc)
        return doc;
    json_decref(doc);
    return NULL;
}

/* ---- envelope ---- */

/* The schema's name of a kind. */
static const char *type_of(const char *api, const char *kind)
{
    const char *name;
    json_t *schema;
    char group[128];
    const char *slash = strchr(api, '/');
    snprintf(group, sizeof group, "%.*s", slash ? (int)(slash - api) : 0, api);
    const json_t *want = types_kind(group, slash ? slash + 1 : api, kind);
    json_object_foreach ((json_t *)types_components(), name, schema)
        if (want && schema == want)
            return name;
    return !strcmp(kind, "DeleteOptions") ? META_PACKAGE ".DeleteOptions" : NULL;
}

json_t *proto_decode(struct str body, struct err *e)
{
    struct field meta, raw, api, kind;
    load_numbers();
    if (body.n < 4 || memcmp(body.p, "k8s\0", 4)) {
        err_set(e, EINVAL, "the body does not begin with the protobuf magic k8s\\0");
        return NULL;
    }
    struct str b = {body.p + 4, body.n - 4};
    if (pick(b, 1, &meta) || pick(b, 2, &raw) || pick(meta.bytes, 1, &api) ||
        pick(meta.bytes, 2, &kind)) {
        err_set(e, EINVAL, "the protobuf envelope is malformed");
        return NULL;
    }
    CLEANUP(free_charp) char *a = str_dup(api.bytes);
    CLEANUP(free_charp) char *k = str_dup(kind.bytes);
    const char *type = type_of(a, k);
    if (!type) {
        err_set(e, EINVAL, "%s of %s can't be read from protobuf, send JSON", k, a);
        return NULL;
    }
    json_t *doc = message(type, raw.bytes, 0, e);
    if (doc) {
        json_object_set_new(doc, "apiVersion", json_string(a));
        json_object_set_new(doc, "kind", json_string(k));
    }
    return doc;
}
