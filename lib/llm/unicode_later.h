/* unicode_later.h: by general category, the characters that are younger than PCRE2's tables
 * (Unicode 14) and that Hugging Face tokenizers' regex engine knows; "is_numeric" is what its
 * Digits stage takes. Generated table, constant. */
#pragma once
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
