/* Methods of strings, lists, dicts and loops. What would change a value is refused, as
 * transformers' sandbox does. */
#include "lib/llm/jinja.h"
#include "lib/llm/utf8.h"

#include <errno.h>
#include <utf8proc.h>

/* ---- shared with filters ---- */

static bool in_set(struct str set, uint32_t cp)
{
    uint32_t c;
    for (size_t i = 0; i < set.n;) {
        i += utf8_next(set.p + i, set.n - i, &c);
        if (c == cp)
            return true;
    }
    return false;
}

static bool strips(const struct val *chars, uint32_t cp)
{
    if (!chars || chars->kind != V_STR)
        return utf8_is_space(cp) ||
               (cp >= 0x1c && cp <= 0x1f); /* str.isspace counts these separators too */
    return in_set(chars->s, cp);
}

int jinja_trim(struct render *r, struct str s, const struct val *chars, int sides, struct val *out)
{
    uint32_t cp;
    int rc = jinja_charge(r, s.n / 64);
    while (sides & 1 && s.n) {
        size_t k = utf8_next(s.p, s.n, &cp);
        if (!strips(chars, cp))
            break;
        s.p += k;
        s.n -= k;
    }
    while (sides & 2 && s.n) {
        size_t at = s.n - 1;
        while (at > 0 && ((unsigned char)s.p[at] & 0xc0) == 0x80)
            at--;
        utf8_next(s.p + at, s.n - at, &cp);
        if (!strips(chars, cp))
            break;
        s.n = at;
    }
    *out = v_str(s);
    return rc;
}

static const char *find(struct str s, struct str what)
{
    return what.n > s.n ? NULL : what.n == 0 ? s.p : memmem(s.p, s.n, what.p, what.n);
}

int jinja_replace(struct render *r, struct str s, struct str from, struct str to, int64_t max,
                  struct val *out)
{
    struct buf b = v_buf(r);
    uint32_t cp;
    int rc = jinja_charge(r, s.n / 16);
    for (int64_t done = 0; !rc; done++) {
        const char *hit = max < 0 || done < max ? find(s, from) : NULL;
        size_t k = hit ? (size_t)(hit - s.p) : s.n;
        rc = buf_append(&b, s.p, k);
        if (!hit)
            break;
        if (!rc)
            rc = buf_str(&b, to);
        size_t step = k + from.n;
        if (from.n == 0) { /* between all characters, and at both ends */
            if (s.n == 0)
                break;
            step = utf8_next(s.p, s.n, &cp);
            if (!rc)
                rc = buf_append(&b, s.p, step);
        }
        s.p += step;
        s.n -= step;
    }
    if (!rc)
        return v_take(r, &b, out);
    buf_fini(&b);
    return rc == -EMSGSIZE || rc == -ENOMEM ? jinja_no_memory(r) : rc;
}

static bool is_cased(uint32_t cp)
{
    return utf8proc_toupper((utf8proc_int32_t)cp) != (utf8proc_int32_t)cp ||
           utf8proc_tolower((utf8proc_int32_t)cp) != (utf8proc_int32_t)cp;
}

static int put_case(struct buf *b, uint32_t cp, bool upper)
{
    char c[4];
    if (upper && cp == 0xdf) /* the one common character whose capital is two */
        return buf_cstr(b, "SS");
    utf8proc_int32_t to =
        upper ? utf8proc_toupper((utf8proc_int32_t)cp) : utf8proc_tolower((utf8proc_int32_t)cp);
    return buf_append(b, c, utf8_encode((uint32_t)to, c));
}

int jinja_case(struct render *r, struct str s, enum str_case how, struct val *out)
{
    struct buf b = v_buf(r);
    uint32_t cp;
    bool first = true, after_cased = false;
    int rc = jinja_charge(r, s.n / 16);
    for (size_t i = 0; i < s.n && !rc; first = false) {
        i += utf8_next(s.p + i, s.n - i, &cp);
        bool upper = how == CASE_UPPER || (how == CASE_TITLE && !after_cased) ||
                     (how == CASE_CAPITALIZE && first);
        after_cased = is_cased(cp);
        rc = put_case(&b, cp, upper);
    }
    if (!rc)
        return v_take(r, &b, out);
    buf_fini(&b);
    return rc == -EMSGSIZE || rc == -ENOMEM ? jinja_no_memory(r) : rc;
}

/* ---- methods of strings ---- */

#define METHOD(name)                                                                               \
    static int name(struct render *r, struct str self, const struct args *a, struct val *out)

static int need_str(struct render *r, const struct val *v, const char *what, struct str *out)
{
    if (!v || v->kind != V_STR)
        return jinja_fail(r, EINVAL, "%s needs a string%s%s", what, v ? ", not " : "",
                          v ? v_kind_name(v) : "");
    *out = v->s;
    return 0;
}

METHOD(s_upper)
{
    (void)a;
    return jinja_case(r, self, CASE_UPPER, out);
}
METHOD(s_lower)
{
    (void)a;
    return jinja_case(r, self, CASE_LOWER, out);
}
METHOD(s_title)
{
    (void)a;
    return jinja_case(r, self, CASE_TITLE, out);
}
METHOD(s_capitalize)
{
    (void)a;
    return jinja_case(r, self, CASE_CAPITALIZE, out);
}
METHOD(s_strip)
{
    return jinja_trim(r, self, jinja_arg(a, 0, "chars"), 3, out);
}
METHOD(s_lstrip)
{
    return jinja_trim(r, self, jinja_arg(a, 0, "chars"), 1, out);
}
METHOD(s_rstrip)
{
    return jinja_trim(r, self, jinja_arg(a, 0, "chars"), 2, out);
}

static bool has_affix(struct str self, struct str affix, bool at_end)
{
    return at_end ? str_ends(self, affix) : str_starts(self, affix);
}

static int affix(struct render *r, struct str self, const struct args *a, bool at_end,
                 struct val *out)
{
    const struct val *v = jinja_arg(a, 0, "prefix");
    struct str s = {0};
    bool yes = false;
    if (v && v->kind == V_LIST && v->l->tuple) {
        for (size_t i = 0; i < v->l->n && !yes; i++)
            yes = v->l->v[i].kind == V_STR && has_affix(self, v->l->v[i].s, at_end);
    } else {
        int rc = need_str(r, v, at_end ? "endswith()" : "startswith()", &s);
        if (rc)
            return rc;
        yes = has_affix(self, s, at_end);
    }
    *out = v_bool(yes);
    return 0;
}

METHOD(s_startswith)
{
    return affix(r, self, a, false, out);
}
METHOD(s_endswith)
{
    return affix(r, self, a, true, out);
}

METHOD(s_removeprefix)
{
    struct str s = {0};
    int rc = need_str(r, jinja_arg(a, 0, "prefix"), "removeprefix()", &s);
    if (!rc)
        *out = v_str(str_starts(self, s) ? (struct str){self.p + s.n, self.n - s.n} : self);
    return rc;
}
METHOD(s_removesuffix)
{
    struct str s = {0};
    int rc = need_str(r, jinja_arg(a, 0, "suffix"), "removesuffix()", &s);
    if (!rc)
        *out = v_str(str_ends(self, s) ? (struct str){self.p, self.n - s.n} : self);
    return rc;
}

METHOD(s_replace)
{
    struct str from, to;
    const struct val *count = jinja_arg(a, 2, "count");
    int64_t max = -1;
    int rc = need_str(r, jinja_arg(a, 0, "old"), "replace()", &from);
    if (!rc)
        rc = need_str(r, jinja_arg(a, 1, "new"), "replace()", &to);
    if (!rc && count && !v_is_int(count, &max))
        rc = jinja_fail(r, EINVAL, "replace() needs an integer count");
    return rc ? rc : jinja_replace(r, self, from, to, max, out);
}

/* split() without a separator: runs of white space; at most `max` cuts (< 0: all). */
static int split_space(struct render *r, struct str s, int64_t max, struct vlist *l)
{
    uint32_t cp;
    int rc = jinja_charge(r, s.n / 16);
    while (!rc) {
        struct val v;
        rc = jinja_trim(r, s, NULL, max >= 0 && (int64_t)l->n >= max ? 1 : 3, &v);
        s = v.s;
        if (rc || s.n == 0)
            break;
        size_t k = 0;
        while (k < s.n && !(max >= 0 && (int64_t)l->n >= max)) {
            size_t n = utf8_next(s.p + k, s.n - k, &cp);
            if (strips(NULL, cp))
                break;
            k += n;
        }
        if (max >= 0 && (int64_t)l->n >= max)
            k = s.n;
        rc = v_push(r, l, v_str((struct str){s.p, k}));
        s.p += k;
        s.n -= k;
    }
    return rc;
}

static int split_at(struct render *r, struct str s, struct str sep, int64_t max, struct vlist *l)
{
    int rc = jinja_charge(r, s.n / 16);
    for (;;) {
        const char *hit = max < 0 || (int64_t)l->n < max ? find(s, sep) : NULL;
        if (rc || !hit)
            return rc ? rc : v_push(r, l, v_str(s));
        size_t k = (size_t)(hit - s.p);
        rc = v_push(r, l, v_str((struct str){s.p, k}));
        s.p += k + sep.n;
        s.n -= k + sep.n;
    }
}

/* The last place where sep stands in s, or NULL. */
static const char *find_last(struct str s, struct str sep)
{
    for (size_t i = s.n >= sep.n ? s.n - sep.n + 1 : 0; i-- > 0;)
        if (memcmp(s.p + i, sep.p, sep.n) == 0)
            return s.p + i;
    return NULL;
}

static int rsplit_at(struct render *r, struct str s, struct str sep, int64_t max, struct vlist *l)
{
    const char *hit;
    int rc = jinja_charge(r, s.n / 4);
    while (!rc && (max < 0 || (int64_t)l->n < max) && (hit = find_last(s, sep))) {
        const char *after = hit + sep.n;
        rc = v_push(r, l, v_str((struct str){after, (size_t)(s.p + s.n - after)}));
        s.n = (size_t)(hit - s.p);
    }
    if (!rc)
        rc = v_push(r, l, v_str(s));
    for (size_t i = 0; i < l->n / 2; i++) {
        struct val t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
    return rc;
}

static int split(struct render *r, struct str self, const struct args *a, bool from_right,
                 struct val *out)
{
    const struct val *sep = jinja_arg(a, 0, "sep"), *maxsplit = jinja_arg(a, 1, "maxsplit");
    int64_t max = -1;
    int rc = v_new_list(r, false, out);
    if (!rc && maxsplit && !v_is_int(maxsplit, &max))
        rc = jinja_fail(r, EINVAL, "split() needs an integer maxsplit");
    if (rc)
        return rc;
    if (!sep || sep->kind == V_NONE)
        return from_right && max >= 0
                   ? jinja_fail(r, EINVAL, "rsplit() with maxsplit needs a separator")
                   : split_space(r, self, max, out->l);
    if (sep->kind != V_STR || sep->s.n == 0)
        return jinja_fail(r, EINVAL, "split() needs a separator that is not empty");
    return from_right ? rsplit_at(r, self, sep->s, max, out->l)
                      : split_at(r, self, sep->s, max, out->l);
}

METHOD(s_split)
{
    return split(r, self, a, false, out);
}
METHOD(s_rsplit)
{
    return split(r, self, a, true, out);
}

METHOD(s_splitlines)
{
    const struct val *keep = jinja_arg(a, 0, "keepends");
    int rc = v_new_list(r, false, out);
    if (!rc)
        rc = jinja_charge(r, self.n / 16);
    while (self.n && !rc) {
        size_t k = 0, end;
        while (k < self.n && self.p[k] != '\n' && self.p[k] != '\r')
            k++;
        end =
            k < self.n ? k + 1 + (self.p[k] == '\r' && k + 1 < self.n && self.p[k + 1] == '\n') : k;
        rc = v_push(r, out->l, v_str((struct str){self.p, keep && v_truth(keep) ? end : k}));
        self.p += end;
        self.n -= end;
    }
    return rc;
}

static int locate(struct render *r, struct str self, const struct args *a, bool last,
                  struct val *out)
{
    struct str what = {0};
    int rc = need_str(r, jinja_arg(a, 0, "sub"), "find()", &what);
    if (!rc)
        rc = jinja_charge(r, self.n / 16);
    if (rc)
        return rc;
    const char *hit = last ? find_last(self, what) : find(self, what);
    *out = v_int(hit ? (int64_t)utf8_count((struct str){self.p, (size_t)(hit - self.p)}) : -1);
    return 0;
}

METHOD(s_find)
{
    return locate(r, self, a, false, out);
}
METHOD(s_rfind)
{
    return locate(r, self, a, true, out);
}
METHOD(s_index)
{
    int rc = locate(r, self, a, false, out);
    return !rc && out->i < 0 ? jinja_fail(r, EINVAL, "substring not found") : rc;
}
METHOD(s_count)
{
    struct str what = {0};
    int64_t n = 0;
    int rc = need_str(r, jinja_arg(a, 0, "sub"), "count()", &what);
    if (!rc)
        rc = jinja_charge(r, self.n / 16);
    if (!rc && what.n == 0)
        n = (int64_t)utf8_count(self) + 1;
    for (const char *hit; !rc && what.n && (hit = find(self, what)); n++) {
        self.n -= (size_t)(hit - self.p) + what.n;
        self.p = hit + what.n;
    }
    *out = v_int(n);
    return rc;
}

METHOD(s_join)
{
    const struct val *v = jinja_arg(a, 0, "iterable");
    struct vlist *l = NULL;
    struct buf b = v_buf(r);
    int rc = v ? v_items(r, v, &l) : jinja_fail(r, EINVAL, "join() needs a list");
    for (size_t i = 0; !rc && i < l->n; i++) {
        struct str s;
        rc = i ? buf_str(&b, self) : 0;
        if (!rc)
            rc = need_str(r, &l->v[i], "join()", &s);
        if (!rc)
            rc = buf_str(&b, s);
    }
    if (!rc)
        return v_take(r, &b, out);
    buf_fini(&b);
    return rc == -EMSGSIZE || rc == -ENOMEM ? jinja_no_memory(r) : rc;
}

enum class { CLASS_DIGIT, CLASS_ALPHA, CLASS_ALNUM, CLASS_SPACE };

static bool has_class(uint32_t cp, enum class c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
    bool letter = k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
    switch (c) {
    case CLASS_DIGIT: return k == UTF8PROC_CATEGORY_ND;
    case CLASS_ALPHA: return letter;
    case CLASS_ALNUM: return letter || utf8_is_numeric(cp);
    default: return strips(NULL, cp);
    }
}

static int all_are(struct render *r, struct str s, enum class c, struct val *out)
{
    uint32_t cp;
    bool yes = s.n > 0;
    for (size_t i = 0; i < s.n && yes;) {
        i += utf8_next(s.p + i, s.n - i, &cp);
        yes = has_class(cp, c);
    }
    *out = v_bool(yes);
    return jinja_charge(r, s.n / 16);
}

METHOD(s_isdigit)
{
    (void)a;
    return all_are(r, self, CLASS_DIGIT, out);
}
METHOD(s_isalpha)
{
    (void)a;
    return all_are(r, self, CLASS_ALPHA, out);
}
METHOD(s_isalnum)
{
    (void)a;
    return all_are(r, self, CLASS_ALNUM, out);
}
METHOD(s_isspace)
{
    (void)a;
    return all_are(r, self, CLASS_SPACE, out);
}

static int same_case(struct render *r, struct str self, enum str_case how, struct val *out)
{
    struct val v;
    uint32_t cp;
    bool cased = false;
    int rc = jinja_case(r, self, how, &v);
    for (size_t i = 0; !rc && i < self.n && !cased;) {
        i += utf8_next(self.p + i, self.n - i, &cp);
        cased = is_cased(cp);
    }
    if (!rc)
        *out = v_bool(cased && str_eq(v.s, self));
    return rc;
}

METHOD(s_isupper)
{
    (void)a;
    return same_case(r, self, CASE_UPPER, out);
}
METHOD(s_islower)
{
    (void)a;
    return same_case(r, self, CASE_LOWER, out);
}

static int partition(struct render *r, struct str self, const struct args *a, bool last,
                     struct val *out)
{
    struct str sep = {0}, none = STR("");
    int rc = need_str(r, jinja_arg(a, 0, "sep"), "partition()", &sep);
    if (!rc && sep.n == 0)
        rc = jinja_fail(r, EINVAL, "partition() needs a separator that is not empty");
    if (!rc)
        rc = v_new_list(r, true, out);
    if (rc)
        return rc;
    const char *hit = last ? find_last(self, sep) : find(self, sep);
    struct str part[3] = {last ? none : self, none, last ? self : none};
    if (hit) {
        part[0] = (struct str){self.p, (size_t)(hit - self.p)};
        part[1] = sep;
        part[2] = (struct str){hit + sep.n, self.n - part[0].n - sep.n};
    }
    for (int i = 0; i < 3 && !rc; i++)
        rc = v_push(r, out->l, v_str(part[i]));
    return rc;
}

METHOD(s_partition)
{
    return partition(r, self, a, false, out);
}
METHOD(s_rpartition)
{
    return partition(r, self, a, true, out);
}

static const struct {
    const char *name;
    int (*fn)(struct render *r, struct str self, const struct args *a, struct val *out);
} str_methods[] = {
    {"upper", s_upper},
    {"lower", s_lower},
    {"title", s_title},
    {"capitalize", s_capitalize},
    {"strip", s_strip},
    {"lstrip", s_lstrip},
    {"rstrip", s_rstrip},
    {"startswith", s_startswith},
    {"endswith", s_endswith},
    {"removeprefix", s_removeprefix},
    {"removesuffix", s_removesuffix},
    {"replace", s_replace},
    {"split", s_split},
    {"rsplit", s_rsplit},
    {"splitlines", s_splitlines},
    {"find", s_find},
    {"rfind", s_rfind},
    {"index", s_index},
    {"count", s_count},
    {"join", s_join},
    {"isdigit", s_isdigit},
    {"isdecimal", s_isdigit},
    {"isnumeric", s_isdigit},
    {"isalpha", s_isalpha},
    {"isalnum", s_isalnum},
    {"isspace", s_isspace},
    {"isupper", s_isupper},
    {"islower", s_islower},
    {"partition", s_partition},
    {"rpartition", s_rpartition},
};

bool jinja_is_str_method(struct str name)
{
    for (size_t i = 0; i < sizeof str_methods / sizeof *str_methods; i++)
        if (str_eq_c(name, str_methods[i].name))
            return true;
    return false;
}

int jinja_str_method(struct render *r, struct str self, struct str name, const struct args *a,
                     struct val *out)
{
    for (size_t i = 0; i < sizeof str_methods / sizeof *str_methods; i++)
        if (str_eq_c(name, str_methods[i].name))
            return str_methods[i].fn(r, self, a, out);
    return jinja_fail(r, EINVAL, "str has no method '%.*s'", STR_ARG(name));
}
