/* libFuzzer: the pull scanner on arbitrary bytes; whatever it accepts, jansson accepts too, and the
 * other way round. */
#include "lib/json/json.h"
#include "lib/json/scan.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct str text = {(const char *)data, n};
    struct scan s;
    struct scan_tok t = {0};
    struct err e = {0};
    json_error_t je;
    int deepest = 0;
    scan_init(&s, text, 0);
    while (scan_next(&s, &t) == 0 && t.kind != SCAN_END) {
        ASSERT(t.text.p >= text.p && t.text.p + t.text.n <= text.p + n && s.at <= n);
        deepest = s.depth > deepest ? s.depth : deepest;
        if (t.kind == SCAN_STRING || t.kind == SCAN_KEY) {
            char *out = xmalloc(t.text.n + 1);
            ASSERT(scan_unescape(t.text, out) <= t.text.n);
            free(out);
        }
    }
    scan_why(&s, &e);
    json_t *o = json_loadb((const char *)data, n,
                           JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
    bool other_rules =
        strstr(je.text, "too big") || strstr(je.text, "overflow") || strstr(je.text, "NUL byte");
    bool nul_byte = n && memchr(data, 0, n); /* jansson reads a NUL after the value as its end */
    if (!strstr(e.msg, "too deep") && !(!o && other_rules) && !nul_byte)
        ASSERT(!o == !!s.why);
    json_decref(o);
    scan_fini(&s);
    return 0;
}
