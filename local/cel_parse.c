#include "local/cel_int.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct var {
    const char *name;
    const void *type;
};

struct parser {
    struct cel *c;
    const char *start, *p;
    const struct cel_types *types;
    struct var vars[CEL_MAX_VARS];
    int n_vars, depth;
    struct err *e;
    bool failed;
};

static struct node *ternary(struct parser *p);

static struct node *fail(struct parser *p, const char *what)
{
    if (!p->failed)
        err_set(p->e, EINVAL, "CEL, character %td: %s", p->p - p->start + 1, what);
    p->failed = true;
    return NULL;
}

static struct node *node_new(struct parser *p, enum node_kind kind)
{
    struct node *n = p->failed ? NULL : arena_calloc(&p->c->arena, sizeof *n);
    if (!n)
        return fail(p, "the expression is too long");
    n->kind = kind;
    return n;
}

static void skip(struct parser *p)
{
    for (;;) {
        while (isspace((unsigned char)*p->p))
            p->p++;
        if (p->p[0] != '/' || p->p[1] != '/')
            return;
        while (*p->p && *p->p != '\n')
            p->p++;
    }
}

static bool is_ident(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* Takes `text` if it comes next; a word must end there. */
static bool take(struct parser *p, const char *text)
{
    skip(p);
    size_t n = strlen(text);
    if (p->failed || strncmp(p->p, text, n) != 0 || (is_ident(text[0]) && is_ident(p->p[n])))
        return false;
    if (n == 1 && strchr("<>=!&|", text[0]) && p->p[1] == '=')
        return false;
    p->p += n;
    return true;
}

static void expect(struct parser *p, const char *text)
{
    if (!p->failed && !take(p, text)) {
        char what[64];
        snprintf(what, sizeof what, "\"%s\" expected", text);
        fail(p, what);
    }
}

static struct str ident(struct parser *p)
{
    skip(p);
    const char *s = p->p;
    if (isalpha((unsigned char)*s) || *s == '_')
        while (is_ident(*p->p))
            p->p++;
    return (struct str){s, (size_t)(p->p - s)};
}

static struct node *literal(struct parser *p, json_t *v)
{
    struct node *n = node_new(p, N_LITERAL);
    if (!v || json_array_append_new(p->c->literals, v))
        return fail(p, "malformed literal");
    if (n)
        n->literal = v;
    return n;
}

static int put_utf8(struct buf *b, unsigned cp)
{
    char u[4];
    size_t n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n; i-- > 1; cp >>= 6)
        u[i] = (char)(0x80 | (cp & 0x3f));
    u[0] = (char)(n == 1 ? cp : lead[n] | cp);
    return buf_append(b, u, n);
}

static int escape(struct parser *p, struct buf *b)
{
    static const char from[] = "abfnrtv\\'\"`?", to[] = "\a\b\f\n\r\t\v\\'\"`?";
    char c = *p->p++;
    const char *at = c ? strchr(from, c) : NULL;
    if (at)
        return buf_append(b, &to[at - from], 1);
    int digits = c == 'x' || c == 'X' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    unsigned cp = 0;
    for (int i = 0; i < digits; i++, p->p++) {
        if (!isxdigit((unsigned char)*p->p))
            return -EINVAL;
        cp = cp << 4 |
             (unsigned)(isdigit((unsigned char)*p->p) ? *p->p - '0' : (*p->p | 32) - 'a' + 10);
    }
    return digits == 0 || cp > 0x10ffff ? -EINVAL : put_utf8(b, cp);
}

static struct node *string(struct parser *p, bool raw)
{
    struct buf b;
    char q = *p->p;
    bool triple = p->p[1] == q && p->p[2] == q;
    size_t width = triple ? 3 : 1;
    const char close[4] = {q, triple ? q : 0, q, 0};
    buf_init(&b, 65536);
    p->p += width;
    int rc = 0;
    while (!rc && *p->p && strncmp(p->p, close, width) != 0) {
        if (*p->p == '\\' && !raw) {
            p->p++;
            rc = escape(p, &b);
        } else {
            rc = buf_append(&b, p->p++, 1);
        }
    }
    struct node *n = rc || !*p->p ? fail(p, "malformed string")
                                  : literal(p, json_stringn(b.data ? b.data : "", b.n));
    if (!p->failed)
        p->p += width;
    buf_fini(&b);
    return n;
}

static struct node *number(struct parser *p)
{
    char *end;
    const char *s = p->p;
    errno = 0;
    long long i = strtoll(s, &end, s[0] == '0' && (s[1] | 32) == 'x' ? 16 : 10);
    if (*end != '.' && (*end | 32) != 'e') {
        if (errno)
            return fail(p, "integer out of range");
        p->p = end + ((*end | 32) == 'u');
        return literal(p, json_integer(i));
    }
    double d = strtod(s, &end);
    p->p = end;
    return literal(p, json_real(d));
}

static struct node *aggregate(struct parser *p, bool map)
{
    const char *close = map ? "}" : "]";
    struct node *n = node_new(p, map ? N_MAP : N_LIST), *items[64];
    int count = 0;
    while (n && !take(p, close)) {
        if (count + 2 > 64)
            return fail(p, "more than 64 elements");
        items[count++] = ternary(p);
        if (map) {
            expect(p, ":");
            items[count++] = ternary(p);
        }
        if (!take(p, ",")) {
            expect(p, close);
            break;
        }
    }
    if (p->failed)
        return NULL;
    n->args = arena_calloc(&p->c->arena, sizeof *n->args * (size_t)(count + 1));
    if (!n->args)
        return fail(p, "the expression is too long");
    memcpy(n->args, items, sizeof *items * (size_t)count);
    n->n_args = count;
    return n;
}

static struct node *finish_call(struct parser *p, struct str name, struct node *receiver,
                                struct node **args, int n_args)
{
    struct node *n = node_new(p, N_CALL);
    if (!n)
        return NULL;
    n->args = arena_calloc(&p->c->arena, sizeof *n->args * CEL_MAX_ARGS);
    if (!n->args)
        return fail(p, "the expression is too long");
    if (receiver)
        n->args[n->n_args++] = receiver;
    for (int i = 0; i < n_args; i++)
        n->args[n->n_args++] = args[i];
    n->fn = cel_fn_find(name, receiver != NULL, n->n_args);
    if (!n->fn) {
        char what[96];
        snprintf(what, sizeof what, "no function \"%.*s\" with %d arguments",
                 (int)(name.n < 40 ? name.n : 40), name.p, n_args);
        return fail(p, what);
    }
    return n;
}

static struct node *call(struct parser *p, struct str name, struct node *receiver)
{
    struct node *args[CEL_MAX_ARGS];
    int n = 0;
    while (!p->failed && !take(p, ")")) {
        if (n == CEL_MAX_ARGS - 1)
            return fail(p, "too many arguments");
        args[n++] = ternary(p);
        if (!take(p, ",")) {
            expect(p, ")");
            break;
        }
    }
    return p->failed ? NULL : finish_call(p, name, receiver, args, n);
}

static struct node *has(struct parser *p)
{
    struct node *n = ternary(p);
    expect(p, ")");
    if (p->failed)
        return NULL;
    if (n->kind != N_SELECT)
        return fail(p, "has() takes a field selection such as has(self.x)");
    n->kind = N_HAS;
    n->type = NULL;
    return n;
}

static int macro_of(struct str name)
{
    static const char *const names[] = {"all", "exists", "exists_one", "map", "filter"};
    for (int i = 0; i < 5; i++)
        if (str_eq_c(name, names[i]))
            return i;
    return -1;
}

static struct node *macro(struct parser *p, int which, struct node *range)
{
    struct node *n = node_new(p, N_MACRO);
    struct str v = ident(p);
    if (!n || v.n == 0 || p->n_vars == CEL_MAX_VARS)
        return fail(p, "a macro takes a variable name and an expression");
    expect(p, ",");
    n->op = which;
    n->a = range;
    n->slot = p->n_vars;
    p->vars[p->n_vars++] =
        (struct var){arena_dup(&p->c->arena, v),
                     range->type && p->types->items ? p->types->items(range->type) : NULL};
    n->b = ternary(p);
    if (which == M_MAP && take(p, ","))
        n->c = ternary(p);
    p->n_vars--;
    expect(p, ")");
    n->type = which == M_FILTER ? range->type : NULL;
    return p->failed ? NULL : n;
}

static struct node *variable(struct parser *p, struct str name)
{
    struct node *n = node_new(p, N_VAR);
    for (int i = p->n_vars; n && i-- > 0;)
        if (str_eq_c(name, p->vars[i].name)) {
            n->slot = i;
            n->type = p->vars[i].type;
            p->c->old_self |= i == 1;
            return n;
        }
    char what[96];
    snprintf(what, sizeof what, "undeclared reference to \"%.*s\"",
             (int)(name.n < 40 ? name.n : 40), name.p);
    return fail(p, what);
}

static struct node *primary(struct parser *p)
{
    skip(p);
    char c = *p->p;
    if (take(p, "(")) {
        struct node *n = ternary(p);
        expect(p, ")");
        return n;
    }
    if (take(p, "["))
        return aggregate(p, false);
    if (take(p, "{"))
        return aggregate(p, true);
    if (c == '"' || c == '\'')
        return string(p, false);
    if ((c == 'r' || c == 'R') && (p->p[1] == '"' || p->p[1] == '\'')) {
        p->p++;
        return string(p, true);
    }
    if (isdigit((unsigned char)c))
        return number(p);
    struct str name = ident(p);
    if (name.n == 0)
        return fail(p, "an expression is expected");
    if (str_eq_c(name, "true") || str_eq_c(name, "false"))
        return literal(p, json_boolean(name.p[0] == 't'));
    if (str_eq_c(name, "null"))
        return literal(p, json_null());
    if (!take(p, "("))
        return variable(p, name);
    return str_eq_c(name, "has") ? has(p) : call(p, name, NULL);
}

const char *cel_unescape(struct arena *a, struct str name)
{
    static const struct {
        const char *from, *to;
    } table[] = {
        {"__underscores__", "__"}, {"__dot__", "."}, {"__dash__", "-"}, {"__slash__", "/"}};
    char *out = arena_alloc(a, name.n + 1);
    size_t n = 0;
    if (!out)
        return NULL;
    if (name.n > 4 && str_starts(name, STR("__")) && str_ends(name, STR("__")) &&
        !memchr(name.p + 2, '_', name.n - 4))
        return arena_dup(a, (struct str){name.p + 2, name.n - 4});
    while (name.n) {
        size_t i = 0;
        while (i < 4 && !str_starts(name, str_c(table[i].from)))
            i++;
        size_t used = i < 4 ? strlen(table[i].from) : 1;
        const char *to = i < 4 ? table[i].to : name.p;
        size_t len = i < 4 ? strlen(to) : 1;
        memcpy(out + n, to, len);
        n += len;
        name.p += used;
        name.n -= used;
    }
    out[n] = 0;
    return out;
}

static struct node *select_field(struct parser *p, struct node *of, struct str name)
{
    struct node *n = node_new(p, N_SELECT);
    if (!n)
        return NULL;
    n->a = of;
    n->name = cel_unescape(&p->c->arena, name);
    if (!n->name)
        return fail(p, "the expression is too long");
    if (of->type && p->types->field) {
        bool known = true;
        n->type = p->types->field(of->type, n->name, &known);
        if (!known) {
            char what[128];
            snprintf(what, sizeof what, "undefined field \"%.80s\"", n->name);
            return fail(p, what);
        }
    }
    return n;
}

static struct node *member(struct parser *p)
{
    struct node *n = primary(p);
    while (n && !p->failed) {
        if (take(p, "[")) {
            struct node *i = node_new(p, N_INDEX);
            if (!i)
                return NULL;
            i->a = n;
            i->b = ternary(p);
            i->type = n->type && p->types->items ? p->types->items(n->type) : NULL;
            expect(p, "]");
            n = i;
            continue;
        }
        skip(p);
        if (p->p[0] == '.' && p->p[1] == '?')
            return fail(p, "optional selection is not supported");
        if (!take(p, "."))
            break;
        struct str name = ident(p);
        if (name.n == 0)
            return fail(p, "a field name is expected");
        if (!take(p, "(")) {
            n = select_field(p, n, name);
            continue;
        }
        int which = macro_of(name);
        n = which >= 0 ? macro(p, which, n) : call(p, name, n);
    }
    return p->failed ? NULL : n;
}

static struct node *unary(struct parser *p)
{
    bool not = take(p, "!");
    if (!not &&!take(p, "-"))
        return member(p);
    struct node *n = node_new(p, not ? N_NOT : N_NEG);
    if (++p->depth > CEL_MAX_DEPTH)
        return fail(p, "nested too deeply");
    struct node *a = unary(p);
    p->depth--;
    if (n)
        n->a = a;
    return p->failed ? NULL : n;
}

/* Left-associative binary operators, by rising precedence. */
static const struct level {
    struct {
        const char *text;
        int op;
    } ops[8];
} levels[] = {
    {{{"==", B_EQ},
      {"!=", B_NE},
      {"<=", B_LE},
      {">=", B_GE},
      {"<", B_LT},
      {">", B_GT},
      {"in", B_IN}}},
    {{{"+", B_ADD}, {"-", B_SUB}}},
    {{{"*", B_MUL}, {"/", B_DIV}, {"%", B_MOD}}},
};

static struct node *binary(struct parser *p, size_t level)
{
    if (level == sizeof levels / sizeof *levels)
        return unary(p);
    struct node *n = binary(p, level + 1);
    while (n && !p->failed) {
        int i = 0;
        while (i < 8 && levels[level].ops[i].text && !take(p, levels[level].ops[i].text))
            i++;
        if (i == 8 || !levels[level].ops[i].text)
            break;
        struct node *x = node_new(p, N_BINARY);
        if (!x)
            return NULL;
        x->op = levels[level].ops[i].op;
        x->a = n;
        x->b = binary(p, level + 1);
        n = x;
    }
    return p->failed ? NULL : n;
}

static struct node *logical(struct parser *p, bool is_or)
{
    struct node *n = is_or ? logical(p, false) : binary(p, 0);
    while (n && !p->failed && take(p, is_or ? "||" : "&&")) {
        struct node *x = node_new(p, is_or ? N_OR : N_AND);
        if (!x)
            return NULL;
        x->a = n;
        x->b = is_or ? logical(p, false) : binary(p, 0);
        n = x;
    }
    return p->failed ? NULL : n;
}

static struct node *ternary(struct parser *p)
{
    if (++p->depth > CEL_MAX_DEPTH)
        return fail(p, "nested too deeply");
    struct node *n = logical(p, true);
    if (n && take(p, "?")) {
        struct node *x = node_new(p, N_COND);
        if (!x)
            return NULL;
        x->a = n;
        x->b = logical(p, true);
        expect(p, ":");
        x->c = ternary(p);
        n = x;
    }
    p->depth--;
    return p->failed ? NULL : n;
}

int cel_compile(const char *expression, const struct cel_types *types, struct cel **out,
                struct err *e)
{
    static const struct cel_types none;
    struct cel *c = xcalloc(1, sizeof *c);
    arena_init(&c->arena, 1 << 20);
    c->literals = json_array();
    struct parser p = {.c = c,
                       .start = expression,
                       .p = expression,
                       .types = types ? types : &none,
                       .e = e,
                       .n_vars = 2};
    p.vars[0] = (struct var){"self", p.types->self};
    p.vars[1] = (struct var){"oldSelf", p.types->self};
    c->root = ternary(&p);
    skip(&p);
    if (!p.failed && *p.p)
        fail(&p, "an operator or the end is expected");
    if (p.failed) {
        cel_free(c);
        return -EINVAL;
    }
    *out = c;
    return 0;
}

void cel_free(struct cel *c)
{
    if (!c)
        return;
    json_decref(c->literals);
    arena_fini(&c->arena);
    free(c);
}

bool cel_uses_old_self(const struct cel *c)
{
    return c->old_self;
}

static bool node_may_be_bool(const struct node *n)
{
    switch (n->kind) {
    case N_LITERAL: return json_is_boolean(n->literal);
    case N_NEG:
    case N_LIST:
    case N_MAP: return false;
    case N_BINARY: return n->op <= B_IN;
    case N_MACRO: return n->op != M_MAP && n->op != M_FILTER;
    case N_CALL: return n->fn->to_bool;
    case N_COND: return node_may_be_bool(n->b) && node_may_be_bool(n->c);
    default: return true;
    }
}

bool cel_may_be_bool(const struct cel *c)
{
    return node_may_be_bool(c->root);
}
