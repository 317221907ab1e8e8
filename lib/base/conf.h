/* conf.h: one table per program defines its options: flag, environment variable, default, bounds
 * and help. conf_parse fills the program's struct (defaults, then environment, then flags), answers
 * --help and --version, and refuses what is out of bounds with a sentence that says what to do. */
#pragma once
#include "lib/base/str.h"

enum conf_kind {
    CONF_STR,
    CONF_U64,
    CONF_F64,
    CONF_BOOL,
    CONF_BYTES /* "64Mi" or "1G" into a u64 */
};

struct conf_opt {
    const char *flag; /* "--port"; NULL ends the table */
    const char *env;  /* "BATON_PORT" or NULL */
    enum conf_kind kind;
    size_t offset;            /* of const char *, uint64_t, double or bool */
    const char *default_text; /* NULL: empty / 0 / false */
    double min, max;          /* for numbers, when max > 0 */
    const char *help;
    const char *arg; /* name shown for the value in --help, e.g. "PORT" */
};
#define CONF(type, field) offsetof(type, field)

struct conf_prog {
    const char *name;    /* "baton-router" */
    const char *summary; /* what it does, one or two sentences */
    const char *usage;   /* after the name: "[options]" */
    const struct conf_opt *opts;
};

/* Positional arguments are left in argv[*first..]. "--" ends the options. Returns 0; 1 when --help
 * or --version was answered on stdout (exit 0); negative on error. Strings point into argv, the
 * environment or the table. */
int conf_parse(const struct conf_prog *prog, int argc, char **argv, void *into, int *first,
               struct err *e) MUST_CHECK;
void conf_help(const struct conf_prog *prog);

extern const char baton_version[]; /* "0.1.0 (commit)" */
