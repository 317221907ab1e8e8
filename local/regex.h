/* regex.h: regular expressions of CRD patterns and CEL's matches(), on PCRE2 with its JIT. RE2's
 * syntax, which Kubernetes uses, is a subset for what schemas contain. Matching is unanchored and
 * bounded (match limit), so a hostile pattern can't hang the server. */
#pragma once
#include "lib/base/str.h"

struct regex;
int regex_new(const char *pattern, struct regex **out, struct err *e) MUST_CHECK;
void regex_free(struct regex *r);
bool regex_match(const struct regex *r, struct str s);
