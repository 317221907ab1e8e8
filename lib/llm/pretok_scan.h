/* pretok_scan.h: the pre-tokenizers that most models have, as scanners written by hand: the same
 * words as their patterns in PCRE2, several times as fast. What a scanner can't decide (characters
 * past the BMP, which its table leaves out) it leaves to PCRE2. Internal to lib/llm. */
#pragma once
#include "lib/llm/pretok.h"

#define SCAN_UNDECIDED 0

struct pretok_scan {
    struct str text;
    enum pretok_known known;
    bool digits;          /* each number is a word of its own, and texts end before it */
    const uint8_t *class; /* by code point */
};

/* False: there is no table (no memory), so PCRE2 does it all. */
bool pretok_scan_init(struct pretok_scan *s, enum pretok_known known, bool digits, struct str text);
/* Where the word that begins at `at` ends, or SCAN_UNDECIDED. */
size_t pretok_scan_word(const struct pretok_scan *s, size_t at);

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* The same for what most words are: 1 to 15 ASCII letters, perhaps after a space. They are a word
 * in every known pattern, unless a letter of another kind follows. Without a branch on their
 * number. */
static inline size_t pretok_scan_letters(const struct pretok_scan *s, size_t at)
{
#ifdef __SSE2__
    const char *p = s->text.p + at;
    size_t space = *p == ' ';
    if (s->text.n - at < 17)
        return SCAN_UNDECIDED;
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(p + space));
    __m128i x = _mm_sub_epi8(_mm_or_si128(v, _mm_set1_epi8(0x20)), _mm_set1_epi8('a'));
    __m128i letter = _mm_cmpeq_epi8(_mm_min_epu8(x, _mm_set1_epi8(25)), x);
    unsigned others = ~(unsigned)_mm_movemask_epi8(letter) & 0xffff;
    unsigned n = others ? (unsigned)__builtin_ctz(others) : 0;
    if (n && (unsigned char)p[space + n] < 0x80)
        return at + space + n;
#else
    (void)s, (void)at;
#endif
    return SCAN_UNDECIDED;
}
