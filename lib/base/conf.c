#include "lib/base/conf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef BATON_VERSION
#define BATON_VERSION "0.1.0"
#endif
const char baton_version[] = BATON_VERSION;

static int set_number(const struct conf_opt *o, void *at, double v, bool integral, struct err *e)
{
    if (o->max > 0 && (v < o->min || v > o->max))
        return err_set(e, ERANGE, "%s (%s) must be between %.15g and %.15g, not %.15g", o->flag,
                       o->env ? o->env : "no environment variable", o->min, o->max, v);
    if (integral)
        *(uint64_t *)at = (uint64_t)v;
    else
        *(double *)at = v;
    return 0;
}

static int set(const struct conf_opt *o, void *into, const char *text, struct err *e)
{
    void *at = (char *)into + o->offset;
    struct str s = str_c(text);
    uint64_t u;
    int64_t milli;
    double f;
    switch (o->kind) {
    case CONF_STR: *(const char **)at = text; return 0;
    case CONF_BOOL:
        if (str_eq_c(s, "true") || str_eq_c(s, "1") || str_eq_c(s, "yes"))
            *(bool *)at = true;
        else if (str_eq_c(s, "false") || str_eq_c(s, "0") || str_eq_c(s, "no"))
            *(bool *)at = false;
        else
            return err_set(e, EINVAL, "%s takes true or false, not \"%s\"", o->flag, text);
        return 0;
    case CONF_U64:
        if (str_to_u64(s, 0, UINT64_MAX, &u))
            return err_set(e, EINVAL, "%s takes a whole number, not \"%s\"", o->flag, text);
        if (o->max > 0 && ((double)u < o->min || (double)u > o->max))
            return set_number(o, at, (double)u, true, e);
        *(uint64_t *)at = u;
        return 0;
    case CONF_BYTES:
        if (str_to_quantity_milli(s, &milli) || milli < 0)
            return err_set(e, EINVAL, "%s takes bytes such as 512Mi or 2Gi, not \"%s\"", o->flag,
                           text);
        return set_number(o, at, (double)(milli / 1000), true, e);
    case CONF_F64:
        if (str_to_f64(s, -1e300, 1e300, &f))
            return err_set(e, EINVAL, "%s takes a number, not \"%s\"", o->flag, text);
        return set_number(o, at, f, false, e);
    }
    return 0;
}

static int set_defaults(const struct conf_prog *prog, void *into, struct err *e)
{
    for (const struct conf_opt *o = prog->opts; o->flag; o++) {
        const char *env = o->env ? getenv(o->env) : NULL;
        const char *text = env && *env ? env : o->default_text;
        int rc = text ? set(o, into, text, e) : 0;
        if (rc)
            return env && *env ? err_wrap(e, "environment %s", o->env) : rc;
    }
    return 0;
}

static const struct conf_opt *find(const struct conf_prog *prog, struct str flag)
{
    for (const struct conf_opt *o = prog->opts; o->flag; o++)
        if (str_eq_c(flag, o->flag))
            return o;
    return NULL;
}

int conf_parse(const struct conf_prog *prog, int argc, char **argv, void *into, int *first,
               struct err *e)
{
    int i = 1, rc;
    for (int k = 1; k < argc && strcmp(argv[k], "--") != 0; k++) {
        if (strcmp(argv[k], "--help") == 0 || strcmp(argv[k], "-h") == 0)
            return conf_help(prog), 1;
        if (strcmp(argv[k], "--version") == 0)
            return printf("%s %s\n", prog->name, baton_version), 1;
    }
    if ((rc = set_defaults(prog, into, e)))
        return rc;
    for (; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) {
            i++;
            break;
        }
        if (strncmp(argv[i], "--", 2) != 0)
            break;
        struct str flag, value = str_cut(str_c(argv[i]), '=', &flag);
        const struct conf_opt *o = find(prog, flag);
        if (!o)
            return err_set(e, EINVAL, "unknown option \"" STR_FMT "\"; see %s --help",
                           STR_ARG(flag), prog->name);
        const char *text = flag.n < strlen(argv[i]) ? value.p : NULL;
        if (!text && o->kind == CONF_BOOL)
            text = "true";
        else if (!text && ++i < argc)
            text = argv[i];
        if (!text)
            return err_set(e, EINVAL, "%s needs a value; see %s --help", o->flag, prog->name);
        if ((rc = set(o, into, text, e)))
            return rc;
    }
    *first = i;
    return 0;
}

void conf_help(const struct conf_prog *prog)
{
    printf("%s: %s\n\nUsage: %s %s\n", prog->name, prog->summary, prog->name, prog->usage);
    if (prog->opts->flag)
        printf("\nOptions:\n");
    for (const struct conf_opt *o = prog->opts; o->flag; o++) {
        char left[80];
        snprintf(left, sizeof left, "%s%s%s", o->flag, o->kind == CONF_BOOL ? "" : " ",
                 o->kind == CONF_BOOL ? ""
                 : o->arg             ? o->arg
                                      : "VALUE");
        printf("  %-28s %s", left, o->help);
        if (o->default_text && *o->default_text)
            printf(" (default %s)", o->default_text);
        if (o->env)
            printf(" [%s]", o->env);
        printf("\n");
    }
    printf("  %-28s %s\n  %-28s %s\n", "--help", "print this help", "--version",
           "print the version");
}
