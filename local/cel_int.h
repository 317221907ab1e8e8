/* cel_int.h: what CEL's parser, evaluator and function library share. Not for others. */
#pragma once
#include "local/cel.h"

#include "lib/base/arena.h"

#define CEL_MAX_DEPTH 64
#define CEL_MAX_VARS  16
#define CEL_MAX_STEPS 200000
#define CEL_MAX_ARGS  8

enum node_kind {
    N_LITERAL,
    N_VAR,
    N_SELECT,
    N_HAS,
    N_INDEX,
    N_CALL,
    N_LIST,
    N_MAP,
    N_AND,
    N_OR,
    N_COND,
    N_NOT,
    N_NEG,
    N_BINARY,
    N_MACRO,
};
enum binary { B_EQ, B_NE, B_LT, B_LE, B_GT, B_GE, B_IN, B_ADD, B_SUB, B_MUL, B_DIV, B_MOD };
enum macro { M_ALL, M_EXISTS, M_EXISTS_ONE, M_MAP, M_FILTER };

struct cel_fn;
struct node {
    enum node_kind kind;
    int op;   /* enum binary or enum macro */
    int slot; /* N_VAR, N_MACRO: variable number */
    json_t *literal;
    const char *name;        /* N_SELECT, N_HAS */
    const struct cel_fn *fn; /* N_CALL */
    struct node *a, *b, *c;  /* operands; macro: range, body, body of map's filter form */
    struct node **args;
    int n_args;
    const void *type; /* the caller's type node, or NULL when unknown */
};

struct cel {
    struct arena arena;
    struct node *root;
    json_t *literals; /* array that owns the literals */
    bool old_self;
};

enum value_kind { V_JSON, V_DURATION, V_QUANTITY };
struct value {
    enum value_kind kind;
    json_t *j;  /* V_JSON: owned reference */
    double num; /* seconds, or the quantity's value */
};

struct cel_fn {
    const char *name;
    bool method;            /* receiver.name(args): the receiver is argument 0 */
    int min_args, max_args; /* receiver included */
    bool to_bool;           /* may give a boolean */
    int (*call)(const struct value *args, int n, struct value *out, struct err *e);
};
const struct cel_fn *cel_fn_find(struct str name, bool method, int n_args);

void value_fini(struct value *v);
bool value_equal(const struct value *a, const struct value *b);
/* <0, 0, >0 into *out; -EINVAL when the two have no order. */
int value_compare(const struct value *a, const struct value *b, int *out, struct err *e);
/* Field name as CEL writes it ("__dash__") to the name in the object. Arena memory. */
const char *cel_unescape(struct arena *a, struct str name);
