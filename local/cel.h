/* cel.h: the Common Expression Language over JSON values, as x-kubernetes-validations use it:
 * literals, lists, maps, operators, conditional, `in`, field and index access, has(), size(), type
 * conversions, the macros all, exists, exists_one, map, filter, and the string, list and
 * regular-expression functions of Kubernetes (startsWith, endsWith, contains, matches, lowerAscii,
 * upperAscii, trim, split, join, substring, replace, indexOf, isSorted, sum, min, max, quantity(),
 * isQuantity, isURL, duration() …). Specification: github.com/google/cel-spec (langdef.md). An
 * unknown function or variable is refused when the expression is compiled, so is a field that the
 * schema of `self` doesn't have. Evaluation is bounded (steps). */
#pragma once
#include "lib/json/json.h"

struct cel;

/* Tells the type behind a selection, for checking at compile time; opaque nodes of the caller.
 * NULL: unknown (anything goes). */
struct cel_types {
    const void *self; /* the node of `self` and `oldSelf` */
    const void *(*field)(const void *node, const char *name,
                         bool *known); /* *known false: no such field */
    const void *(*items)(const void *node);
};

int cel_compile(const char *expression, const struct cel_types *types, struct cel **out,
                struct err *e) MUST_CHECK;
void cel_free(struct cel *c);
bool cel_uses_old_self(const struct cel *c);
/* False when the expression can't give a boolean, as far as its form tells (a sum, a string,
 * size(), …). */
bool cel_may_be_bool(const struct cel *c);

/* 1 true, 0 false, negative errno with *e (no such key, type mismatch, too many steps). old may be
 * NULL. */
int cel_eval_bool(const struct cel *c, const json_t *self, const json_t *old,
                  struct err *e) MUST_CHECK;
/* messageExpression: a new string, or NULL with *e. */
char *cel_eval_string(const struct cel *c, const json_t *self, const json_t *old, struct err *e);
