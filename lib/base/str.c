#include "lib/base/str.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

struct str str_c(const char *z)
{
    return (struct str){z ? z : "", z ? strlen(z) : 0};
}

bool str_eq(struct str a, struct str b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

bool str_eq_c(struct str a, const char *z)
{
    return str_eq(a, str_c(z));
}

bool str_ieq_c(struct str a, const char *z)
{
    return a.n == strlen(z) && (a.n == 0 || strncasecmp(a.p, z, a.n) == 0);
}

bool str_starts(struct str s, struct str prefix)
{
    return s.n >= prefix.n && (prefix.n == 0 || memcmp(s.p, prefix.p, prefix.n) == 0);
}

bool str_ends(struct str s, struct str suffix)
{
    return s.n >= suffix.n &&
           (suffix.n == 0 || memcmp(s.p + s.n - suffix.n, suffix.p, suffix.n) == 0);
}

struct str str_trim(struct str s)
{
    while (s.n && isspace((unsigned char)s.p[0])) {
        s.p++;
        s.n--;
    }
    while (s.n && isspace((unsigned char)s.p[s.n - 1]))
        s.n--;
    return s;
}

struct str str_cut(struct str s, char sep, struct str *head)
{
    const char *at = s.n ? memchr(s.p, sep, s.n) : NULL;
    if (!at) {
        *head = s;
        return (struct str){s.p + s.n, 0};
    }
    size_t n = (size_t)(at - s.p);
    *head = (struct str){s.p, n};
    return (struct str){at + 1, s.n - n - 1};
}

char *str_dup(struct str s)
{
    char *z = xmalloc(s.n + 1);
    if (s.n)
        memcpy(z, s.p, s.n);
    z[s.n] = 0;
    return z;
}

int str_to_u64(struct str s, uint64_t min, uint64_t max, uint64_t *out)
{
    if (s.n == 0 || s.n > 20)
        return -EINVAL;
    uint64_t v = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return -EINVAL;
        if (__builtin_mul_overflow(v, 10u, &v) ||
            __builtin_add_overflow(v, (uint64_t)(s.p[i] - '0'), &v))
            return -ERANGE;
    }
    if (v < min || v > max)
        return -ERANGE;
    *out = v;
    return 0;
}

int str_to_i64(struct str s, int64_t min, int64_t max, int64_t *out)
{
    bool neg = s.n && s.p[0] == '-';
    uint64_t v;
    if (neg) {
        s.p++;
        s.n--;
    }
    int rc = str_to_u64(s, 0, neg ? (uint64_t)INT64_MAX + 1 : (uint64_t)INT64_MAX, &v);
    if (rc)
        return rc;
    int64_t x = neg ? (int64_t)(0 - v) : (int64_t)v;
    if (x < min || x > max)
        return -ERANGE;
    *out = x;
    return 0;
}

int str_to_f64(struct str s, double min, double max, double *out)
{
    char z[64], *end;
    if (s.n == 0 || s.n >= sizeof z || isspace((unsigned char)s.p[0]))
        return -EINVAL;
    memcpy(z, s.p, s.n);
    z[s.n] = 0;
    double v = strtod(z, &end);
    if (end != z + s.n || isnan(v))
        return -EINVAL;
    if (v < min || v > max)
        return -ERANGE;
    *out = v;
    return 0;
}

int str_to_quantity_milli(struct str s, int64_t *out)
{
    static const struct {
        const char *suffix;
        double factor;
    } unit[] = {{"Ki", 1024.0 * 1e3},
                {"Mi", 1048576.0 * 1e3},
                {"Gi", 1073741824.0 * 1e3},
                {"Ti", 1099511627776.0 * 1e3},
                {"m", 1},
                {"k", 1e6},
                {"M", 1e9},
                {"G", 1e12},
                {"T", 1e15}};
    double factor = 1e3, v;
    for (size_t i = 0; i < sizeof unit / sizeof *unit; i++) {
        if (str_ends(s, str_c(unit[i].suffix))) {
            factor = unit[i].factor;
            s.n -= strlen(unit[i].suffix);
            break;
        }
    }
    int rc = str_to_f64(s, -1e15, 1e15, &v);
    if (rc)
        return rc;
    v *= factor;
    if (fabs(v) > 9.2e18)
        return -ERANGE;
    *out = (int64_t)llround(v);
    return 0;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

int str_from_hex(struct str s, uint8_t *out, size_t n)
{
    if (s.n != 2 * n)
        return -EINVAL;
    for (size_t i = 0; i < s.n; i++)
        if (hex_digit(s.p[i]) < 0)
            return -EINVAL;
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)(hex_digit(s.p[2 * i]) << 4 | hex_digit(s.p[2 * i + 1]));
    return 0;
}

void str_to_hex(const uint8_t *in, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[in[i] >> 4];
        out[2 * i + 1] = digits[in[i] & 15];
    }
    out[2 * n] = 0;
}
