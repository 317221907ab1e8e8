#include "lib/kube/yaml.h"

#include "lib/base/file.h"

#include <errno.h>
#include <yaml.h>

struct reader {
    yaml_parser_t parser;
    struct err *e;
    int depth;
};

static int bad(struct reader *r, const yaml_event_t *ev, const char *what)
{
    return err_set(r->e, EINVAL, "line %zu: %s", ev->start_mark.line + 1, what);
}

static int next(struct reader *r, yaml_event_t *ev)
{
    if (yaml_parser_parse(&r->parser, ev))
        return 0;
    return err_set(r->e, EINVAL, "line %zu: %s", r->parser.problem_mark.line + 1,
                   r->parser.problem ? r->parser.problem : "malformed YAML");
}

static bool any_of(struct str s, const char *const *words)
{
    for (; *words; words++)
        if (str_eq_c(s, *words))
            return true;
    return false;
}

/* Plain scalars by the core schema; quoted ones and block scalars are strings. */
static json_t *scalar(struct reader *r, const yaml_event_t *ev)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
    static const char *const trues[] = {"true", "True", "TRUE", NULL};
    static const char *const falses[] = {"false", "False", "FALSE", NULL};
    struct str s = {(const char *)ev->data.scalar.value, ev->data.scalar.length};
    json_t *v = NULL;
    int64_t i;
    double f;
    if (ev->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && !ev->data.scalar.tag) {
        if (any_of(s, nulls))
            return json_null();
        if (any_of(s, trues))
            return json_true();
        if (any_of(s, falses))
            return json_false();
        if (s.n < 20 && !str_to_i64(s, INT64_MIN, INT64_MAX, &i))
            return json_integer(i);
        if (strchr("-+.0123456789", s.p[0]) && !str_to_f64(s, -1e300, 1e300, &f))
            return json_real(f);
    }
    v = json_stringn(s.p, s.n);
    if (!v)
        bad(r, ev, "a scalar is not valid UTF-8");
    return v;
}

static json_t *node(struct reader *r, const yaml_event_t *ev);

static json_t *sequence(struct reader *r)
{
    json_t *a = json_array();
    yaml_event_t ev;
    while (next(r, &ev) == 0) {
        if (ev.type == YAML_SEQUENCE_END_EVENT) {
            yaml_event_delete(&ev);
            return a;
        }
        json_t *item = node(r, &ev);
        yaml_event_delete(&ev);
        if (!item || json_array_append_new(a, item))
            break;
    }
    json_decref(a);
    return NULL;
}

static int pair(struct reader *r, json_t *o, const yaml_event_t *key)
{
    yaml_event_t ev;
    struct str k = {(const char *)key->data.scalar.value, key->data.scalar.length};
    if (key->type != YAML_SCALAR_EVENT || memchr(k.p, 0, k.n))
        return bad(r, key, "a key must be a plain string");
    if (json_object_getn(o, k.p, k.n))
        return err_set(r->e, EINVAL, "line %zu: key %.*s appears twice", key->start_mark.line + 1,
                       STR_ARG(k));
    if (next(r, &ev))
        return -EINVAL;
    json_t *v = node(r, &ev);
    yaml_event_delete(&ev);
    if (!v)
        return -EINVAL;
    return json_object_setn_new(o, k.p, k.n, v) ? bad(r, key, "a key is not valid UTF-8") : 0;
}

static json_t *mapping(struct reader *r)
{
    json_t *o = json_object();
    yaml_event_t ev;
    while (next(r, &ev) == 0) {
        bool end = ev.type == YAML_MAPPING_END_EVENT;
        int rc = end ? 0 : pair(r, o, &ev);
        yaml_event_delete(&ev);
        if (end)
            return o;
        if (rc)
            break;
    }
    json_decref(o);
    return NULL;
}

static json_t *node(struct reader *r, const yaml_event_t *ev)
{
    json_t *v = NULL;
    if (r->depth >= JSON_MAX_DEPTH) {
        bad(r, ev, "nested too deeply");
        return NULL;
    }
    r->depth++;
    switch ((int)ev->type) {
    case YAML_SCALAR_EVENT:
        v = ev->data.scalar.anchor ? (bad(r, ev, "anchors are not supported"), NULL)
                                   : scalar(r, ev);
        break;
    case YAML_SEQUENCE_START_EVENT:
        v = ev->data.sequence_start.anchor ? (bad(r, ev, "anchors are not supported"), NULL)
                                           : sequence(r);
        break;
    case YAML_MAPPING_START_EVENT:
        v = ev->data.mapping_start.anchor ? (bad(r, ev, "anchors are not supported"), NULL)
                                          : mapping(r);
        break;
    default: bad(r, ev, "aliases are not supported");
    }
    r->depth--;
    return v;
}

json_t *yaml_parse_all(struct str text, size_t max_bytes, struct err *e)
{
    struct reader r = {.e = e};
    if (text.n > max_bytes) {
        err_set(e, EMSGSIZE, "YAML of %zu bytes is larger than the limit of %zu", text.n,
                max_bytes);
        return NULL;
    }
    if (!yaml_parser_initialize(&r.parser)) {
        err_set(e, ENOMEM, "out of memory");
        return NULL;
    }
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text.p, text.n);
    json_t *docs = json_array();
    yaml_event_t ev;
    bool done = false, ok = true;
    while (ok && !done && (ok = next(&r, &ev) == 0)) {
        done = ev.type == YAML_STREAM_END_EVENT;
        if (ev.type == YAML_SCALAR_EVENT || ev.type == YAML_SEQUENCE_START_EVENT ||
            ev.type == YAML_MAPPING_START_EVENT || ev.type == YAML_ALIAS_EVENT) {
            json_t *v = node(&r, &ev);
            ok = v != NULL;
            if (v && !json_is_null(v))
                json_array_append(docs, v);
            json_decref(v);
        }
        yaml_event_delete(&ev);
    }
    yaml_parser_delete(&r.parser);
    if (ok)
        return docs;
    json_decref(docs);
    return NULL;
}

json_t *yaml_parse(struct str text, size_t max_bytes, struct err *e)
{
    CLEANUP(json_decrefp) json_t *docs = yaml_parse_all(text, max_bytes, e);
    if (!docs)
        return NULL;
    if (json_array_size(docs) != 1) {
        err_set(e, EINVAL, "expected one YAML document, found %zu", json_array_size(docs));
        return NULL;
    }
    return json_incref(json_array_get(docs, 0));
}

json_t *yaml_parse_file(const char *path, size_t max_bytes, struct err *e)
{
    struct buf b;
    json_t *v = NULL;
    buf_init(&b, max_bytes);
    if (file_append(path, &b, e) == 0) {
        v = yaml_parse(buf_view(&b), max_bytes, e);
        if (!v)
            err_wrap(e, "%s", path);
    }
    buf_fini(&b);
    return v;
}
