/* GPT-2's byte alphabet: printable Latin-1 bytes stand for themselves, the other 68 for U+0100
 * onwards, in order. */
#include "lib/llm/tokenizer_impl.h"
#include "lib/llm/utf8.h"

static bool printable(unsigned b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

static int byte_of(uint32_t cp)
{
    if (cp < 0x100)
        return printable(cp) ? (int)cp : -1;
    uint32_t k = 0x100;
    for (unsigned b = 0; b < 256; b++)
        if (!printable(b) && k++ == cp)
            return (int)b;
    return -1;
}

bool bytelevel_decode(struct str s, char *out, size_t *n)
{
    uint32_t cp;
    *n = 0;
    for (size_t i = 0; i < s.n;) {
        unsigned char c = (unsigned char)s.p[i];
        int b = c;
        if (c >= 0x80 || !printable(c)) {
            i += utf8_next(s.p + i, s.n - i, &cp);
            b = cp > 0x143 ? -1 : byte_of(cp);
        } else {
            i++;
        }
        if (b < 0)
            return false;
        out[(*n)++] = (char)b;
    }
    return true;
}
