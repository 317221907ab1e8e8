#include "local/status.h"
#include "local/resource.h"

#include <stdarg.h>
#include <stdlib.h>

static json_t *status_new(int code, const char *reason, const char *message)
{
    json_t *st = json_pack("{s:s,s:s,s:{},s:s,s:s,s:s,s:i}", "kind", "Status", "apiVersion", "v1",
                           "metadata", "status", "Failure", "message", message, "reason", reason,
                           "code", code);
    if (!*reason)
        json_object_del(st, "reason");
    return st;
}

static json_t *details_of(const struct resource *r, const char *name)
{
    json_t *d = json_object();
    if (name)
        json_object_set_new(d, "name", json_string(name));
    if (r && r->group[0])
        json_object_set_new(d, "group", json_string(r->group));
    if (r)
        json_object_set_new(d, "kind", json_string(r->plural));
    return d;
}

static char *vformat(const char *fmt, va_list ap)
{
    char *out = NULL;
    int n = vasprintf(&out, fmt, ap);
    ASSERT(n >= 0);
    return out;
}

#define FORMAT(var, fmt)                                                                           \
    va_list ap_;                                                                                   \
    va_start(ap_, fmt);                                                                            \
    CLEANUP(free_charp) char *var = vformat(fmt, ap_);                                             \
    va_end(ap_)

int status_set(json_t **st, int code, const char *reason, const struct resource *r,
               const char *name, const char *fmt, ...)
{
    FORMAT(msg, fmt);
    *st = status_new(code, reason, msg);
    if (r || name)
        json_object_set_new(*st, "details", details_of(r, name));
    return -1;
}

int status_bad_request(json_t **st, const char *fmt, ...)
{
    FORMAT(msg, fmt);
    *st = status_new(400, "BadRequest", msg);
    return -1;
}

int status_internal(json_t **st, const char *fmt, ...)
{
    FORMAT(msg, fmt);
    CLEANUP(free_charp) char *full = xasprintf("Internal error occurred: %s", msg);
    *st = status_new(500, "InternalError", full);
    json_object_set_new(*st, "details", json_pack("{s:[{s:s}]}", "causes", "message", msg));
    return -1;
}

int status_not_found(json_t **st, const struct resource *r, const char *name)
{
    const char *dot = r->group[0] ? "." : "";
    return status_set(st, 404, "NotFound", r, name, "%s%s%s \"%s\" not found", r->plural, dot,
                      r->group, name);
}

int status_no_path(json_t **st)
{
    *st = status_new(404, "NotFound", "the server could not find the requested resource");
    json_object_set_new(*st, "details", json_object());
    return -1;
}

int status_exists(json_t **st, const struct resource *r, const char *name)
{
    const char *dot = r->group[0] ? "." : "";
    return status_set(st, 409, "AlreadyExists", r, name, "%s%s%s \"%s\" already exists", r->plural,
                      dot, r->group, name);
}

int status_conflict(json_t **st, const struct resource *r, const char *name, const char *why)
{
    const char *dot = r->group[0] ? "." : "";
    return status_set(st, 409, "Conflict", r, name,
                      "Operation cannot be fulfilled on %s%s%s \"%s\": %s", r->plural, dot,
                      r->group, name, why);
}

int status_modified(json_t **st, const struct resource *r, const char *name)
{
    return status_conflict(st, r, name,
                           "the object has been modified; please apply your changes to the latest "
                           "version and try again");
}

int status_forbidden(json_t **st, const struct resource *r, const char *name, const char *why)
{
    const char *dot = r->group[0] ? "." : "";
    return status_set(st, 403, "Forbidden", r, name, "%s%s%s \"%s\" is forbidden: %s", r->plural,
                      dot, r->group, name, why);
}

int status_method(json_t **st)
{
    *st = status_new(405, "MethodNotAllowed",
                     "the server does not allow this method on the requested resource");
    json_object_set_new(*st, "details", json_object());
    return -1;
}

int status_media(json_t **st, const char *supported)
{
    CLEANUP(free_charp)
    char *msg = xasprintf(
        "the body of the request was in an unknown format - accepted media types include: %s",
        supported);
    *st = status_new(415, "UnsupportedMediaType", msg);
    json_object_set_new(*st, "details", json_object());
    return -1;
}

int status_expired(json_t **st, const char *fmt, ...)
{
    FORMAT(msg, fmt);
    *st = status_new(410, "Expired", msg);
    return -1;
}

static void join_causes(const json_t *causes, struct buf *b)
{
    size_t n = json_array_size(causes);
    int rc = n > 1 ? buf_cstr(b, "[") : 0;
    for (size_t i = 0; i < n && !rc; i++) {
        const json_t *c = json_array_get(causes, i);
        const char *field = json_str_at(c, "field", "");
        rc = buf_printf(b, "%s%s%s%s", i ? ", " : "", field, field[0] ? ": " : "",
                        json_str_at(c, "message", ""));
    }
    if (!rc && n > 1)
        rc = buf_cstr(b, "]");
    (void)rc; /* a message cut at the buffer's maximum is still a message */
}

int status_invalid(json_t **st, const char *group, const char *kind, const char *name,
                   json_t *causes)
{
    if (!json_array_size(causes)) {
        json_decref(causes);
        return 0;
    }
    struct buf b;
    buf_init(&b, 1 << 20);
    join_causes(causes, &b);
    const char *dot = group[0] ? "." : "";
    CLEANUP(free_charp)
    char *msg =
        xasprintf("%s%s%s \"%s\" is invalid: %s", kind, dot, group, name, b.data ? b.data : "");
    buf_fini(&b);
    *st = status_new(422, "Invalid", msg);
    json_t *d = json_object();
    if (name[0])
        json_object_set_new(d, "name", json_string(name));
    if (group[0])
        json_object_set_new(d, "group", json_string(group));
    json_object_set_new(d, "kind", json_string(kind));
    json_object_set_new(d, "causes", causes);
    json_object_set_new(*st, "details", d);
    return -1;
}

static void add_cause(json_t *causes, const char *reason, const char *message, const char *field)
{
    json_array_append_new(
        causes, json_pack("{s:s,s:s,s:s}", "reason", reason, "message", message, "field", field));
}

void status_add_cause(json_t *st, const char *reason, const char *message, const char *field)
{
    json_t *d = json_object_get(st, "details");
    if (!d) {
        d = json_object();
        json_object_set_new(st, "details", d);
    }
    json_t *causes = json_object_get(d, "causes");
    if (!causes) {
        causes = json_array();
        json_object_set_new(d, "causes", causes);
    }
    json_t *c = json_pack("{s:s,s:s}", "reason", reason, "message", message);
    if (field)
        json_object_set_new(c, "field", json_string(field));
    json_array_append_new(causes, c);
}

int status_code(const json_t *st)
{
    return (int)json_int_at(st, "code", 500);
}

json_t *status_success(const struct resource *r, const char *name, const char *uid)
{
    json_t *d = details_of(r, name);
    if (uid)
        json_object_set_new(d, "uid", json_string(uid));
    return json_pack("{s:s,s:s,s:{},s:s,s:o}", "kind", "Status", "apiVersion", "v1", "metadata",
                     "status", "Success", "details", d);
}

/* How the API prints a bad value: strings quoted, composites as compact JSON. */
static char *value_text(const json_t *value)
{
    if (!value || json_is_null(value))
        return xstrdup("null");
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS);
    return text ? text : xstrdup("?");
}

void cause_required(json_t *causes, const char *field, const char *detail)
{
    CLEANUP(free_charp)
    char *msg =
        xasprintf("Required value%s%s", detail && *detail ? ": " : "", detail ? detail : "");
    add_cause(causes, "FieldValueRequired", msg, field);
}

void cause_invalid(json_t *causes, const char *field, const json_t *value, const char *fmt, ...)
{
    FORMAT(detail, fmt);
    CLEANUP(free_charp) char *text = value_text(value);
    CLEANUP(free_charp) char *msg = xasprintf("Invalid value: %s: %s", text, detail);
    add_cause(causes, "FieldValueInvalid", msg, field);
}

void cause_forbidden(json_t *causes, const char *field, const char *fmt, ...)
{
    FORMAT(detail, fmt);
    CLEANUP(free_charp) char *msg = xasprintf("Forbidden: %s", detail);
    add_cause(causes, "FieldValueForbidden", msg, field);
}

void cause_unsupported(json_t *causes, const char *field, const json_t *value,
                       const char *const *allowed)
{
    CLEANUP(free_charp) char *text = value_text(value);
    struct buf b;
    buf_init(&b, 1 << 16);
    int rc = buf_printf(&b, "Unsupported value: %s: supported values: ", text);
    for (size_t i = 0; allowed[i] && !rc; i++)
        rc = buf_printf(&b, "%s\"%s\"", i ? ", " : "", allowed[i]);
    add_cause(causes, "FieldValueNotSupported", b.data ? b.data : "Unsupported value", field);
    buf_fini(&b);
}

void cause_duplicate(json_t *causes, const char *field, const json_t *value)
{
    CLEANUP(free_charp) char *text = value_text(value);
    CLEANUP(free_charp) char *msg = xasprintf("Duplicate value: %s", text);
    add_cause(causes, "FieldValueDuplicate", msg, field);
}
