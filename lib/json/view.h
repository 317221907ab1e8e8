/* view.h: typed views of JSON objects by field table instead of generated code. A struct lists only
 * the fields that we read or own; its table says for each where it is in the JSON
 * ("spec.model.name") and in the struct. One walker decodes, encodes, compares and clears. The
 * first member of every viewed struct is `uint64_t has`: bit i is set when the table's i-th field
 * was present (and not null), so that absent differs from zero. What is encoded is exactly the
 * fields whose bit is set, which is a server-side-apply body.
 *
 * A decoded object is one allocation (strings and lists inside it): free() it. Unknown members are
 * ignored. Encoded objects are new references. Values of another type than the table's fail with
 * the path in *e. */
#pragma once
#include "lib/json/json.h"

enum view_kind {
    VIEW_STR,  /* const char * */
    VIEW_INT,  /* int64_t; a decimal string is accepted too (IntOrString) */
    VIEW_NUM,  /* double; a decimal string is accepted too */
    VIEW_BOOL, /* bool */
    VIEW_QTY,  /* int64_t, a Kubernetes quantity in units of 1/1000 */
    VIEW_TIME, /* uint64_t, ns since the epoch; RFC 3339 in JSON */
    VIEW_MAP,  /* struct view_map: string values (numbers are taken as their text) */
    VIEW_OBJ,  /* a struct in place, by `sub` */
    VIEW_LIST, /* struct view_list of structs, by `sub` */
    VIEW_STRS, /* struct view_list of const char * */
    VIEW_RAW,  /* const char *: the value's compact JSON text */
    VIEW_B64,  /* const char *: bytes of a Secret, decoded, NUL-terminated */
};

struct view_pair {
    const char *key, *value;
};
struct view_map {
    size_t n;
    struct view_pair *items;
};
struct view_list {
    size_t n;
    void *items;
};
#define VIEW_AT(T, list, i)  (&((T *)(list).items)[i])
#define VIEW_STR_AT(list, i) (((const char **)(list).items)[i])

struct view;
struct view_field {
    const char *path; /* NULL ends the table */
    enum view_kind kind;
    size_t offset;
    bool required;
    const struct view *sub; /* VIEW_OBJ, VIEW_LIST */
};
struct view {
    const char *name; /* "InferenceDeployment", for messages */
    size_t size;
    const struct view_field *fields; /* at most 64 */
};

#define VIEW_DEPTH_MAX 16
#define VIEW_LIST_MAX  65536

/* The whole object in one allocation; NULL with *e filled on failure. `o` is not kept. */
void *view_decode(const struct view *v, const json_t *o, struct err *e);
/* In one allocation of its own. */
void *view_copy(const struct view *v, const void *obj);
/* New reference with the fields whose has-bit is set. Never NULL. */
json_t *view_encode(const struct view *v, const void *obj);
/* Same has-bits and same values (maps without regard to order). */
bool view_equal(const struct view *v, const void *a, const void *b);
/* Where they first differ ("spec.replicas"), written to out; false when equal. */
bool view_diff(const struct view *v, const void *a, const void *b, char *out, size_t n);

/* By member: VIEW_HAS(&kube_pod_view, pod, struct kube_pod, ip). */
bool view_has_at(const struct view *v, const void *obj, size_t offset);
void view_set_at(const struct view *v, void *obj, size_t offset, bool has);
#define VIEW_HAS(v, obj, T, member) view_has_at(v, obj, offsetof(T, member))
#define VIEW_SET(v, obj, T, member) view_set_at(v, obj, offsetof(T, member), true)

const char *view_map_get(const struct view_map *m, const char *key); /* NULL when absent */
