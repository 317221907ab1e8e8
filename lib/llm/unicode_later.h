/* unicode_later.h: where Hugging Face tokenizers' Unicode differs from that of our libraries
 * (PCRE2 10.42: 14, utf8proc 2.8: 15). By general category, the characters that its regex engine
 * knows and PCRE2 doesn't; "is_numeric": what its Digits stage takes besides; "unnormalized":
 * combining characters that its normalizers (Unicode 9) leave where they are. Generated table,
 * constant. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct unicode_range {
    uint32_t first, last;
};
struct unicode_set {
    const char *name; /* "L", "Lu", ..., "is_numeric"; NULL ends the table */
    const struct unicode_range *range;
    size_t n;
};
extern const struct unicode_set unicode_later[];
const struct unicode_set *unicode_later_find(const char *name); /* NULL when there is none */
bool unicode_set_has(const struct unicode_set *s, uint32_t cp);
