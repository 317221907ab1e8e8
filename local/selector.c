#include "local/selector.h"
#include "local/names.h"
#include "local/status.h"

#include <ctype.h>
#include <stdlib.h>

#define MAX_REQUIREMENTS 1000

struct lexer {
    const char *p;
};

static void skip_space(struct lexer *l)
{
    while (isspace((unsigned char)*l->p))
        l->p++;
}

static bool is_special(char c)
{
    return !c || strchr("=!(),<>", c) || isspace((unsigned char)c);
}

/* A word (key, value or "in"/"notin"); may be empty. Heap. */
static char *word(struct lexer *l)
{
    skip_space(l);
    const char *start = l->p;
    while (!is_special(*l->p))
        l->p++;
    return str_dup((struct str){start, (size_t)(l->p - start)});
}

static bool eat(struct lexer *l, const char *token)
{
    skip_space(l);
    size_t n = strlen(token);
    if (strncmp(l->p, token, n) != 0)
        return false;
    l->p += n;
    return true;
}

static void add_value(struct label_req *r, char *value)
{
    r->values = xrealloc(r->values, (r->n_values + 1) * sizeof(char *));
    r->values[r->n_values++] = value;
}

static int parse_set(struct lexer *l, struct label_req *r, json_t **st)
{
    if (!eat(l, "("))
        return status_bad_request(st, "unable to parse requirement: found '%s' expected: '('",
                                  l->p);
    do {
        char *v = word(l);
        add_value(r, v);
    } while (eat(l, ",") && r->n_values < MAX_REQUIREMENTS);
    if (!eat(l, ")"))
        return status_bad_request(
            st, "unable to parse requirement: found '%s', expected: ',' or ')'", l->p);
    return 0;
}

static int check_requirement(const struct label_req *r, json_t **st)
{
    const char *why = name_check_label_key(r->key);
    if (why)
        return status_bad_request(
            st, "unable to parse requirement: <nil>: Invalid value: \"%s\": %s", r->key, why);
    for (size_t i = 0; i < r->n_values; i++) {
        why = name_check_label_value(r->values[i]);
        if (why)
            return status_bad_request(
                st, "unable to parse requirement: values[%zu][%s]: Invalid value: \"%s\": %s", i,
                r->key, r->values[i], why);
    }
    return 0;
}

static int parse_operator(struct lexer *l, struct label_req *r, json_t **st)
{
    if (eat(l, "==") || eat(l, "=")) {
        r->op = LABEL_IN;
    } else if (eat(l, "!=")) {
        r->op = LABEL_NOT_IN;
    } else if (eat(l, ">")) {
        r->op = LABEL_GT;
    } else if (eat(l, "<")) {
        r->op = LABEL_LT;
    } else {
        CLEANUP(free_charp) char *op = word(l);
        if (strcmp(op, "in") == 0)
            r->op = LABEL_IN;
        else if (strcmp(op, "notin") == 0)
            r->op = LABEL_NOT_IN;
        else
            return status_bad_request(
                st,
                "unable to parse requirement: found '%s', expected: in, notin, =, "
                "==, !=, gt, lt",
                op[0] ? op : l->p);
        return parse_set(l, r, st);
    }
    add_value(r, word(l));
    return 0;
}

static int parse_requirement(struct lexer *l, struct label_req *r, json_t **st)
{
    bool negated = eat(l, "!");
    r->key = word(l);
    skip_space(l);
    if (negated || !*l->p || *l->p == ',') {
        r->op = negated ? LABEL_NOT_EXISTS : LABEL_EXISTS;
        return 0;
    }
    return parse_operator(l, r, st);
}

static struct label_req *next_req(struct selector *s)
{
    s->labels = xrealloc(s->labels, (s->n_labels + 1) * sizeof *s->labels);
    struct label_req *r = &s->labels[s->n_labels++];
    *r = (struct label_req){0};
    return r;
}

static int parse_labels(const char *text, struct selector *s, json_t **st)
{
    struct lexer l = {text};
    skip_space(&l);
    if (!*l.p)
        return 0;
    do {
        struct label_req *r = next_req(s);
        if (s->n_labels > MAX_REQUIREMENTS)
            return status_bad_request(st, "too many label requirements");
        if (parse_requirement(&l, r, st) || check_requirement(r, st))
            return -1;
    } while (eat(&l, ","));
    skip_space(&l);
    if (*l.p)
        return status_bad_request(
            st,
            "unable to parse requirement: found '%s', expected: ',' or 'end of "
            "string'",
            l.p);
    return 0;
}

/* The stored path of a selectable field, NULL when it can't be selected. */
static char *field_path(const struct resource *r, const char *label)
{
    if (!strcmp(label, "metadata.name") ||
        (!strcmp(label, "metadata.namespace") && resource_has(r, R_NAMESPACED)))
        return xstrdup(label);
    const char *const *f = r->ops ? r->ops->fields : NULL;
    for (; f && *f; f++) {
        const char *eq = strchr(*f, '=');
        size_t n = eq ? (size_t)(eq - *f) : strlen(*f);
        if (strlen(label) == n && strncmp(*f, label, n) == 0)
            return xstrdup(eq ? eq + 1 : *f);
    }
    return NULL;
}

static int parse_field(const struct resource *r, struct str term, struct selector *s, json_t **st)
{
    const char *eq = memchr(term.p, '=', term.n);
    if (!eq)
        return status_bad_request(st, "invalid selector: '%.*s'; can't understand '%.*s'",
                                  STR_ARG(term), STR_ARG(term));
    size_t n = (size_t)(eq - term.p);
    bool equal = true;
    if (n && term.p[n - 1] == '!') {
        equal = false;
        n--;
    }
    const char *v = eq + 1;
    if (equal && v < term.p + term.n && *v == '=')
        v++;
    CLEANUP(free_charp) char *label = str_dup(str_trim((struct str){term.p, n}));
    char *path = field_path(r, label);
    if (!path)
        return r->ops && r->ops->fields
                   ? status_bad_request(st, "field label not supported: %s", label)
                   : status_bad_request(
                         st,
                         "\"%s\" is not a known field selector: only \"metadata.name\", "
                         "\"metadata.namespace\"",
                         label);
    s->fields = xrealloc(s->fields, (s->n_fields + 1) * sizeof *s->fields);
    s->fields[s->n_fields++] =
        (struct field_req){.path = path,
                           .value = str_dup((struct str){v, (size_t)(term.p + term.n - v)}),
                           .equal = equal};
    return 0;
}

static int parse_fields(const struct resource *r, const char *text, struct selector *s, json_t **st)
{
    struct str rest = str_c(text), term;
    while (rest.n) {
        rest = str_cut(rest, ',', &term);
        term = str_trim(term);
        if (!term.n)
            continue;
        if (s->n_fields >= 64)
            return status_bad_request(st, "too many field requirements");
        if (parse_field(r, term, s, st))
            return -1;
    }
    return 0;
}

int selector_parse(const struct resource *r, const char *labels, const char *fields,
                   struct selector *out, json_t **st)
{
    struct selector s = {0};
    if ((labels && parse_labels(labels, &s, st)) || (fields && parse_fields(r, fields, &s, st))) {
        selector_fini(&s);
        return -1;
    }
    *out = s;
    return 0;
}

static int add_expression(struct selector *s, const json_t *x, json_t **st)
{
    static const struct {
        const char *name;
        enum label_op op;
    } ops[] = {{"In", LABEL_IN},
               {"NotIn", LABEL_NOT_IN},
               {"Exists", LABEL_EXISTS},
               {"DoesNotExist", LABEL_NOT_EXISTS}};
    struct label_req *r = next_req(s);
    const char *op = json_str_at(x, "operator", "");
    r->key = xstrdup(json_str_at(x, "key", ""));
    size_t i, n = sizeof ops / sizeof *ops;
    json_t *v;
    json_array_foreach (json_object_get(x, "values"), i, v)
        add_value(r, xstrdup(json_is_string(v) ? json_string_value(v) : ""));
    for (i = 0; i < n; i++)
        if (strcmp(ops[i].name, op) == 0) {
            r->op = ops[i].op;
            return 0;
        }
    return status_bad_request(st, "\"%s\" is not a valid label selector operator", op);
}

int selector_from_object(const json_t *label_selector, struct selector *out, json_t **st)
{
    struct selector s = {0};
    const char *key;
    json_t *v;
    size_t i;
    json_object_foreach (json_object_get((json_t *)label_selector, "matchLabels"), key, v) {
        struct label_req *r = next_req(&s);
        r->key = xstrdup(key);
        add_value(r, xstrdup(json_is_string(v) ? json_string_value(v) : ""));
    }
    json_array_foreach (json_object_get(label_selector, "matchExpressions"), i, v) {
        if (add_expression(&s, v, st)) {
            selector_fini(&s);
            return -1;
        }
    }
    *out = s;
    return 0;
}

void selector_fini(struct selector *s)
{
    for (size_t i = 0; i < s->n_labels; i++) {
        for (size_t k = 0; k < s->labels[i].n_values; k++)
            free(s->labels[i].values[k]);
        free(s->labels[i].values);
        free(s->labels[i].key);
    }
    for (size_t i = 0; i < s->n_fields; i++) {
        free(s->fields[i].path);
        free(s->fields[i].value);
    }
    free(s->labels);
    free(s->fields);
    *s = (struct selector){0};
}

static bool value_in(const struct label_req *r, const char *v)
{
    for (size_t i = 0; i < r->n_values; i++)
        if (strcmp(r->values[i], v) == 0)
            return true;
    return false;
}

static bool compare_numbers(const struct label_req *r, const char *v)
{
    int64_t a, b;
    if (!v || !r->n_values || str_to_i64(str_c(v), INT64_MIN, INT64_MAX, &a) ||
        str_to_i64(str_c(r->values[0]), INT64_MIN, INT64_MAX, &b))
        return false;
    return r->op == LABEL_GT ? a > b : a < b;
}

static bool label_matches(const struct label_req *r, const json_t *labels)
{
    const char *v = json_string_value(json_object_get(labels, r->key));
    switch (r->op) {
    case LABEL_IN: return v && value_in(r, v);
    case LABEL_NOT_IN: return !v || !value_in(r, v);
    case LABEL_EXISTS: return v != NULL;
    case LABEL_NOT_EXISTS: return v == NULL;
    case LABEL_GT:
    case LABEL_LT: return compare_numbers(r, v);
    }
    return false;
}

static bool field_matches(const struct field_req *f, const json_t *doc)
{
    const json_t *v = json_at(doc, f->path);
    char number[32];
    const char *text = "";
    if (json_is_string(v)) {
        text = json_string_value(v);
    } else if (json_is_integer(v)) {
        snprintf(number, sizeof number, "%lld", json_integer_value(v));
        text = number;
    } else if (json_is_boolean(v)) {
        text = json_is_true(v) ? "true" : "false";
    } else if (!v && (strcmp(f->value, "false") == 0)) {
        text = "false"; /* an absent boolean */
    }
    return (strcmp(text, f->value) == 0) == f->equal;
}

bool selector_matches(const struct selector *s, const json_t *doc)
{
    const json_t *labels = s->n_labels ? json_at(doc, "metadata.labels") : NULL;
    for (size_t i = 0; i < s->n_labels; i++)
        if (!label_matches(&s->labels[i], labels))
            return false;
    for (size_t i = 0; i < s->n_fields; i++)
        if (!field_matches(&s->fields[i], doc))
            return false;
    return true;
}

bool selector_empty(const struct selector *s)
{
    return !s->n_labels && !s->n_fields;
}

const char *selector_name(const struct selector *s)
{
    for (size_t i = 0; i < s->n_fields; i++)
        if (s->fields[i].equal && strcmp(s->fields[i].path, "metadata.name") == 0)
            return s->fields[i].value;
    return NULL;
}
