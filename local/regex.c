#define PCRE2_CODE_UNIT_WIDTH 8
#include "local/regex.h"

#include <errno.h>
#include <pcre2.h>
#include <stdlib.h>

struct regex {
    pcre2_code *code;
    pcre2_match_context *limits;
};

int regex_new(const char *pattern, struct regex **out, struct err *e)
{
    int code;
    PCRE2_SIZE at;
    PCRE2_UCHAR why[128];
    struct str p = str_c(pattern);
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)p.p, p.n,
                      PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C | PCRE2_DOLLAR_ENDONLY, &code, &at, NULL);
    if (!re) {
        pcre2_get_error_message(code, why, sizeof why);
        return err_set(e, EINVAL, "\"%s\" is not a regular expression (character %zu: %s)", pattern,
                       at, (char *)why);
    }
    struct regex *r = xmalloc(sizeof *r);
    r->code = re;
    r->limits = pcre2_match_context_create(NULL);
    pcre2_set_match_limit(r->limits, 1000000);
    pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
    *out = r;
    return 0;
}

void regex_free(struct regex *r)
{
    if (!r)
        return;
    pcre2_code_free(r->code);
    pcre2_match_context_free(r->limits);
    free(r);
}

bool regex_match(const struct regex *r, struct str s)
{
    pcre2_match_data *m = pcre2_match_data_create_from_pattern(r->code, NULL);
    int rc = pcre2_match(r->code, (PCRE2_SPTR)s.p, s.n, 0, 0, m, r->limits);
    pcre2_match_data_free(m);
    return rc >= 0;
}
