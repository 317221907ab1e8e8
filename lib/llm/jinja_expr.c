/* Expressions. Precedence as in jinja2/parser.py: inline if, or, and, not, comparison, + -, ~, * /
 * // %, **, unary, then postfix, filters and tests. */
#include "lib/llm/jinja_parse.h"

#include <errno.h>

static int parse_unary(struct parse *p, bool with_filter, struct node **out);
static int parse_primary(struct parse *p, struct node **out);
static int parse_postfix(struct parse *p, struct node *on, struct node **out);

int jinja_keep_args(struct parse *p, struct node *n, const struct arg *args, size_t n_args)
{
    n->args = arena_alloc(p->a, (n_args ? n_args : 1) * sizeof *args);
    if (!n->args)
        return err_set(p->e, E2BIG, "the chat template is too large");
    if (n_args)
        memcpy(n->args, args, n_args * sizeof *args);
    n->n_args = n_args;
    return 0;
}

static int two(struct parse *p, enum node_kind kind, enum op op, struct node *a, struct node *b,
               struct node **out)
{
    struct node *n = jinja_node(p, kind);
    if (!n)
        return -E2BIG;
    n->op = op;
    n->a = a;
    n->b = b;
    *out = n;
    return 0;
}

/* ---- calls, filters, tests ---- */

/* After "(": arguments to ")". */
static int parse_args(struct parse *p, struct node *n)
{
    struct arg args[JINJA_MAX_ARGS];
    size_t k = 0;
    int rc = 0;
    while (!rc && !jinja_at_op(p, ")")) {
        if (k == JINJA_MAX_ARGS)
            return jinja_syntax(p, "too many arguments");
        args[k] = (struct arg){0};
        if (p->t->kind == T_NAME && p->t[1].kind == T_OP && str_eq_c(p->t[1].s, "=")) {
            args[k].name = p->t->s;
            p->t += 2;
        } else if (jinja_at_op(p, "*") || jinja_at_op(p, "**")) {
            return jinja_syntax(p, "expected an argument");
        }
        rc = jinja_expression(p, &args[k++].value);
        if (!rc && !jinja_take_op(p, ","))
            break;
    }
    if (!rc)
        rc = jinja_need_op(p, ")");
    return rc ? rc : jinja_keep_args(p, n, args, k);
}

static int parse_filter_name(struct parse *p, struct node *on, struct node **out)
{
    struct node *n = jinja_node(p, N_FILTER);
    if (!n)
        return -E2BIG;
    if (p->t->kind != T_NAME || !jinja_is_filter(p->t->s))
        return jinja_syntax(p, "expected a filter that is supported");
    n->name = p->t->s;
    n->a = on;
    p->t++;
    *out = n;
    return jinja_take_op(p, "(") ? parse_args(p, n) : 0;
}

int jinja_filters(struct parse *p, struct node *on, struct node **out)
{
    int rc = 0;
    *out = on;
    while (!rc && jinja_take_op(p, "|"))
        rc = parse_filter_name(p, *out, out);
    return rc;
}

int jinja_first_filter(struct parse *p, struct node **out)
{
    struct node *first;
    int rc = parse_filter_name(p, NULL, &first);
    return rc ? rc : jinja_filters(p, first, out);
}

static bool starts_test_argument(const struct parse *p)
{
    if (p->t->kind == T_OP)
        return jinja_at_op(p, "[") || jinja_at_op(p, "{");
    if (p->t->kind == T_NAME)
        return !jinja_at_name(p, "else") && !jinja_at_name(p, "or") && !jinja_at_name(p, "and") &&
               !jinja_at_name(p, "if") && !jinja_at_name(p, "is") && !jinja_at_name(p, "not") &&
               !jinja_at_name(p, "in");
    return p->t->kind == T_STRING || p->t->kind == T_INT || p->t->kind == T_FLOAT;
}

static int parse_test(struct parse *p, struct node *on, struct node **out)
{
    bool negated = jinja_take_name(p, "not");
    struct node *n = jinja_node(p, N_TEST);
    if (!n)
        return -E2BIG;
    bool is_op = jinja_at_op(p, "==") || jinja_at_op(p, "!=");
    if (!is_op && (p->t->kind != T_NAME || !jinja_is_test(p->t->s)))
        return jinja_syntax(p, "expected a test that is supported");
    n->name = p->t->s;
    n->a = on;
    p->t++;
    int rc = 0;
    if (jinja_take_op(p, "(")) {
        rc = parse_args(p, n);
    } else if (starts_test_argument(p)) {
        struct arg one = {0};
        rc = parse_primary(p, &one.value);
        if (!rc)
            rc = parse_postfix(p, one.value, &one.value);
        if (!rc)
            rc = jinja_keep_args(p, n, &one, 1);
    }
    *out = n;
    return rc || !negated ? rc : two(p, N_NOT, 0, n, NULL, out);
}

static int parse_filters_and_tests(struct parse *p, struct node *on, struct node **out)
{
    int rc = 0;
    *out = on;
    for (;;) {
        if (jinja_at_op(p, "|"))
            rc = jinja_filters(p, *out, out);
        else if (jinja_take_name(p, "is"))
            rc = parse_test(p, *out, out);
        else if (jinja_take_op(p, "(")) { /* a call of what a filter or test gave */
            struct node *n = NULL;
            rc = two(p, N_CALL, 0, *out, NULL, &n);
            if (!rc)
                rc = parse_args(p, n);
            *out = n;
        } else {
            return 0;
        }
        if (rc)
            return rc;
    }
}

/* ---- postfix ---- */

/* After "[": an index, or a slice "from:to:step". */
static int parse_subscript(struct parse *p, struct node *on, struct node **out)
{
    struct node *part[3] = {0};
    bool slice = false;
    int rc = 0;
    for (int i = 0; i < 3 && !rc; i++) {
        if (!jinja_at_op(p, ":") && !jinja_at_op(p, "]"))
            rc = jinja_expression(p, &part[i]);
        if (rc || !jinja_take_op(p, ":"))
            break;
        slice = true;
    }
    if (!rc)
        rc = jinja_need_op(p, "]");
    if (!rc && !slice && !part[0])
        rc = jinja_syntax(p, "expected an index");
    if (rc)
        return rc;
    rc = two(p, slice ? N_SLICE : N_ITEM, 0, on, part[0], out);
    if (rc || !slice)
        return rc;
    (*out)->c = part[1];
    return part[2] ? jinja_push(p, &(*out)->list, part[2]) : 0;
}

static int parse_dot(struct parse *p, struct node *on, struct node **out)
{
    if (p->t->kind == T_INT) { /* a.0 is a[0] */
        struct node *index = jinja_node(p, N_CONST);
        if (!index)
            return -E2BIG;
        index->value = v_int(p->t->i);
        p->t++;
        return two(p, N_ITEM, 0, on, index, out);
    }
    if (p->t->kind != T_NAME)
        return jinja_syntax(p, "expected a name after the dot");
    int rc = two(p, N_ATTR, 0, on, NULL, out);
    if (!rc)
        (*out)->name = p->t->s;
    p->t++;
    return rc;
}

static int parse_postfix(struct parse *p, struct node *on, struct node **out)
{
    int rc = 0;
    *out = on;
    while (!rc) {
        if (jinja_take_op(p, "."))
            rc = parse_dot(p, *out, out);
        else if (jinja_take_op(p, "["))
            rc = parse_subscript(p, *out, out);
        else if (jinja_take_op(p, "(")) {
            struct node *n = NULL;
            rc = two(p, N_CALL, 0, *out, NULL, &n);
            if (!rc)
                rc = parse_args(p, n);
            *out = n;
        } else
            break;
    }
    return rc;
}

/* ---- primary ---- */

static int parse_list(struct parse *p, struct node *n)
{
    struct node *item;
    int rc = 0;
    while (!rc && !jinja_at_op(p, "]")) {
        rc = jinja_expression(p, &item);
        if (!rc)
            rc = jinja_push(p, &n->list, item);
        if (!rc && !jinja_take_op(p, ","))
            break;
    }
    return rc ? rc : jinja_need_op(p, "]");
}

static int parse_dict(struct parse *p, struct node *n)
{
    struct node *item;
    int rc = 0;
    while (!rc && !jinja_at_op(p, "}")) {
        rc = jinja_expression(p, &item);
        if (!rc)
            rc = jinja_push(p, &n->list, item);
        if (!rc)
            rc = jinja_need_op(p, ":");
        if (!rc)
            rc = jinja_expression(p, &item);
        if (!rc)
            rc = jinja_push(p, &n->list, item);
        if (!rc && !jinja_take_op(p, ","))
            break;
    }
    return rc ? rc : jinja_need_op(p, "}");
}

static int parse_parens(struct parse *p, struct node *n, struct node **out)
{
    if (jinja_take_op(p, ")")) {
        n->kind = N_TUPLE;
        return 0;
    }
    int rc = jinja_tuple(p, true, out);
    return rc ? rc : jinja_need_op(p, ")");
}

static void parse_name(struct parse *p, struct node *n)
{
    struct str s = p->t->s;
    p->t++;
    if (str_eq_c(s, "true") || str_eq_c(s, "True"))
        n->value = v_bool(true);
    else if (str_eq_c(s, "false") || str_eq_c(s, "False"))
        n->value = v_bool(false);
    else if (str_eq_c(s, "none") || str_eq_c(s, "None"))
        n->value = v_none();
    else {
        n->kind = N_NAME;
        n->name = s;
    }
}

/* Adjacent string literals are one string. */
static int parse_strings(struct parse *p, struct node *n)
{
    size_t total = 0, at = 0;
    const struct tok *first = p->t;
    for (; p->t->kind == T_STRING; p->t++)
        total += p->t->s.n;
    char *text = arena_alloc(p->a, total + 1);
    if (!text)
        return err_set(p->e, E2BIG, "the chat template is too large");
    for (const struct tok *t = first; t < p->t; t++) {
        memcpy(text + at, t->s.p, t->s.n);
        at += t->s.n;
    }
    n->value = v_str((struct str){text, total});
    return 0;
}

static int parse_primary(struct parse *p, struct node **out)
{
    struct node *n = jinja_node(p, N_CONST);
    if (!n)
        return -E2BIG;
    *out = n;
    switch (p->t->kind) {
    case T_NAME: parse_name(p, n); return 0;
    case T_STRING: return parse_strings(p, n);
    case T_INT: n->value = v_int(p->t->i); break;
    case T_FLOAT: n->value = (struct val){.kind = V_FLOAT, .f = p->t->f}; break;
    default:
        if (jinja_take_op(p, "("))
            return parse_parens(p, n, out);
        n->kind = jinja_at_op(p, "[") ? N_LIST : N_DICT;
        if (jinja_take_op(p, "["))
            return parse_list(p, n);
        return jinja_take_op(p, "{") ? parse_dict(p, n) : jinja_syntax(p, "expected a value");
    }
    p->t++;
    return 0;
}

/* ---- operators ---- */

static int parse_unary(struct parse *p, bool with_filter, struct node **out)
{
    int rc = jinja_enter(p);
    enum node_kind sign = jinja_at_op(p, "-") ? N_NEG : N_POS;
    if (!rc && (jinja_take_op(p, "-") || jinja_take_op(p, "+"))) {
        struct node *n = NULL;
        rc = parse_unary(p, false, &n);
        if (!rc)
            rc = two(p, sign, 0, n, NULL, out);
    } else if (!rc) {
        rc = parse_primary(p, out);
    }
    if (!rc)
        rc = parse_postfix(p, *out, out);
    if (!rc && with_filter)
        rc = parse_filters_and_tests(p, *out, out);
    p->depth--;
    return rc;
}

static int parse_pow(struct parse *p, struct node **out)
{
    int rc = parse_unary(p, true, out);
    while (!rc && jinja_take_op(p, "**")) {
        struct node *right;
        rc = parse_unary(p, true, &right);
        if (!rc)
            rc = two(p, N_BINARY, OP_POW, *out, right, out);
    }
    return rc;
}

struct level {
    const char *token[4];
    enum op op[4];
};

static int parse_left(struct parse *p, const struct level *l,
                      int (*operand)(struct parse *, struct node **), struct node **out)
{
    int rc = operand(p, out);
    while (!rc) {
        size_t i = 0;
        while (i < 4 && l->token[i] && !jinja_at_op(p, l->token[i]))
            i++;
        if (i == 4 || !l->token[i])
            break;
        p->t++;
        struct node *right;
        rc = operand(p, &right);
        if (!rc)
            rc = two(p, N_BINARY, l->op[i], *out, right, out);
    }
    return rc;
}

static int parse_product(struct parse *p, struct node **out)
{
    static const struct level l = {{"*", "/", "//", "%"}, {OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD}};
    return parse_left(p, &l, parse_pow, out);
}

static int parse_concat(struct parse *p, struct node **out)
{
    struct node *first, *n = NULL;
    int rc = parse_product(p, &first);
    while (!rc && jinja_take_op(p, "~")) {
        struct node *next;
        if (!n) {
            n = jinja_node(p, N_CONCAT);
            rc = n ? jinja_push(p, &n->list, first) : -E2BIG;
        }
        if (!rc)
            rc = parse_product(p, &next);
        if (!rc)
            rc = jinja_push(p, &n->list, next);
    }
    *out = n ? n : first;
    return rc;
}

static int parse_sum(struct parse *p, struct node **out)
{
    static const struct level l = {{"+", "-"}, {OP_ADD, OP_SUB}};
    return parse_left(p, &l, parse_concat, out);
}

static bool take_comparison(struct parse *p, enum op *op)
{
    static const char *const token[] = {"==", "!=", "<", "<=", ">", ">="};
    for (size_t i = 0; i < 6; i++)
        if (jinja_take_op(p, token[i])) {
            *op = (enum op)(OP_EQ + i);
            return true;
        }
    if (jinja_take_name(p, "in")) {
        *op = OP_IN;
        return true;
    }
    if (jinja_at_name(p, "not") && p->t[1].kind == T_NAME && str_eq_c(p->t[1].s, "in")) {
        p->t += 2;
        *op = OP_NOT_IN;
        return true;
    }
    return false;
}

static int parse_compare(struct parse *p, struct node **out)
{
    struct node *first, *n = NULL, *next;
    enum op op, ops[JINJA_MAX_ARGS];
    size_t k = 0;
    int rc = parse_sum(p, &first);
    while (!rc && take_comparison(p, &op)) {
        if (k == JINJA_MAX_ARGS)
            return jinja_syntax(p, "too many comparisons in a chain");
        if (!n) {
            n = jinja_node(p, N_COMPARE);
            rc = n ? jinja_push(p, &n->list, first) : -E2BIG;
        }
        ops[k++] = op;
        if (!rc)
            rc = parse_sum(p, &next);
        if (!rc)
            rc = jinja_push(p, &n->list, next);
    }
    *out = n ? n : first;
    if (rc || !n)
        return rc;
    n->ops = arena_alloc(p->a, k * sizeof *ops);
    if (!n->ops)
        return err_set(p->e, E2BIG, "the chat template is too large");
    memcpy(n->ops, ops, k * sizeof *ops);
    return 0;
}

static int parse_not(struct parse *p, struct node **out)
{
    if (!jinja_at_name(p, "not"))
        return parse_compare(p, out);
    struct node *n;
    int rc = jinja_enter(p);
    p->t++;
    if (!rc)
        rc = parse_not(p, &n);
    p->depth--;
    return rc ? rc : two(p, N_NOT, 0, n, NULL, out);
}

static int parse_and(struct parse *p, struct node **out)
{
    int rc = parse_not(p, out);
    while (!rc && jinja_take_name(p, "and")) {
        struct node *right;
        rc = parse_not(p, &right);
        if (!rc)
            rc = two(p, N_AND, 0, *out, right, out);
    }
    return rc;
}

static int parse_or(struct parse *p, struct node **out)
{
    int rc = parse_and(p, out);
    while (!rc && jinja_take_name(p, "or")) {
        struct node *right;
        rc = parse_and(p, &right);
        if (!rc)
            rc = two(p, N_OR, 0, *out, right, out);
    }
    return rc;
}

int jinja_expression(struct parse *p, struct node **out)
{
    int rc = jinja_enter(p);
    if (!rc)
        rc = parse_or(p, out);
    while (!rc && jinja_take_name(p, "if")) {
        struct node *n = NULL;
        rc = two(p, N_COND, 0, *out, NULL, &n);
        if (!rc)
            rc = parse_or(p, &n->b);
        if (!rc && jinja_take_name(p, "else"))
            rc = jinja_expression(p, &n->c);
        *out = n;
    }
    p->depth--;
    return rc;
}

static bool ends_tuple(const struct parse *p)
{
    return p->t->kind == T_VAR_END || p->t->kind == T_BLOCK_END || jinja_at_op(p, ")") ||
           p->t->kind == T_END;
}

int jinja_tuple(struct parse *p, bool cond, struct node **out)
{
    struct node *item, *tuple = NULL;
    int rc = jinja_enter(p);
    if (!rc)
        rc = cond ? jinja_expression(p, &item) : parse_or(p, &item);
    while (!rc && jinja_take_op(p, ",")) {
        if (!tuple) {
            tuple = jinja_node(p, N_TUPLE);
            rc = tuple ? jinja_push(p, &tuple->list, item) : -E2BIG;
        }
        if (rc || ends_tuple(p))
            break;
        rc = cond ? jinja_expression(p, &item) : parse_or(p, &item);
        if (!rc)
            rc = jinja_push(p, &tuple->list, item);
    }
    p->depth--;
    *out = tuple ? tuple : rc ? NULL : item;
    return rc;
}
