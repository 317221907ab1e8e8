/* Expressions and calls. */
#include "lib/llm/jinja.h"

#include <errno.h>
#include <string.h>

bool jinja_lookup(const struct render *r, struct str name, struct val *out)
{
    for (const struct scope *s = r->scope; s; s = s->up)
        for (size_t i = s->n; i-- > 0;)
            if (str_eq(s->b[i].name, name)) {
                *out = s->b[i].v;
                return true;
            }
    return false;
}

int jinja_set(struct render *r, struct scope *s, struct str name, struct val v)
{
    for (size_t i = 0; i < s->n; i++)
        if (str_eq(s->b[i].name, name)) {
            s->b[i].v = v;
            return 0;
        }
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 8;
        struct binding *b = arena_alloc(&r->a, cap * sizeof *b);
        if (!b)
            return jinja_no_memory(r);
        if (s->n)
            memcpy(b, s->b, s->n * sizeof *b);
        s->b = b;
        s->cap = cap;
    }
    s->b[s->n++] = (struct binding){name, v};
    return 0;
}

static int eval_name(struct render *r, const struct node *n, struct val *out)
{
    if (jinja_lookup(r, n->name, out))
        return 0;
    if (jinja_is_global(n->name)) {
        *out = (struct val){.kind = V_FUNCTION, .s = n->name};
        return 0;
    }
    char *what = arena_printf(&r->a, "'%.*s' is undefined",
                              (int)(n->name.n > 100 ? 100 : n->name.n), n->name.p);
    if (!what)
        return jinja_no_memory(r);
    *out = v_undefined(str_c(what));
    return 0;
}

static int eval_list(struct render *r, const struct node *n, struct val *out)
{
    int rc = v_new_list(r, n->kind == N_TUPLE, out);
    for (size_t i = 0; i < n->list.n && !rc; i++) {
        struct val v;
        rc = jinja_eval(r, n->list.v[i], &v);
        if (!rc)
            rc = v_push(r, out->l, v);
    }
    return rc;
}

static int eval_dict(struct render *r, const struct node *n, struct val *out)
{
    int rc = v_new_dict(r, out);
    for (size_t i = 0; i + 1 < n->list.n && !rc; i += 2) {
        struct val k, v;
        rc = jinja_eval(r, n->list.v[i], &k);
        if (!rc && (k.kind == V_LIST || k.kind == V_DICT))
            rc = jinja_fail(r, EINVAL, "a %s can't be a key", v_kind_name(&k));
        if (!rc)
            rc = jinja_eval(r, n->list.v[i + 1], &v);
        if (!rc)
            rc = v_put(r, out->d, k, v);
    }
    return rc;
}

static int eval_compare(struct render *r, const struct node *n, struct val *out)
{
    struct val left, right;
    int rc = jinja_eval(r, n->list.v[0], &left), order = 0;
    bool yes = true;
    for (size_t i = 0; i + 1 < n->list.n && yes && !rc; i++, left = right) {
        enum op op = n->ops[i];
        rc = jinja_eval(r, n->list.v[i + 1], &right);
        if (rc)
            return rc;
        if (op == OP_EQ || op == OP_NE)
            yes = v_equal(&left, &right, 0) == (op == OP_EQ);
        else if (op == OP_IN || op == OP_NOT_IN) {
            rc = jinja_contains(r, &right, &left, &yes);
            yes = yes == (op == OP_IN);
        } else {
            if (left.kind == V_UNDEFINED || right.kind == V_UNDEFINED)
                return jinja_fail(r, EINVAL, "%.*s",
                                  STR_ARG(left.kind == V_UNDEFINED ? left.s : right.s));
            rc = v_order(r, &left, &right, &order);
            yes = op == OP_LT   ? order < 0
                  : op == OP_LE ? order <= 0
                  : op == OP_GT ? order > 0
                                : order >= 0;
        }
    }
    *out = v_bool(yes);
    return rc;
}

static int eval_concat(struct render *r, const struct node *n, struct val *out)
{
    struct buf b = v_buf(r);
    int rc = 0;
    for (size_t i = 0; i < n->list.n && !rc; i++) {
        struct val v;
        rc = jinja_eval(r, n->list.v[i], &v);
        if (!rc)
            rc = v_print(r, &v, &b);
    }
    if (!rc)
        return v_take(r, &b, out);
    buf_fini(&b);
    return rc;
}

static int eval_slice(struct render *r, const struct node *n, struct val *out)
{
    struct val v, part[3];
    const struct node *from[3] = {n->b, n->c, n->list.n ? n->list.v[0] : NULL};
    int rc = jinja_eval(r, n->a, &v);
    for (int i = 0; i < 3 && !rc; i++)
        rc = from[i] ? jinja_eval(r, from[i], &part[i]) : 0;
    return rc ? rc
              : jinja_slice(r, &v, from[0] ? &part[0] : NULL, from[1] ? &part[1] : NULL,
                            from[2] ? &part[2] : NULL, out);
}

int jinja_eval_args(struct render *r, const struct node *n, struct args *out)
{
    int rc = 0;
    out->n = out->n_kw = 0;
    for (size_t i = 0; i < n->n_args && !rc; i++) {
        struct val v;
        rc = jinja_eval(r, n->args[i].value, &v);
        if (rc)
            break;
        if (n->args[i].name.n)
            out->kw[out->n_kw++] = (struct binding){n->args[i].name, v};
        else
            out->v[out->n++] = v;
    }
    return rc;
}

const struct val *jinja_arg(const struct args *a, size_t i, const char *name)
{
    if (i < a->n)
        return &a->v[i];
    for (size_t k = 0; k < a->n_kw; k++)
        if (str_eq_c(a->kw[k].name, name))
            return &a->kw[k].v;
    return NULL;
}

int jinja_call(struct render *r, const struct val *f, const struct args *a, struct val *out)
{
    switch (f->kind) {
    case V_FUNCTION: return jinja_global(r, f->s, a, out);
    case V_METHOD: return jinja_method(r, f->method, a, out);
    case V_MACRO: return jinja_call_macro(r, f->macro, a, NULL, out);
    case V_UNDEFINED:
        return jinja_fail(r, EINVAL, "%.*s", (int)(f->s.n > 200 ? 200 : f->s.n), f->s.p);
    default: return jinja_fail(r, EINVAL, "'%s' object is not callable", v_kind_name(f));
    }
}

/* The functions below that hold a struct args on the stack are kept out of jinja_eval, whose frames
 * nest. */
static __attribute__((noinline)) int eval_call(struct render *r, const struct node *n,
                                               struct val *out)
{
    struct args a;
    struct val f;
    int rc = jinja_eval(r, n->a, &f);
    if (!rc)
        rc = jinja_eval_args(r, n, &a);
    r->line = n->line;
    return rc ? rc : jinja_call(r, &f, &a, out);
}

static __attribute__((noinline)) int eval_filter(struct render *r, const struct node *n,
                                                 struct val *out)
{
    struct args a;
    struct val v;
    int rc = jinja_eval(r, n->a, &v);
    if (!rc)
        rc = jinja_eval_args(r, n, &a);
    r->line = n->line;
    return rc ? rc : jinja_filter(r, n->name, &v, &a, out);
}

static __attribute__((noinline)) int eval_test(struct render *r, const struct node *n,
                                               struct val *out)
{
    struct args a;
    struct val v;
    bool yes = false;
    int rc = jinja_eval(r, n->a, &v);
    if (!rc)
        rc = jinja_eval_args(r, n, &a);
    if (!rc)
        rc = jinja_test(r, n->name, &v, &a, &yes);
    *out = v_bool(yes);
    return rc;
}

static int eval_sign(struct render *r, const struct node *n, struct val *out)
{
    struct val v, zero = v_int(0);
    double f;
    int rc = jinja_eval(r, n->a, &v);
    if (rc)
        return rc;
    if (v_number(&v, &f))
        return jinja_fail(r, EINVAL, "bad operand type for unary %s: %s",
                          n->kind == N_NEG ? "-" : "+", v_kind_name(&v));
    if (v.kind == V_FLOAT) {
        *out = (struct val){.kind = V_FLOAT, .f = n->kind == N_NEG ? -f : f};
        return 0;
    }
    return jinja_binary(r, n->kind == N_NEG ? OP_SUB : OP_ADD, &zero, &v, out);
}

static int eval_logic(struct render *r, const struct node *n, struct val *out)
{
    int rc = jinja_eval(r, n->a, out);
    if (!rc && v_truth(out) == (n->kind == N_AND))
        rc = jinja_eval(r, n->b, out);
    return rc;
}

static int eval_cond(struct render *r, const struct node *n, struct val *out)
{
    struct val c;
    int rc = jinja_eval(r, n->b, &c);
    if (rc)
        return rc;
    if (v_truth(&c))
        return jinja_eval(r, n->a, out);
    if (n->c)
        return jinja_eval(r, n->c, out);
    *out = v_undefined(
        STR("the inline if-expression evaluated to false and no else section was defined"));
    return 0;
}

static int eval_two(struct render *r, const struct node *n, struct val *out)
{
    struct val a, b;
    int rc = jinja_eval(r, n->a, &a);
    if (!rc && n->b)
        rc = jinja_eval(r, n->b, &b);
    if (rc)
        return rc;
    r->line = n->line;
    switch (n->kind) {
    case N_ATTR: return jinja_attr(r, &a, n->name, out);
    case N_ITEM: return jinja_item(r, &a, &b, out);
    case N_NOT: *out = v_bool(!v_truth(&a)); return 0;
    default: return jinja_binary(r, n->op, &a, &b, out);
    }
}

static int eval_kind(struct render *r, const struct node *n, struct val *out)
{
    switch (n->kind) {
    case N_CONST: *out = n->value; return 0;
    case N_NAME: return eval_name(r, n, out);
    case N_LIST:
    case N_TUPLE: return eval_list(r, n, out);
    case N_DICT: return eval_dict(r, n, out);
    case N_SLICE: return eval_slice(r, n, out);
    case N_CALL: return eval_call(r, n, out);
    case N_FILTER: return eval_filter(r, n, out);
    case N_TEST: return eval_test(r, n, out);
    case N_NEG:
    case N_POS: return eval_sign(r, n, out);
    case N_AND:
    case N_OR: return eval_logic(r, n, out);
    case N_COND: return eval_cond(r, n, out);
    case N_COMPARE: return eval_compare(r, n, out);
    case N_CONCAT: return eval_concat(r, n, out);
    default: return eval_two(r, n, out);
    }
}

int jinja_eval(struct render *r, const struct node *n, struct val *out)
{
    int rc = jinja_charge(r, 1);
    if (rc)
        return rc;
    if (++r->depth > JINJA_MAX_DEPTH)
        rc = jinja_fail(r, E2BIG, "an expression is nested deeper than %d levels", JINJA_MAX_DEPTH);
    else
        rc = eval_kind(r, n, out);
    r->depth--;
    return rc;
}
