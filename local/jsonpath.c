#include "local/jsonpath.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

#define MAX_STEPS 32

enum step_kind { STEP_FIELD, STEP_INDEX, STEP_ALL, STEP_FILTER };
struct step {
    enum step_kind kind;
    char *name;  /* field, or the field that a filter compares */
    char *value; /* JSON text of the filter's constant */
    bool equal;
    long index;
};
struct path {
    struct step steps[MAX_STEPS];
    size_t n;
};

static void path_fini(struct path *p)
{
    for (size_t i = 0; i < p->n; i++) {
        free(p->steps[i].name);
        free(p->steps[i].value);
    }
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '/' || c == '\\';
}

/* A dotted name; a backslash takes the next character as it is. */
static const char *field_name(const char *p, char **out)
{
    char *s = xmalloc(strlen(p) + 1), *o = s;
    while (is_name(*p)) {
        if (*p == '\\' && p[1])
            p++;
        *o++ = *p++;
    }
    *o = 0;
    *out = s;
    return p;
}

static const char *quoted(const char *p, char **out)
{
    char q = *p++;
    const char *end = strchr(p, q);
    if (!end)
        return NULL;
    *out = str_dup((struct str){p, (size_t)(end - p)});
    return end + 1;
}

static const char *skip(const char *p)
{
    while (*p == ' ')
        p++;
    return p;
}

/* [?(@.name=="value")] from behind "[?(". */
static const char *filter(const char *p, struct step *s)
{
    p = skip(p);
    if (p[0] != '@' || p[1] != '.')
        return NULL;
    p = skip(field_name(p + 2, &s->name));
    if (p[0] != '=' && p[0] != '!')
        return NULL;
    s->equal = p[0] == '=';
    p += p[1] == '=' ? 2 : 1;
    p = skip(p);
    if (*p == '"' || *p == '\'') {
        char *v = NULL;
        p = quoted(p, &v);
        if (!p)
            return NULL;
        json_t *j = json_string(v);
        s->value = json_dumps(j, JSON_ENCODE_ANY);
        json_decref(j);
        free(v);
    } else {
        size_t n = strcspn(p, ") ");
        s->value = str_dup((struct str){p, n});
        p += n;
    }
    p = skip(p);
    return p[0] == ')' && p[1] == ']' ? p + 2 : NULL;
}

static const char *bracket(const char *p, struct step *s)
{
    char *end;
    if (p[0] == '*' && p[1] == ']') {
        s->kind = STEP_ALL;
        return p + 2;
    }
    if (*p == '\'' || *p == '"') {
        s->kind = STEP_FIELD;
        p = quoted(p, &s->name);
        return p && *p == ']' ? p + 1 : NULL;
    }
    if (p[0] == '?' && p[1] == '(') {
        s->kind = STEP_FILTER;
        return filter(p + 2, s);
    }
    s->kind = STEP_INDEX;
    s->index = strtol(p, &end, 10);
    return end != p && *end == ']' ? end + 1 : NULL;
}

static int parse(const char *p, struct path *out)
{
    *out = (struct path){0};
    if (*p == '{')
        p++;
    if (*p == '$')
        p++;
    while (p && *p && *p != '}') {
        if (out->n == MAX_STEPS)
            return -EINVAL;
        struct step *s = &out->steps[out->n++];
        if (*p == '[') {
            p = bracket(p + 1, s);
        } else if (*p == '.' && p[1] == '*') {
            s->kind = STEP_ALL;
            p += 2;
        } else if (*p == '.' && is_name(p[1])) {
            s->kind = STEP_FIELD;
            p = field_name(p + 1, &s->name);
        } else if (*p == '.' && p[1] == '[') {
            p = bracket(p + 2, s);
        } else {
            p = NULL;
        }
    }
    return p && out->n ? 0 : -EINVAL;
}

int jsonpath_check(const char *path, struct err *e)
{
    struct path p;
    int rc = parse(path, &p);
    path_fini(&p);
    if (rc)
        return err_set(e, EINVAL, "is an invalid or unsupported JSON path: %s", path);
    return 0;
}

static bool passes(const struct step *s, const json_t *item)
{
    const json_t *v = json_object_get(item, s->name);
    if (!v)
        return false;
    char *text = json_dumps(v, JSON_ENCODE_ANY);
    bool same = text && s->value && !strcmp(text, s->value);
    free(text);
    return same == s->equal;
}

static void find(const json_t *at, const struct step *s, size_t n, json_t *found)
{
    const char *key;
    json_t *v;
    size_t i;
    if (!at)
        return;
    if (!n) {
        json_array_append(found, (json_t *)at);
        return;
    }
    switch (s->kind) {
    case STEP_FIELD: find(json_object_get(at, s->name), s + 1, n - 1, found); break;
    case STEP_INDEX: {
        long len = (long)json_array_size(at), k = s->index < 0 ? len + s->index : s->index;
        if (k >= 0 && k < len)
            find(json_array_get(at, (size_t)k), s + 1, n - 1, found);
        break;
    }
    case STEP_ALL:
    case STEP_FILTER:
        json_array_foreach ((json_t *)at, i, v)
            if (s->kind == STEP_ALL || passes(s, v))
                find(v, s + 1, n - 1, found);
        if (json_is_object(at) && s->kind == STEP_ALL)
            json_object_foreach ((json_t *)at, key, v)
                find(v, s + 1, n - 1, found);
        break;
    }
}

void jsonpath_find(const json_t *root, const char *path, json_t *found)
{
    struct path p;
    if (!parse(path, &p))
        find(root, p.steps, p.n, found);
    path_fini(&p);
}
