/* Tokens to a syntax tree: statements here, expressions in jinja_expr.c. Names of filters, tests
 * and tags that aren't supported are refused when the template is compiled, with the line. */
#include "lib/llm/jinja_parse.h"

#include <errno.h>

struct node *jinja_node(struct parse *p, enum node_kind kind)
{
    struct node *n = arena_calloc(p->a, sizeof *n);
    if (!n) {
        err_set(p->e, E2BIG, "the chat template is too large");
        return NULL;
    }
    n->kind = kind;
    n->line = p->t->line;
    return n;
}

int jinja_push(struct parse *p, struct nodes *l, struct node *n)
{
    if (!n)
        return -E2BIG;
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        struct node **v = arena_alloc(p->a, cap * sizeof(struct node *));
        if (!v)
            return err_set(p->e, E2BIG, "the chat template is too large");
        if (l->n)
            memcpy(v, l->v, l->n * sizeof(struct node *));
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
    return 0;
}

int jinja_syntax(struct parse *p, const char *what)
{
    struct str s = p->t->s;
    if (p->t->kind == T_END || !s.n)
        return err_set(p->e, EINVAL, "chat template line %u: %s", p->t->line, what);
    return err_set(p->e, EINVAL, "chat template line %u: %s, not \"%.*s\"", p->t->line, what,
                   (int)(s.n > 40 ? 40 : s.n), s.p);
}

bool jinja_at_op(const struct parse *p, const char *op)
{
    return p->t->kind == T_OP && str_eq_c(p->t->s, op);
}

bool jinja_at_name(const struct parse *p, const char *name)
{
    return p->t->kind == T_NAME && str_eq_c(p->t->s, name);
}

bool jinja_take_op(struct parse *p, const char *op)
{
    bool yes = jinja_at_op(p, op);
    p->t += yes;
    return yes;
}

bool jinja_take_name(struct parse *p, const char *name)
{
    bool yes = jinja_at_name(p, name);
    p->t += yes;
    return yes;
}

int jinja_need_op(struct parse *p, const char *op)
{
    char what[32] = "expected ";
    if (jinja_take_op(p, op))
        return 0;
    strncat(what, op, 8);
    return jinja_syntax(p, what);
}

static int need_block_end(struct parse *p)
{
    if (p->t->kind != T_BLOCK_END)
        return jinja_syntax(p, "expected the end of the tag");
    p->t++;
    return 0;
}

static int take_identifier(struct parse *p, struct str *out)
{
    if (p->t->kind != T_NAME)
        return jinja_syntax(p, "expected a name");
    *out = p->t->s;
    p->t++;
    return 0;
}

static int parse_body(struct parse *p, const char *const *ends, struct nodes *out,
                      struct str *which);

/* A body up to one end tag, that tag included. */
static int parse_until(struct parse *p, const char *end, struct nodes *out)
{
    const char *const ends[] = {end, NULL};
    struct str which;
    int rc = parse_body(p, ends, out, &which);
    return rc ? rc : need_block_end(p);
}

/* ---- targets: name, name.attr, tuples of names ---- */

static int parse_target_one(struct parse *p, bool attrs, struct node **out)
{
    struct node *n = jinja_node(p, N_NAME);
    if (!n)
        return -E2BIG;
    if (jinja_take_op(p, "(")) {
        int rc = jinja_target(p, attrs, out);
        return rc ? rc : jinja_need_op(p, ")");
    }
    int rc = take_identifier(p, &n->name);
    if (!rc && attrs && jinja_take_op(p, ".")) {
        struct node *attr = jinja_node(p, N_ATTR);
        if (!attr)
            return -E2BIG;
        attr->a = n;
        rc = take_identifier(p, &attr->name);
        n = attr;
    }
    *out = n;
    return rc;
}

int jinja_target(struct parse *p, bool attrs, struct node **out)
{
    struct node *one, *tuple = NULL;
    int rc = parse_target_one(p, attrs, &one);
    while (!rc && jinja_take_op(p, ",")) {
        if (!tuple) {
            tuple = jinja_node(p, N_TUPLE);
            rc = tuple ? jinja_push(p, &tuple->list, one) : -E2BIG;
        }
        if (!rc && p->t->kind == T_NAME && !jinja_at_name(p, "in"))
            rc = parse_target_one(p, attrs, &one);
        else
            break;
        if (!rc)
            rc = jinja_push(p, &tuple->list, one);
    }
    *out = tuple ? tuple : one;
    return rc;
}

/* ---- statements ---- */

static int parse_if(struct parse *p, struct node **out)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct node *n = jinja_node(p, N_IF);
    struct str which;
    if (!n)
        return -E2BIG;
    *out = n;
    int rc = jinja_tuple(p, true, &n->a);
    if (!rc)
        rc = need_block_end(p);
    if (!rc)
        rc = parse_body(p, ends, &n->body, &which);
    if (rc)
        return rc;
    if (str_eq_c(which, "elif")) {
        struct node *inner;
        rc = jinja_enter(p);
        if (!rc)
            rc = parse_if(p, &inner);
        p->depth--;
        return rc ? rc : jinja_push(p, &n->otherwise, inner);
    }
    rc = need_block_end(p);
    return rc || str_eq_c(which, "endif") ? rc : parse_until(p, "endif", &n->otherwise);
}

static int parse_for(struct parse *p, struct node **out)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    struct node *n = jinja_node(p, N_FOR);
    struct str which;
    if (!n)
        return -E2BIG;
    *out = n;
    int rc = jinja_target(p, false, &n->a);
    if (!rc && !jinja_take_name(p, "in"))
        rc = jinja_syntax(p, "expected \"in\"");
    if (!rc)
        rc = jinja_tuple(p, false, &n->b);
    if (!rc && jinja_take_name(p, "if"))
        rc = jinja_expression(p, &n->c);
    if (!rc && jinja_at_name(p, "recursive"))
        rc = jinja_syntax(p, "recursive loops are not supported");
    if (!rc)
        rc = need_block_end(p);
    p->loops++;
    if (!rc)
        rc = parse_body(p, ends, &n->body, &which);
    p->loops--;
    if (!rc)
        rc = need_block_end(p);
    return rc || str_eq_c(which, "endfor") ? rc : parse_until(p, "endfor", &n->otherwise);
}

static int parse_set(struct parse *p, struct node **out)
{
    struct node *n = jinja_node(p, N_SET);
    if (!n)
        return -E2BIG;
    *out = n;
    int rc = jinja_target(p, true, &n->a);
    if (!rc && jinja_take_op(p, "=")) {
        rc = jinja_tuple(p, true, &n->b);
        return rc ? rc : need_block_end(p);
    }
    n->kind = N_SET_BLOCK;
    if (!rc && jinja_at_op(p, "|"))
        rc = jinja_filters(p, NULL, &n->b);
    if (!rc)
        rc = need_block_end(p);
    return rc ? rc : parse_until(p, "endset", &n->body);
}

/* (a, b=1) of a macro or a call block. */
static int parse_parameters(struct parse *p, struct node *n)
{
    struct arg args[JINJA_MAX_ARGS];
    size_t k = 0;
    int rc = jinja_need_op(p, "(");
    while (!rc && !jinja_at_op(p, ")")) {
        if (k == JINJA_MAX_ARGS)
            return jinja_syntax(p, "too many parameters");
        args[k] = (struct arg){0};
        rc = take_identifier(p, &args[k].name);
        if (!rc && jinja_take_op(p, "="))
            rc = jinja_expression(p, &args[k].value);
        k++;
        if (!rc && !jinja_take_op(p, ","))
            break;
    }
    if (!rc)
        rc = jinja_need_op(p, ")");
    return rc ? rc : jinja_keep_args(p, n, args, k);
}

static int parse_macro(struct parse *p, struct node **out)
{
    struct node *n = jinja_node(p, N_MACRO);
    if (!n)
        return -E2BIG;
    *out = n;
    int rc = take_identifier(p, &n->name);
    if (!rc)
        rc = parse_parameters(p, n);
    if (!rc)
        rc = need_block_end(p);
    int loops = p->loops;
    p->loops = 0;
    if (!rc)
        rc = parse_until(p, "endmacro", &n->body);
    p->loops = loops;
    return rc;
}

static int parse_call_block(struct parse *p, struct node **out)
{
    struct node *n = jinja_node(p, N_CALL_BLOCK);
    if (!n)
        return -E2BIG;
    *out = n;
    int rc = jinja_at_op(p, "(") ? parse_parameters(p, n) : 0;
    if (!rc)
        rc = jinja_expression(p, &n->a);
    if (!rc && n->a->kind != N_CALL)
        rc = jinja_syntax(p, "expected a call");
    if (!rc)
        rc = need_block_end(p);
    return rc ? rc : parse_until(p, "endcall", &n->body);
}

static int parse_filter_block(struct parse *p, struct node **out)
{
    struct node *n = jinja_node(p, N_FILTER_BLOCK);
    if (!n)
        return -E2BIG;
    *out = n;
    int rc = jinja_first_filter(p, &n->a);
    if (!rc)
        rc = need_block_end(p);
    return rc ? rc : parse_until(p, "endfilter", &n->body);
}

/* {% with a = 1, b = 2 %}: list holds targets and values in turn. */
static int parse_with(struct parse *p, struct node **out)
{
    struct node *n = jinja_node(p, N_WITH), *target, *value;
    int rc = n ? 0 : -E2BIG;
    *out = n;
    while (!rc && p->t->kind != T_BLOCK_END) {
        if (n->list.n && (rc = jinja_need_op(p, ",")))
            break;
        rc = parse_target_one(p, false, &target);
        if (!rc)
            rc = jinja_need_op(p, "=");
        if (!rc)
            rc = jinja_expression(p, &value);
        if (!rc)
            rc = jinja_push(p, &n->list, target);
        if (!rc)
            rc = jinja_push(p, &n->list, value);
    }
    if (!rc)
        rc = need_block_end(p);
    return rc ? rc : parse_until(p, "endwith", &n->body);
}

static int parse_jump(struct parse *p, enum node_kind kind, struct node **out)
{
    if (!p->loops)
        return jinja_syntax(p, "break and continue are for loops");
    *out = jinja_node(p, kind);
    return *out ? need_block_end(p) : -E2BIG;
}

/* {% generation %} marks the assistant's tokens for training: its body is rendered as it stands. */
static int parse_generation(struct parse *p, struct nodes *out)
{
    int rc = need_block_end(p);
    return rc ? rc : parse_until(p, "endgeneration", out);
}

static int parse_statement(struct parse *p, struct str tag, struct nodes *out)
{
    struct node *n = NULL;
    int rc;
    if (str_eq_c(tag, "generation"))
        return parse_generation(p, out);
    if (str_eq_c(tag, "if"))
        rc = parse_if(p, &n);
    else if (str_eq_c(tag, "for"))
        rc = parse_for(p, &n);
    else if (str_eq_c(tag, "set"))
        rc = parse_set(p, &n);
    else if (str_eq_c(tag, "macro"))
        rc = parse_macro(p, &n);
    else if (str_eq_c(tag, "call"))
        rc = parse_call_block(p, &n);
    else if (str_eq_c(tag, "filter"))
        rc = parse_filter_block(p, &n);
    else if (str_eq_c(tag, "with"))
        rc = parse_with(p, &n);
    else if (str_eq_c(tag, "break"))
        rc = parse_jump(p, N_BREAK, &n);
    else if (str_eq_c(tag, "continue"))
        rc = parse_jump(p, N_CONTINUE, &n);
    else {
        p->t--;
        return jinja_syntax(p, "expected a tag that is supported");
    }
    return rc ? rc : jinja_push(p, out, n);
}

static int parse_output(struct parse *p, struct nodes *out)
{
    struct node *n = jinja_node(p, N_OUTPUT);
    if (!n)
        return -E2BIG;
    p->t++;
    int rc = jinja_tuple(p, true, &n->a);
    if (!rc && p->t->kind != T_VAR_END)
        rc = jinja_syntax(p, "expected the end of the expression");
    p->t++;
    return rc ? rc : jinja_push(p, out, n);
}

static bool is_end(const char *const *ends, struct str tag)
{
    for (; ends && *ends; ends++)
        if (str_eq_c(tag, *ends))
            return true;
    return false;
}

int jinja_enter(struct parse *p)
{
    if (++p->depth > JINJA_MAX_DEPTH)
        return jinja_syntax(p, "the nesting is too deep");
    return 0;
}

/* Statements until one of the end tags, whose name is taken; its other tokens are left. ends NULL:
 * to the end of it all. */
static int parse_body(struct parse *p, const char *const *ends, struct nodes *out,
                      struct str *which)
{
    int rc = jinja_enter(p);
    while (!rc && p->t->kind != T_END) {
        if (p->t->kind == T_TEXT) {
            struct node *n = jinja_node(p, N_TEXT);
            rc = jinja_push(p, out, n);
            if (!rc)
                n->name = p->t->s;
            p->t++;
        } else if (p->t->kind == T_VAR_BEGIN) {
            rc = parse_output(p, out);
        } else {
            struct str tag;
            p->t++;
            rc = take_identifier(p, &tag);
            if (!rc && is_end(ends, tag)) {
                *which = tag;
                p->depth--;
                return 0;
            }
            if (!rc)
                rc = parse_statement(p, tag, out);
        }
    }
    p->depth--;
    if (!rc && ends)
        rc = jinja_syntax(p, "the template ends inside a block");
    return rc;
}

int jinja_parse(struct chat_template *t, struct err *e)
{
    struct toks toks = {0};
    struct str which;
    int rc = jinja_lex(&t->a, t->source, &toks, e);
    if (rc)
        return rc;
    struct parse p = {.a = &t->a, .t = toks.v, .e = e};
    return parse_body(&p, NULL, &t->body, &which);
}
