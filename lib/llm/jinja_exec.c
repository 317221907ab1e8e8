/* Statements. A body's result is 0, a negative errno, or one of the jumps below. */
#include "lib/llm/jinja.h"

#include <errno.h>
#include <string.h>

enum { JUMP_BREAK = 1, JUMP_CONTINUE = 2 };

static int run(struct render *r, const struct nodes *body);

static int push_scope(struct render *r)
{
    struct scope *s = arena_calloc(&r->a, sizeof *s);
    if (!s)
        return jinja_no_memory(r);
    s->up = r->scope;
    r->scope = s;
    return 0;
}

/* Runs a body whose output becomes a value. */
static int capture(struct render *r, const struct nodes *body, struct val *out)
{
    struct buf b = v_buf(r), *outer = r->out;
    r->out = &b;
    int rc = run(r, body);
    r->out = outer;
    if (rc < 0) {
        buf_fini(&b);
        return rc;
    }
    return v_take(r, &b, out);
}

static int assign(struct render *r, const struct node *target, struct val v)
{
    struct val ns;
    if (target->kind == N_NAME)
        return jinja_set(r, r->scope, target->name, v);
    if (target->kind == N_ATTR) {
        int rc = jinja_eval(r, target->a, &ns);
        if (!rc && ns.kind != V_NAMESPACE)
            rc = jinja_fail(r, EINVAL, "cannot assign attribute on non-namespace object");
        return rc ? rc : v_put(r, ns.d, v_str(target->name), v);
    }
    struct vlist *items;
    int rc = v_items(r, &v, &items);
    if (!rc && items->n != target->list.n)
        rc = jinja_fail(r, EINVAL, "%zu values can't be unpacked into %zu names", items->n,
                        target->list.n);
    for (size_t i = 0; i < target->list.n && !rc; i++)
        rc = assign(r, target->list.v[i], items->v[i]);
    return rc;
}

/* ---- loops ---- */

/* {% for x in y if cond %}: the items that pass. */
static int filter_items(struct render *r, const struct node *n, struct vlist *from,
                        struct vlist **out)
{
    struct val list, yes;
    struct scope *outer = r->scope;
    int rc = v_new_list(r, false, &list);
    if (!rc)
        rc = push_scope(r);
    for (size_t i = 0; i < from->n && !rc; i++) {
        rc = assign(r, n->a, from->v[i]);
        if (!rc)
            rc = jinja_eval(r, n->c, &yes);
        if (!rc && v_truth(&yes))
            rc = v_push(r, list.l, from->v[i]);
    }
    r->scope = outer;
    *out = list.l;
    return rc;
}

/* *finished: a turn came to the body's end. Jinja runs a loop's else part unless one did, so
 * `continue` and `break` count as no turn; templates get what they get there. */
static int run_items(struct render *r, const struct node *n, struct loop *loop, bool *finished)
{
    struct scope *outer = r->scope;
    int rc = push_scope(r);
    for (; !rc && loop->at < loop->items->n; loop->at++) {
        r->scope->n = 0; /* each turn begins with nothing set; a macro keeps its own turn's scope */
        rc = jinja_charge(r, 1);
        if (!rc)
            rc = jinja_set(r, r->scope, STR("loop"), (struct val){.kind = V_LOOP, .loop = loop});
        if (!rc)
            rc = assign(r, n->a, loop->items->v[loop->at]);
        if (!rc)
            rc = run(r, &n->body);
        *finished |= rc == 0;
        if (rc == JUMP_CONTINUE)
            rc = 0;
    }
    r->scope = outer;
    return rc == JUMP_BREAK ? 0 : rc;
}

static int run_for(struct render *r, const struct node *n)
{
    struct val iterable;
    struct loop *loop = arena_calloc(&r->a, sizeof *loop);
    int rc = loop ? jinja_eval(r, n->b, &iterable) : jinja_no_memory(r);
    if (!rc)
        rc = v_items(r, &iterable, &loop->items);
    if (!rc && n->c)
        rc = filter_items(r, n, loop->items, &loop->items);
    if (rc)
        return rc;
    loop->depth = r->loop_depth++;
    bool finished = false;
    rc = run_items(r, n, loop, &finished);
    r->loop_depth--;
    if (!rc && !finished)
        rc = run(r, &n->otherwise);
    return rc;
}

/* ---- macros ---- */

static int bind_parameters(struct render *r, const struct macro *m, const struct args *a)
{
    const struct node *d = m->def;
    if (a->n > d->n_args)
        return jinja_fail(r, EINVAL, "macro '%.*s' takes not more than %zu arguments",
                          STR_ARG(d->name), d->n_args);
    for (size_t i = 0; i < d->n_args; i++) {
        struct val v;
        const struct val *given = i < a->n ? &a->v[i] : NULL;
        for (size_t k = 0; k < a->n_kw && !given; k++)
            if (str_eq(a->kw[k].name, d->args[i].name))
                given = &a->kw[k].v;
        int rc = 0;
        if (given)
            v = *given;
        else if (d->args[i].value)
            rc = jinja_eval(r, d->args[i].value, &v);
        else
            v = v_undefined(STR("a macro's parameter was not provided"));
        if (!rc)
            rc = jinja_set(r, r->scope, d->args[i].name, v);
        if (rc)
            return rc;
    }
    return 0;
}

int jinja_call_macro(struct render *r, const struct macro *m, const struct args *a,
                     const struct val *caller, struct val *out)
{
    struct scope *outer = r->scope;
    if (++r->depth > JINJA_MAX_DEPTH) {
        r->depth--;
        return jinja_fail(r, E2BIG, "macros call each other too deep");
    }
    r->scope = m->scope;
    int rc = push_scope(r);
    if (!rc)
        rc = bind_parameters(r, m, a);
    if (!rc && caller)
        rc = jinja_set(r, r->scope, STR("caller"), *caller);
    if (!rc)
        rc = capture(r, &m->def->body, out);
    r->scope = outer;
    r->depth--;
    return rc < 0 ? rc : 0;
}

static int new_macro(struct render *r, const struct node *def, struct val *out)
{
    struct macro *m = arena_alloc(&r->a, sizeof *m);
    if (!m)
        return jinja_no_memory(r);
    *m = (struct macro){def, r->scope};
    *out = (struct val){.kind = V_MACRO, .macro = m};
    return 0;
}

static __attribute__((noinline)) int run_call_block(struct render *r, const struct node *n)
{
    struct val f, caller, text;
    struct args a;
    int rc = new_macro(r, n, &caller);
    if (!rc)
        rc = jinja_eval(r, n->a->a, &f);
    if (!rc && f.kind != V_MACRO)
        rc = jinja_fail(r, EINVAL, "a call block needs a macro");
    if (!rc)
        rc = jinja_eval_args(r, n->a, &a);
    if (!rc)
        rc = jinja_call_macro(r, f.macro, &a, &caller, &text);
    return rc ? rc : v_print(r, &text, r->out);
}

/* Filters of a block: the innermost one takes the block's text. */
static __attribute__((noinline)) int apply_filters(struct render *r, const struct node *f,
                                                   struct val text, struct val *out)
{
    struct args a;
    struct val v = text;
    int rc = f->a ? apply_filters(r, f->a, text, &v) : 0;
    if (!rc)
        rc = jinja_eval_args(r, f, &a);
    return rc ? rc : jinja_filter(r, f->name, &v, &a, out);
}

static int run_captured(struct render *r, const struct node *n)
{
    const struct node *filter = n->kind == N_SET_BLOCK ? n->b : n->a;
    struct scope *outer = r->scope;
    struct val text;
    int rc = push_scope(r);
    if (!rc)
        rc = capture(r, &n->body, &text);
    r->scope = outer;
    if (!rc && filter)
        rc = apply_filters(r, filter, text, &text);
    if (rc)
        return rc;
    return n->kind == N_SET_BLOCK ? assign(r, n->a, text) : v_print(r, &text, r->out);
}

/* All values are those of the scope outside. */
static int run_with(struct render *r, const struct node *n)
{
    struct scope *outer = r->scope, *inner;
    int rc = push_scope(r);
    inner = r->scope;
    for (size_t i = 0; i + 1 < n->list.n && !rc; i += 2) {
        struct val v;
        r->scope = outer;
        rc = jinja_eval(r, n->list.v[i + 1], &v);
        r->scope = inner;
        if (!rc)
            rc = assign(r, n->list.v[i], v);
    }
    if (!rc)
        rc = run(r, &n->body);
    r->scope = outer;
    return rc;
}

/* ---- statements ---- */

static int run_if(struct render *r, const struct node *n)
{
    struct val c;
    int rc = jinja_eval(r, n->a, &c);
    return rc ? rc : run(r, v_truth(&c) ? &n->body : &n->otherwise);
}

static int run_one(struct render *r, const struct node *n)
{
    struct val v;
    int rc = jinja_charge(r, 1);
    r->line = n->line;
    if (rc)
        return rc;
    switch (n->kind) {
    case N_TEXT: v = v_str(n->name); return v_print(r, &v, r->out);
    case N_OUTPUT: rc = jinja_eval(r, n->a, &v); return rc ? rc : v_print(r, &v, r->out);
    case N_IF: return run_if(r, n);
    case N_FOR: return run_for(r, n);
    case N_SET: rc = jinja_eval(r, n->b, &v); return rc ? rc : assign(r, n->a, v);
    case N_MACRO: rc = new_macro(r, n, &v); return rc ? rc : jinja_set(r, r->scope, n->name, v);
    case N_SET_BLOCK:
    case N_FILTER_BLOCK: return run_captured(r, n);
    case N_CALL_BLOCK: return run_call_block(r, n);
    case N_WITH: return run_with(r, n);
    case N_BREAK: return JUMP_BREAK;
    case N_CONTINUE: return JUMP_CONTINUE;
    default: return jinja_fail(r, EINVAL, "a statement is expected");
    }
}

static int run(struct render *r, const struct nodes *body)
{
    int rc = 0;
    if (++r->depth > JINJA_MAX_DEPTH)
        rc = jinja_fail(r, E2BIG, "blocks are nested deeper than %d levels", JINJA_MAX_DEPTH);
    for (size_t i = 0; i < body->n && !rc; i++)
        rc = run_one(r, body->v[i]);
    r->depth--;
    return rc;
}

int jinja_run(struct render *r, const struct nodes *body)
{
    int rc = run(r, body);
    return rc < 0 ? rc : 0;
}
