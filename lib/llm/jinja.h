/* jinja.h: the inside of template.c: values, syntax tree, and the state of a compile and of a
 * rendering. Internal to lib/llm.
 *
 * A syntax tree lives in its template's arena and is constant. Values live in the rendering's arena
 * (bounded) and end with it. Every evaluation counts steps and depth; the first error fills r->e
 * with the template's line and ends the rendering. Semantics are Python's and Jinja2's (3.1) as far
 * as chat templates go. */
#pragma once
#include "lib/base/arena.h"
#include "lib/base/buf.h"

#define JINJA_MAX_DEPTH 250
#define JINJA_MAX_ARGS  16

/* ---- values ---- */

enum val_kind {
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_BIG /* an integer past 64 bits, as its digits */,
    V_FLOAT,
    V_STR,
    V_LIST,
    V_DICT,
    V_NAMESPACE,
    V_LOOP,
    V_MACRO,
    V_FUNCTION,
    V_METHOD
};

struct val;
struct vlist {
    struct val *v;
    size_t n, cap;
    bool tuple;
};
struct vpair;
struct vdict {
    struct vpair *p;
    size_t n, cap;
};
struct vmethod;
struct macro;
struct loop;
struct val {
    enum val_kind kind;
    union {
        bool b;
        int64_t i;
        double f;
        struct str s; /* V_STR, V_BIG; V_UNDEFINED: the sentence for whoever uses it; V_FUNCTION:
                         its name */
        struct vlist *l;
        struct vdict *d; /* V_DICT, V_NAMESPACE */
        struct loop *loop;
        struct macro *macro;
        struct vmethod *method;
    };
};
struct vpair {
    struct val k, v;
};
struct vmethod {
    struct val self;
    struct str name;
};

/* ---- syntax ---- */

enum node_kind {
    /* expressions */
    N_CONST,
    N_NAME,
    N_LIST,
    N_TUPLE,
    N_DICT,
    N_ATTR,
    N_ITEM,
    N_SLICE,
    N_CALL,
    N_FILTER,
    N_TEST,
    N_NOT,
    N_NEG,
    N_POS,
    N_AND,
    N_OR,
    N_COND,
    N_COMPARE,
    N_BINARY,
    N_CONCAT,
    /* statements */
    N_TEXT,
    N_OUTPUT,
    N_IF,
    N_FOR,
    N_SET,
    N_SET_BLOCK,
    N_MACRO,
    N_CALL_BLOCK,
    N_FILTER_BLOCK,
    N_WITH,
    N_BREAK,
    N_CONTINUE
};
enum op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN
};

struct node;
struct nodes {
    struct node **v;
    size_t n, cap;
};
struct arg { /* of a call; name.n == 0: positional */
    struct str name;
    struct node *value;
};
struct node {
    enum node_kind kind;
    enum op op;
    uint32_t line;
    struct str name;        /* NAME, ATTR, FILTER, TEST, MACRO: its name; TEXT: the text */
    struct val value;       /* CONST */
    struct node *a, *b, *c; /* operands; IF: a condition; FOR: a target, b iterable, c filter; SET:
                               a target, b value */
    struct nodes list; /* LIST, TUPLE: elements; DICT: keys and values in turn; COMPARE: operands;
                          OUTPUT: expressions */
    struct arg *args;  /* CALL, FILTER, TEST; MACRO: parameters and their defaults */
    size_t n_args;
    enum op *ops;                 /* COMPARE */
    struct nodes body, otherwise; /* statements */
};

struct chat_template {
    struct arena a;
    struct str source;
    struct nodes body;
    bool takes_parts, knows_developer;
};

/* Fills t->body from t->source. */
int jinja_parse(struct chat_template *t, struct err *e) MUST_CHECK;

/* Tokens for the parser. */
enum tok_kind {
    T_END,
    T_TEXT,
    T_VAR_BEGIN,
    T_VAR_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_OP
};
struct tok {
    enum tok_kind kind;
    uint32_t line;
    struct str s;
    int64_t i;
    double f;
};
struct toks {
    struct tok *v;
    size_t n, cap;
};
int jinja_lex(struct arena *a, struct str source, struct toks *out, struct err *e) MUST_CHECK;

/* ---- rendering ---- */

struct binding {
    struct str name;
    struct val v;
};
struct scope {
    struct scope *up;
    struct binding *b;
    size_t n, cap;
};
struct macro {
    const struct node *def;
    struct scope *scope; /* where it was defined */
};
struct loop {
    struct vlist *items;
    size_t at;
    uint32_t depth;
    bool has_changed;
    struct val last_changed;
};
struct args {
    struct val v[JINJA_MAX_ARGS];
    size_t n;
    struct binding kw[JINJA_MAX_ARGS];
    size_t n_kw;
};
struct render {
    struct arena a;
    struct buf *out;
    struct scope *scope;
    struct err *e;
    uint64_t now_wall_ns;
    size_t steps, max_steps;
    uint32_t depth, loop_depth, line;
    size_t max_capture;
    bool raised; /* by raise_exception */
};

int jinja_fail(struct render *r, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);
int jinja_no_memory(struct render *r);
int jinja_charge(struct render *r, size_t steps) MUST_CHECK;

int jinja_run(struct render *r, const struct nodes *body) MUST_CHECK; /* statements */
int jinja_eval(struct render *r, const struct node *n, struct val *out) MUST_CHECK;
int jinja_eval_args(struct render *r, const struct node *n, struct args *out) MUST_CHECK;
int jinja_call_macro(struct render *r, const struct macro *m, const struct args *a,
                     const struct val *caller, struct val *out) MUST_CHECK;
int jinja_call(struct render *r, const struct val *f, const struct args *a,
               struct val *out) MUST_CHECK;
int jinja_set(struct render *r, struct scope *s, struct str name, struct val v) MUST_CHECK;
bool jinja_lookup(const struct render *r, struct str name, struct val *out);

/* values (jinja_value.c) */
struct val v_str(struct str s);
struct val v_int(int64_t i);
struct val v_bool(bool b);
struct val v_none(void);
struct val v_undefined(struct str what);
const char *v_kind_name(const struct val *v);
bool v_truth(const struct val *v);
bool v_equal(const struct val *a, const struct val *b, int depth);
/* <0, 0, >0; fails for kinds that Python doesn't order. */
int v_order(struct render *r, const struct val *a, const struct val *b, int *out) MUST_CHECK;
int v_new_list(struct render *r, bool tuple, struct val *out) MUST_CHECK;
int v_push(struct render *r, struct vlist *l, struct val v) MUST_CHECK;
int v_new_dict(struct render *r, struct val *out) MUST_CHECK;
int v_put(struct render *r, struct vdict *d, struct val k, struct val v) MUST_CHECK;
bool v_get(const struct vdict *d, const struct val *k, struct val *out);
bool v_get_c(const struct vdict *d, const char *k, struct val *out);
/* Anything that can be iterated, as a list (dict: keys, string: characters). */
int v_items(struct render *r, const struct val *v, struct vlist **out) MUST_CHECK;
int v_number(const struct val *v, double *f);   /* 0 for numbers and booleans, else -EINVAL */
bool v_is_int(const struct val *v, int64_t *i); /* integers and booleans */
int v_from_json(struct render *r, struct str json, const char *what, struct val *out) MUST_CHECK;
/* Text: as {{ }} prints it, as repr() shows it, as json.dumps writes it. */
int v_print(struct render *r, const struct val *v, struct buf *out) MUST_CHECK;
int v_repr(struct render *r, const struct val *v, struct buf *out, int depth) MUST_CHECK;
int v_json(struct render *r, const struct val *v, int indent, bool sorted, bool ascii,
           struct buf *out) MUST_CHECK;
int v_text(struct render *r, const struct val *v,
           struct str *out) MUST_CHECK; /* str(v), in the arena */
int v_take(struct render *r, struct buf *b,
           struct val *out) MUST_CHECK; /* moves a buffer's text into the arena */
struct buf v_buf(const struct render *r);

/* operations (jinja_ops.c, jinja_strings.c, jinja_filters.c, jinja_tests.c) */
int jinja_binary(struct render *r, enum op op, const struct val *a, const struct val *b,
                 struct val *out) MUST_CHECK;
int jinja_contains(struct render *r, const struct val *in, const struct val *what,
                   bool *out) MUST_CHECK;
int jinja_attr(struct render *r, const struct val *v, struct str name, struct val *out) MUST_CHECK;
int jinja_item(struct render *r, const struct val *v, const struct val *key,
               struct val *out) MUST_CHECK;
int jinja_slice(struct render *r, const struct val *v, const struct val *from, const struct val *to,
                const struct val *step, struct val *out) MUST_CHECK;
int jinja_method(struct render *r, const struct vmethod *m, const struct args *a,
                 struct val *out) MUST_CHECK;
int jinja_str_method(struct render *r, struct str self, struct str name, const struct args *a,
                     struct val *out) MUST_CHECK;
bool jinja_is_str_method(struct str name);
int jinja_filter(struct render *r, struct str name, const struct val *v, const struct args *a,
                 struct val *out) MUST_CHECK;
int jinja_test(struct render *r, struct str name, const struct val *v, const struct args *a,
               bool *out) MUST_CHECK;
int jinja_global(struct render *r, struct str name, const struct args *a,
                 struct val *out) MUST_CHECK;
bool jinja_is_global(struct str name);
bool jinja_is_filter(struct str name);
bool jinja_is_test(struct str name);
/* Shared by filters and methods. */
int jinja_trim(struct render *r, struct str s, const struct val *chars,
               int sides /* 1 left, 2 right */, struct val *out) MUST_CHECK;
int jinja_replace(struct render *r, struct str s, struct str from, struct str to, int64_t max,
                  struct val *out) MUST_CHECK;
enum str_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITALIZE };
int jinja_case(struct render *r, struct str s, enum str_case how, struct val *out) MUST_CHECK;
/* The argument at position i or by name; NULL when absent. */
const struct val *jinja_arg(const struct args *a, size_t i, const char *name);
