/* libFuzzer: what a fetch parses of the outside: the Hub's listing, a peer's manifest, model
 * sources, Content-Range. */
#include "lib/fetch/remote.h"
#include "lib/fetch/set.h"
#include "lib/fetch/source.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_set(const struct set *s)
{
    char hex[SHA_HEX];
    ASSERT(s->n > 0 && s->n <= SET_MAX_FILES);
    for (size_t i = 0; i < s->n; i++)
        ASSERT(source_name_safe(str_c(s->files[i].name)) && !strchr(s->files[i].name, '/'));
    set_digest(s, hex);
}

static void listing(struct str text)
{
    struct set s = {0};
    char commit[129];
    if (set_from_listing(text, "fuzz", &s, commit, NULL) == 0) {
        ASSERT(!strchr(commit, '/'));
        check_set(&s);
        set_fini(&s);
    }
}

static void manifest(struct str text)
{
    struct set s = {0}, again = {0};
    CLEANUP(json_decrefp) json_t *o = json_parse(text, 1u << 20, 0, NULL);
    if (!o || set_from_json(o, &s, NULL))
        return;
    check_set(&s);
    CLEANUP(json_decrefp) json_t *out = set_to_json(&s);
    ASSERT(set_from_json(out, &again, NULL) == 0 && again.n == s.n);
    set_fini(&s);
    set_fini(&again);
}

static void source(struct str text)
{
    struct source s;
    char key[SOURCE_KEY_MAX];
    CLEANUP(free_charp) char *z = str_dup(text);
    if (source_parse(z, &s, NULL) == 0 && s.kind != SOURCE_FILE && s.kind != SOURCE_HTTPS &&
        *s.path)
        ASSERT(source_name_safe(str_c(s.path)));
    source_key(z, z, "", key);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1)
        return 0;
    struct str text = {(const char *)data + 1, n - 1};
    uint64_t first, last, total;
    switch (data[0] % 4) {
    case 0: listing(text); break;
    case 1: manifest(text); break;
    case 2: source(text); break;
    case 3:
        if (remote_content_range(text, &first, &last, &total) == 0)
            ASSERT(first <= last && (total == 0 || last < total));
        break;
    }
    return 0;
}
