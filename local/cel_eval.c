#include "local/cel_int.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

struct eval {
    struct value vars[CEL_MAX_VARS + 2];
    int steps;
    struct err *e;
};

static int eval(struct eval *ev, const struct node *n, struct value *out);

void value_fini(struct value *v)
{
    if (v->kind == V_JSON)
        json_decref(v->j);
    *v = (struct value){0};
}

static struct value of_json(json_t *j)
{
    return (struct value){.kind = V_JSON, .j = j};
}

static struct value of_bool(bool b)
{
    return of_json(json_boolean(b));
}

static bool json_equal_cel(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

bool value_equal(const struct value *a, const struct value *b)
{
    if (a->kind != b->kind)
        return false;
    return a->kind == V_JSON ? json_equal_cel(a->j, b->j) : a->num == b->num;
}

int value_compare(const struct value *a, const struct value *b, int *out, struct err *e)
{
    if (a->kind == b->kind && a->kind != V_JSON) {
        *out = a->num < b->num ? -1 : a->num > b->num;
        return 0;
    }
    if (a->kind == V_JSON && b->kind == V_JSON) {
        if (json_is_integer(a->j) && json_is_integer(b->j)) {
            json_int_t x = json_integer_value(a->j), y = json_integer_value(b->j);
            *out = x < y ? -1 : x > y;
            return 0;
        }
        if (json_is_number(a->j) && json_is_number(b->j)) {
            double x = json_number_value(a->j), y = json_number_value(b->j);
            *out = x < y ? -1 : x > y;
            return 0;
        }
        if (json_is_string(a->j) && json_is_string(b->j)) {
            *out = strcmp(json_string_value(a->j), json_string_value(b->j));
            return 0;
        }
        if (json_is_boolean(a->j) && json_is_boolean(b->j)) {
            *out = (int)json_is_true(a->j) - (int)json_is_true(b->j);
            return 0;
        }
    }
    return err_set(e, EINVAL, "no such overload: the two sides can't be compared");
}

/* 1, 0 or an error; a value that isn't a boolean is an error. */
static int eval_bool(struct eval *ev, const struct node *n)
{
    struct value v;
    int rc = eval(ev, n, &v);
    if (rc)
        return rc;
    rc = v.kind != V_JSON || !json_is_boolean(v.j)
             ? err_set(ev->e, EINVAL, "no such overload: a boolean is needed")
             : json_is_true(v.j);
    value_fini(&v);
    return rc;
}

/* && and ||: an error on one side is absorbed when the other side decides (CEL specification,
 * logical operators). */
static int logical(struct eval *ev, const struct node *n, bool decides)
{
    int a = eval_bool(ev, n->a);
    if (a >= 0 && (a != 0) == decides)
        return a;
    int b = eval_bool(ev, n->b);
    if (b >= 0 && (b != 0) == decides)
        return b;
    return a < 0 ? a : b;
}

static int select_field(struct eval *ev, const struct node *n, struct value *out)
{
    struct value a;
    int rc = eval(ev, n->a, &a);
    if (rc)
        return rc;
    json_t *v = a.kind == V_JSON ? json_object_get(a.j, n->name) : NULL;
    if (n->kind == N_HAS) {
        rc = a.kind == V_JSON && json_is_object(a.j)
                 ? 0
                 : err_set(ev->e, EINVAL, "has(): not an object");
        if (!rc)
            *out = of_bool(v && !json_is_null(v));
    } else if (!v) {
        rc = err_set(ev->e, ENOENT, "no such key: %s", n->name);
    } else {
        *out = of_json(json_incref(v));
    }
    value_fini(&a);
    return rc;
}

static int index_value(const struct value *a, const struct value *i, struct value *out,
                       struct err *e)
{
    json_t *v = NULL;
    if (a->kind != V_JSON || i->kind != V_JSON)
        return err_set(e, EINVAL, "no such overload: index");
    if (json_is_array(a->j) && json_is_integer(i->j) && json_integer_value(i->j) >= 0)
        v = json_array_get(a->j, (size_t)json_integer_value(i->j));
    else if (json_is_object(a->j) && json_is_string(i->j))
        v = json_object_get(a->j, json_string_value(i->j));
    if (!v)
        return err_set(e, ENOENT, "no such key or index out of bounds");
    *out = of_json(json_incref(v));
    return 0;
}

static int contains(const struct value *item, const struct value *in, struct value *out,
                    struct err *e)
{
    if (in->kind != V_JSON || item->kind != V_JSON)
        return err_set(e, EINVAL, "no such overload: in");
    if (json_is_object(in->j)) {
        const char *k = json_string_value(item->j);
        *out = of_bool(k && json_object_get(in->j, k));
        return 0;
    }
    if (!json_is_array(in->j))
        return err_set(e, EINVAL, "no such overload: in needs a list or a map");
    size_t i;
    json_t *v;
    json_array_foreach (in->j, i, v) {
        if (json_equal_cel(v, item->j)) {
            *out = of_bool(true);
            return 0;
        }
    }
    *out = of_bool(false);
    return 0;
}

static int integer_math(int op, json_int_t a, json_int_t b, struct value *out, struct err *e)
{
    json_int_t r = 0;
    bool bad = false;
    switch (op) {
    case B_ADD: bad = __builtin_add_overflow(a, b, &r); break;
    case B_SUB: bad = __builtin_sub_overflow(a, b, &r); break;
    case B_MUL: bad = __builtin_mul_overflow(a, b, &r); break;
    default:
        if (b == 0)
            return err_set(e, EINVAL, op == B_DIV ? "division by zero" : "modulus by zero");
        bad = b == -1 && a == INT64_MIN;
        r = bad ? 0 : op == B_DIV ? a / b : a % b;
    }
    if (bad)
        return err_set(e, ERANGE, "integer overflow");
    *out = of_json(json_integer(r));
    return 0;
}

static int add_json(const struct value *a, const struct value *b, struct value *out, struct err *e)
{
    if (json_is_string(a->j) && json_is_string(b->j)) {
        *out = of_json(json_sprintf("%s%s", json_string_value(a->j), json_string_value(b->j)));
        return 0;
    }
    if (json_is_array(a->j) && json_is_array(b->j)) {
        json_t *l = json_copy(a->j);
        if (!l || json_array_extend(l, b->j))
            return json_decref(l), err_set(e, ENOMEM, "out of memory");
        *out = of_json(l);
        return 0;
    }
    return err_set(e, EINVAL, "no such overload: +");
}

static int arithmetic(int op, const struct value *a, const struct value *b, struct value *out,
                      struct err *e)
{
    if (a->kind == V_JSON && b->kind == V_JSON) {
        if (json_is_integer(a->j) && json_is_integer(b->j))
            return integer_math(op, json_integer_value(a->j), json_integer_value(b->j), out, e);
        if (!json_is_real(a->j) || !json_is_real(b->j))
            return op == B_ADD ? add_json(a, b, out, e)
                               : err_set(e, EINVAL, "no such overload: arithmetic");
    } else if (a->kind != b->kind || (op != B_ADD && op != B_SUB)) {
        return err_set(e, EINVAL, "no such overload: arithmetic");
    }
    double x = a->kind == V_JSON ? json_real_value(a->j) : a->num,
           y = b->kind == V_JSON ? json_real_value(b->j) : b->num;
    if (op == B_MOD)
        return err_set(e, EINVAL, "no such overload: %% of doubles");
    double r = op == B_ADD ? x + y : op == B_SUB ? x - y : op == B_MUL ? x * y : x / y;
    *out = a->kind == V_JSON ? of_json(json_real(r)) : (struct value){.kind = a->kind, .num = r};
    return 0;
}

static int apply_binary(int op, const struct value *a, const struct value *b, struct value *out,
                        struct err *e)
{
    int order = 0, rc;
    switch (op) {
    case B_EQ: *out = of_bool(value_equal(a, b)); return 0;
    case B_NE: *out = of_bool(!value_equal(a, b)); return 0;
    case B_IN: return contains(a, b, out, e);
    case B_LT:
    case B_LE:
    case B_GT:
    case B_GE:
        rc = value_compare(a, b, &order, e);
        if (!rc)
            *out = of_bool(op == B_LT   ? order < 0
                           : op == B_LE ? order <= 0
                           : op == B_GT ? order > 0
                                        : order >= 0);
        return rc;
    default: return arithmetic(op, a, b, out, e);
    }
}

static int two_operands(struct eval *ev, const struct node *n, struct value *out)
{
    struct value a, b;
    int rc = eval(ev, n->a, &a);
    if (rc)
        return rc;
    rc = eval(ev, n->b, &b);
    if (!rc) {
        rc = n->kind == N_INDEX ? index_value(&a, &b, out, ev->e)
                                : apply_binary(n->op, &a, &b, out, ev->e);
        value_fini(&b);
    }
    value_fini(&a);
    return rc;
}

static int call(struct eval *ev, const struct node *n, struct value *out)
{
    struct value args[CEL_MAX_ARGS] = {0};
    int rc = 0, i = 0;
    for (; i < n->n_args && !rc; i++)
        rc = eval(ev, n->args[i], &args[i]);
    if (!rc)
        rc = n->fn->call(args, n->n_args, out, ev->e);
    else
        i--; /* the last one was not filled */
    while (i-- > 0)
        value_fini(&args[i]);
    return rc;
}

static int aggregate(struct eval *ev, const struct node *n, struct value *out)
{
    json_t *j = n->kind == N_LIST ? json_array() : json_object();
    int rc = 0;
    for (int i = 0; i < n->n_args && !rc; i += n->kind == N_LIST ? 1 : 2) {
        struct value k = {0}, v = {0};
        rc = eval(ev, n->args[i], &k);
        if (!rc && n->kind == N_MAP)
            rc = eval(ev, n->args[i + 1], &v);
        const struct value *item = n->kind == N_LIST ? &k : &v;
        if (!rc && item->kind != V_JSON)
            rc = err_set(ev->e, EINVAL, "no such overload: durations and quantities in lists");
        if (!rc && n->kind == N_LIST)
            rc = json_array_append(j, k.j) ? -ENOMEM : 0;
        else if (!rc)
            rc = k.kind == V_JSON && json_is_string(k.j)
                     ? json_object_set(j, json_string_value(k.j), v.j)
                     : err_set(ev->e, EINVAL, "map keys are strings");
        value_fini(&k);
        value_fini(&v);
    }
    if (rc)
        json_decref(j);
    else
        *out = of_json(j);
    return rc;
}

struct fold {
    int trues, errors;
    json_t *list;
};

static int fold_item(struct eval *ev, const struct node *n, json_t *item, struct fold *f)
{
    struct value v;
    int rc;
    if (n->op == M_MAP) {
        rc = n->c ? eval_bool(ev, n->b) : 1;
        if (rc <= 0)
            return rc;
        rc = eval(ev, n->c ? n->c : n->b, &v);
        if (rc)
            return rc;
        rc = v.kind == V_JSON ? json_array_append(f->list, v.j)
                              : err_set(ev->e, EINVAL, "no such overload: map()");
        value_fini(&v);
        return rc;
    }
    rc = eval_bool(ev, n->b);
    if (rc < 0) {
        if (n->op != M_ALL && n->op != M_EXISTS)
            return rc;
        f->errors++;
        return 0;
    }
    f->trues += rc;
    return n->op == M_FILTER && rc ? json_array_append(f->list, item) : 0;
}

/* all and exists absorb errors when another element decides, like && and ||. */
static int macro_result(const struct node *n, const struct fold *f, size_t count, struct eval *ev,
                        struct value *out)
{
    size_t trues = (size_t)f->trues, errors = (size_t)f->errors;
    switch (n->op) {
    case M_ALL:
        if (trues + errors == count && errors)
            return -ev->e->code;
        *out = of_bool(trues == count);
        return 0;
    case M_EXISTS:
        if (!trues && errors)
            return -ev->e->code;
        *out = of_bool(trues > 0);
        return 0;
    case M_EXISTS_ONE: *out = of_bool(trues == 1); return 0;
    default: *out = of_json(json_incref(f->list)); return 0;
    }
}

static int macro(struct eval *ev, const struct node *n, struct value *out)
{
    struct value range;
    int rc = eval(ev, n->a, &range);
    if (rc)
        return rc;
    struct fold f = {.list = json_array()};
    size_t i, count = 0;
    json_t *v;
    const char *key;
    if (range.kind == V_JSON && json_is_array(range.j)) {
        count = json_array_size(range.j);
        json_array_foreach (range.j, i, v) {
            ev->vars[n->slot] = of_json(v);
            rc = fold_item(ev, n, v, &f);
            if (rc)
                break;
        }
    } else if (range.kind == V_JSON && json_is_object(range.j)) {
        count = json_object_size(range.j);
        json_object_foreach (range.j, key, v) {
            CLEANUP(json_decrefp) json_t *k = json_string(key);
            ev->vars[n->slot] = of_json(k);
            rc = fold_item(ev, n, k, &f);
            if (rc)
                break;
        }
    } else {
        rc = err_set(ev->e, EINVAL, "no such overload: a macro needs a list or a map");
    }
    if (!rc)
        rc = macro_result(n, &f, count, ev, out);
    json_decref(f.list);
    value_fini(&range);
    return rc;
}

static int negate(struct eval *ev, const struct node *n, struct value *out)
{
    struct value a;
    int rc = eval(ev, n->a, &a);
    if (rc)
        return rc;
    if (a.kind != V_JSON)
        *out = (struct value){.kind = a.kind, .num = -a.num};
    else if (json_is_integer(a.j) && json_integer_value(a.j) != INT64_MIN)
        *out = of_json(json_integer(-json_integer_value(a.j)));
    else if (json_is_real(a.j))
        *out = of_json(json_real(-json_real_value(a.j)));
    else
        rc = err_set(ev->e, EINVAL, "no such overload: -");
    value_fini(&a);
    return rc;
}

static int eval(struct eval *ev, const struct node *n, struct value *out)
{
    int rc;
    if (++ev->steps > CEL_MAX_STEPS)
        return err_set(ev->e, E2BIG, "the expression takes more than %d steps", CEL_MAX_STEPS);
    switch (n->kind) {
    case N_LITERAL: *out = of_json(json_incref(n->literal)); return 0;
    case N_VAR:
        *out = ev->vars[n->slot];
        if (!out->j)
            return err_set(ev->e, ENOENT, "no such variable: oldSelf on create");
        json_incref(out->j);
        return 0;
    case N_SELECT:
    case N_HAS: return select_field(ev, n, out);
    case N_CALL: return call(ev, n, out);
    case N_LIST:
    case N_MAP: return aggregate(ev, n, out);
    case N_AND:
    case N_OR: rc = logical(ev, n, n->kind == N_OR); break;
    case N_NOT:
        rc = eval_bool(ev, n->a);
        rc = rc < 0 ? rc : !rc;
        break;
    case N_COND: rc = eval_bool(ev, n->a); return rc < 0 ? rc : eval(ev, rc ? n->b : n->c, out);
    case N_NEG: return negate(ev, n, out);
    case N_INDEX:
    case N_BINARY: return two_operands(ev, n, out);
    case N_MACRO: return macro(ev, n, out);
    default: return -EINVAL;
    }
    if (rc >= 0)
        *out = of_bool(rc);
    return rc < 0 ? rc : 0;
}

static int run(const struct cel *c, const json_t *self, const json_t *old, struct value *out,
               struct err *e)
{
    struct err own = {0};
    struct eval ev = {.e = e ? e : &own};
    ev.vars[0].j = (json_t *)(uintptr_t)self;
    ev.vars[1].j = (json_t *)(uintptr_t)old;
    return eval(&ev, c->root, out);
}

int cel_eval_bool(const struct cel *c, const json_t *self, const json_t *old, struct err *e)
{
    struct value v;
    int rc = run(c, self, old, &v, e);
    if (rc)
        return rc;
    rc = v.kind == V_JSON && json_is_boolean(v.j) ? json_is_true(v.j)
                                                  : err_set(e, EINVAL, "the rule is not a boolean");
    value_fini(&v);
    return rc;
}

char *cel_eval_string(const struct cel *c, const json_t *self, const json_t *old, struct err *e)
{
    struct value v;
    if (run(c, self, old, &v, e))
        return NULL;
    char *s = v.kind == V_JSON && json_is_string(v.j) ? xstrdup(json_string_value(v.j)) : NULL;
    if (!s)
        err_set(e, EINVAL, "messageExpression is not a string");
    value_fini(&v);
    return s;
}
