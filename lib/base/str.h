/* str.h: a string is pointer + length, not owned, not NUL-terminated. Bounds are part of every
 * parse. */
#pragma once
#include "lib/base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct str {
    const char *p;
    size_t n;
};

#define STR(lit)   ((struct str){(lit), sizeof(lit) - 1})
#define STR_FMT    "%.*s"
#define STR_ARG(s) (int)(s).n, (s).p

struct str str_c(const char *z); /* of a C string; NULL gives an empty str */
bool str_eq(struct str a, struct str b);
bool str_eq_c(struct str a, const char *z);
bool str_ieq_c(struct str a, const char *z); /* ASCII case-insensitive */
bool str_starts(struct str s, struct str prefix);
bool str_ends(struct str s, struct str suffix);
struct str str_trim(struct str s); /* ASCII white space, both ends */
/* Cuts at the first `sep`: *head is what is before, the rest is returned (empty, p != NULL, when no
 * sep was found). */
struct str str_cut(struct str s, char sep, struct str *head);
char *str_dup(struct str s); /* heap, NUL-terminated; caller frees */

/* Whole-string decimal numbers within [min, max]; -EINVAL when not a number, -ERANGE when out of
 * bounds. */
int str_to_i64(struct str s, int64_t min, int64_t max, int64_t *out) MUST_CHECK;
int str_to_u64(struct str s, uint64_t min, uint64_t max, uint64_t *out) MUST_CHECK;
int str_to_f64(struct str s, double min, double max, double *out) MUST_CHECK;
/* "64Mi", "1.5Gi", "500M", "4096", "250m" as a Kubernetes quantity, in units of 1/1000 (so "250m"
 * is 250). */
int str_to_quantity_milli(struct str s, int64_t *out) MUST_CHECK;

/* Hex of exactly n bytes. */
int str_from_hex(struct str s, uint8_t *out, size_t n) MUST_CHECK;
void str_to_hex(const uint8_t *in, size_t n, char *out /* 2n+1 */);
