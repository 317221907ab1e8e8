/* jinja_parse.h: the parser's state and what its two files (jinja_parse.c: statements,
 * jinja_expr.c: expressions) share. Internal to lib/llm. */
#pragma once
#include "lib/llm/jinja.h"

struct parse {
    struct arena *a;
    const struct tok *t; /* the next token; the list ends with T_END */
    struct err *e;
    int depth, loops;
};

struct node *jinja_node(struct parse *p, enum node_kind kind); /* NULL: too large, *e filled */
int jinja_push(struct parse *p, struct nodes *l, struct node *n) MUST_CHECK;
int jinja_syntax(struct parse *p, const char *what);
int jinja_enter(struct parse *p) MUST_CHECK; /* one level deeper; undo with p->depth-- */
bool jinja_at_op(const struct parse *p, const char *op);
bool jinja_at_name(const struct parse *p, const char *name);
bool jinja_take_op(struct parse *p, const char *op);
bool jinja_take_name(struct parse *p, const char *name);
int jinja_need_op(struct parse *p, const char *op) MUST_CHECK;
int jinja_target(struct parse *p, bool attrs, struct node **out) MUST_CHECK;
int jinja_keep_args(struct parse *p, struct node *n, const struct arg *args,
                    size_t n_args) MUST_CHECK;

int jinja_expression(struct parse *p, struct node **out) MUST_CHECK;
/* One expression or "a, b" as a tuple; `cond`: inline if is allowed at its top. */
int jinja_tuple(struct parse *p, bool cond, struct node **out) MUST_CHECK;
/* "| f | g(1)" applied to `on` (NULL: to the value that the statement supplies). */
int jinja_filters(struct parse *p, struct node *on, struct node **out) MUST_CHECK;
int jinja_first_filter(struct parse *p,
                       struct node **out) MUST_CHECK; /* "f(1) | g": without the leading bar */
