/* A tokenizer from Hugging Face's tokenizer.json, with tokenizer_config.json,
 * generation_config.json and chat_template.jinja beside it. The vocabulary and the merges are read
 * with the pull scanner (they may be 30 MB); the small sections with jansson. A component that
 * would change ids and isn't known is refused, never skipped. */
#include "lib/json/json.h"
#include "lib/json/scan.h"
#include "lib/llm/tokenizer_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_FILE    (512u << 20)
#define MAX_SECTION (8u << 20)
#define MAX_MERGES  (16u << 20)

struct entry {
    struct str text; /* in the arena or the file */
    uint32_t id;
};
struct loader {
    struct tokenizer *t;
    struct buf file;
    struct arena a;
    struct str normalizer, pre, post, decoder, added, vocab, merges; /* raw sections */
    struct entry *entry;
    size_t n_entries, cap_entries;
    uint32_t n_ids;
    json_t *added_json;
    uint8_t *special; /* by id */
    char unk[256];
};

static int read_file(const char *path, struct buf *out, struct err *e)
{
    CLEANUP(close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(e, errno, "%s: %s", path, strerror(errno));
    for (;;) {
        if (buf_reserve(out, 1 << 20))
            return err_set(e, EFBIG, "%s: larger than %u MiB", path, MAX_FILE >> 20);
        ssize_t n = read(fd, out->data + out->n, 1 << 20);
        if (n < 0)
            return err_set(e, errno, "%s: %s", path, strerror(errno));
        if (n == 0)
            return 0;
        out->n += (size_t)n;
    }
}

/* ---- sections ---- */

static int read_flag(const struct scan_tok *v, bool *out)
{
    *out = v->kind == SCAN_TRUE;
    return 0;
}

static int read_model_member(struct loader *l, struct scan *s, const struct scan_tok *k,
                             struct scan_tok *v, struct err *e)
{
    struct str raw, text;
    struct bpe *b = &l->t->bpe;
    int rc = scan_skip(s, v, &raw);
    if (rc)
        return rc;
    if (scan_text_is(k, "type") && !scan_text_is(v, "BPE"))
        return err_set(e, ENOTSUP, "model type %.*s is not supported (BPE is)",
                       (int)(raw.n > 32 ? 32 : raw.n), raw.p);
    if (scan_text_is(k, "vocab"))
        l->vocab = raw;
    else if (scan_text_is(k, "merges"))
        l->merges = raw;
    else if (scan_text_is(k, "byte_fallback"))
        return read_flag(v, &b->byte_fallback);
    else if (scan_text_is(k, "fuse_unk"))
        return read_flag(v, &b->fuse_unk);
    else if (scan_text_is(k, "ignore_merges"))
        return read_flag(v, &b->ignore_merges);
    else if (scan_text_is(k, "unk_token") && v->kind == SCAN_STRING) {
        if (scan_text(v, &l->a, &text) || text.n >= sizeof l->unk)
            return err_set(e, EINVAL, "unk_token is too long");
        memcpy(l->unk, text.p, text.n);
    } else if ((scan_text_is(k, "continuing_subword_prefix") ||
                scan_text_is(k, "end_of_word_suffix")) &&
               v->kind == SCAN_STRING && v->text.n)
        return err_set(e, ENOTSUP, "model.%.*s is not supported", (int)k->text.n, k->text.p);
    return 0;
}

static int read_model(struct loader *l, struct scan *s, struct err *e)
{
    struct scan_tok k, v;
    int rc;
    while ((rc = scan_member(s, &k, &v)) > 0) {
        rc = read_model_member(l, s, &k, &v, e);
        if (rc)
            return rc;
    }
    return rc;
}

static int read_top(struct loader *l, struct err *e)
{
    struct scan s;
    struct scan_tok k, v;
    scan_init(&s, buf_view(&l->file), 32);
    int rc = scan_next(&s, &v);
    if (!rc && v.kind != SCAN_OBJECT)
        rc = err_set(e, EINVAL, "tokenizer.json is not an object");
    while (!rc && (rc = scan_member(&s, &k, &v)) > 0) {
        struct str *to = scan_text_is(&k, "normalizer")       ? &l->normalizer
                         : scan_text_is(&k, "pre_tokenizer")  ? &l->pre
                         : scan_text_is(&k, "post_processor") ? &l->post
                         : scan_text_is(&k, "decoder")        ? &l->decoder
                         : scan_text_is(&k, "added_tokens")   ? &l->added
                                                              : NULL;
        if (scan_text_is(&k, "model") && v.kind == SCAN_OBJECT)
            rc = read_model(l, &s, e);
        else
            rc = scan_skip(&s, &v, to);
    }
    if (s.why)
        rc = scan_why(&s, e);
    scan_fini(&s);
    if (!rc && (!l->vocab.n || !l->merges.n))
        rc = err_set(e, EINVAL, "tokenizer.json has no BPE model with vocab and merges");
    return rc;
}

/* ---- the vocabulary ---- */

static int add_entry(struct loader *l, struct str text, int64_t id)
{
    if (l->n_entries == l->cap_entries) {
        size_t cap = l->cap_entries ? l->cap_entries * 2 : 4096;
        struct entry *p =
            cap > 2u * TOKENIZER_MAX_VOCAB ? NULL : realloc(l->entry, cap * sizeof *p);
        if (!p)
            return -ENOMEM;
        l->entry = p;
        l->cap_entries = cap;
    }
    l->entry[l->n_entries++] = (struct entry){text, (uint32_t)id};
    if (id >= l->n_ids)
        l->n_ids = (uint32_t)id + 1;
    return 0;
}

static int collect_vocab(struct loader *l, struct err *e)
{
    struct scan s;
    struct scan_tok k, v;
    struct str text;
    int64_t id;
    scan_init(&s, l->vocab, 4);
    int rc = scan_next(&s, &v);
    if (!rc && v.kind != SCAN_OBJECT)
        rc = -EINVAL;
    while (!rc && (rc = scan_member(&s, &k, &v)) > 0) {
        rc = scan_i64(&v, 0, TOKENIZER_MAX_VOCAB - 1, &id);
        if (!rc)
            rc = scan_text(&k, &l->a, &text);
        if (!rc)
            rc = add_entry(l, text, id);
    }
    scan_fini(&s);
    return rc ? err_set(e, EINVAL, "model.vocab doesn't map texts to ids below %u",
                        TOKENIZER_MAX_VOCAB)
              : 0;
}

static int by_id(const void *a, const void *b)
{
    uint32_t x = ((const struct entry *)a)->id, y = ((const struct entry *)b)->id;
    return x < y ? -1 : x > y;
}

/* The bytes that the BPE works on; decoded in place in the arena for byte-level models. */
static struct str key_of(struct loader *l, struct str text)
{
    size_t n;
    char *p = l->t->bpe.byte_level ? arena_alloc(&l->a, text.n + 1) : NULL;
    return p && bytelevel_decode(text, p, &n) ? (struct str){p, n} : text;
}

static int build_vocab(struct loader *l, struct err *e)
{
    struct tokenizer *t = l->t;
    int rc = collect_vocab(l, e);
    size_t i;
    json_t *a;
    json_array_foreach (l->added_json, i, a) {
        int64_t id = json_int_at(a, "id", -1);
        if (rc || id < 0 || id >= TOKENIZER_MAX_VOCAB)
            return rc ? rc
                      : err_set(e, EINVAL, "added_tokens[%zu] has no id below %u", i,
                                TOKENIZER_MAX_VOCAB);
        if (id >= l->n_ids)
            l->n_ids = (uint32_t)id + 1;
    }
    if (!rc)
        rc = vocab_init(&t->v, l->n_ids, e);
    if (rc)
        return rc;
    qsort(l->entry, l->n_entries, sizeof *l->entry, by_id);
    size_t at = 0;
    for (uint32_t id = 0; id < l->n_ids && !rc; id++) {
        bool known = at < l->n_entries && l->entry[at].id == id;
        rc = vocab_add(&t->v, id, known ? key_of(l, l->entry[at].text) : STR(""), known, e);
        while (at < l->n_entries && l->entry[at].id == id)
            at++;
    }
    return rc;
}

static int build_added(struct loader *l, struct err *e)
{
    size_t i;
    l->special = xcalloc((size_t)l->n_ids + 1, 1);
    json_t *a;
    json_array_foreach (l->added_json, i, a) {
        const char *content;
        int rc = json_need_str(a, "content", &content, e);
        if (rc)
            return err_wrap(e, "added_tokens[%zu]", i);
        unsigned flags = (json_bool_at(a, "special", false) ? ADDED_SPECIAL : 0) |
                         (json_bool_at(a, "normalized", false) ? ADDED_NORMALIZED : 0) |
                         (json_bool_at(a, "lstrip", false) ? ADDED_LSTRIP : 0) |
                         (json_bool_at(a, "rstrip", false) ? ADDED_RSTRIP : 0) |
                         (json_bool_at(a, "single_word", false) ? ADDED_SINGLE_WORD : 0);
        rc = added_add(&l->t->added, str_c(content), (uint32_t)json_int_at(a, "id", 0), flags, e);
        if (rc)
            return rc;
        l->special[json_int_at(a, "id", 0)] = (flags & ADDED_SPECIAL) != 0;
    }
    return 0;
}

/* ---- merges: "a b" or ["a", "b"] ---- */

static int merge_parts(struct loader *l, struct scan *s, const struct scan_tok *v, struct str *a,
                       struct str *b)
{
    struct scan_tok x, y, end;
    if (v->kind == SCAN_ARRAY) {
        int rc = scan_element(s, &x);
        rc = rc > 0 ? scan_element(s, &y) : -EINVAL;
        rc = rc > 0 ? scan_element(s, &end) : -EINVAL;
        if (rc || x.kind != SCAN_STRING || y.kind != SCAN_STRING)
            return -EINVAL;
        return scan_text(&x, &l->a, a) || scan_text(&y, &l->a, b) ? -EINVAL : 0;
    }
    struct str line;
    if (v->kind != SCAN_STRING || scan_text(v, &l->a, &line))
        return -EINVAL;
    const char *cut = line.n > 1 ? memchr(line.p + 1, ' ', line.n - 1) : NULL;
    if (!cut)
        return -EINVAL;
    *a = (struct str){line.p, (size_t)(cut - line.p)};
    *b = (struct str){cut + 1, line.n - a->n - 1};
    return 0;
}

static int add_pair(struct loader *l, struct str a, struct str b, uint32_t rank)
{
    struct vocab *v = &l->t->v;
    struct arena *scratch = &l->a;
    a = key_of(l, a);
    b = key_of(l, b);
    uint32_t left = vocab_find(v, a), right = vocab_find(v, b);
    char *joined = arena_alloc(scratch, a.n + b.n + 1);
    if (!joined)
        return -ENOMEM;
    memcpy(joined, a.p, a.n);
    memcpy(joined + a.n, b.p, b.n);
    uint32_t whole = vocab_find(v, (struct str){joined, a.n + b.n});
    if (left == TOKEN_NONE || right == TOKEN_NONE || whole == TOKEN_NONE)
        return -EINVAL;
    /* Text that only looks like a control token must not merge into it. */
    if (l->special[whole])
        return 0;
    vocab_pair_add(v, left, right, rank, whole);
    return 0;
}

static int build_merges(struct loader *l, struct err *e)
{
    struct scan s;
    struct scan_tok v;
    struct str a, b;
    size_t n = 0, upper = 1;
    for (size_t i = 0; i < l->merges.n; i++) /* an upper bound that a look at the bytes gives */
        upper += l->merges.p[i] == ',';
    int rc = upper > 2 * MAX_MERGES ? err_set(e, E2BIG, "too many merges")
                                    : vocab_pairs_init(&l->t->v, upper, e);
    if (rc)
        return rc;
    scan_init(&s, l->merges, 4);
    rc = scan_next(&s, &v);
    if (!rc && v.kind != SCAN_ARRAY)
        rc = -EINVAL;
    while (!rc && (rc = scan_element(&s, &v)) > 0) {
        rc = merge_parts(l, &s, &v, &a, &b);
        if (!rc)
            rc = add_pair(l, a, b, (uint32_t)n++);
    }
    scan_fini(&s);
    return rc ? err_set(e, EINVAL, "model.merges[%zu] is not two tokens of the vocabulary", n) : 0;
}

/* ---- the whole file ---- */

static int load(struct loader *l, const char *path, struct err *e)
{
    int rc = read_file(path, &l->file, e);
    if (!rc)
        rc = read_top(l, e);
    if (rc)
        return rc;
    l->t->bpe.byte_level = memmem(l->pre.p ? l->pre.p : "", l->pre.n, "ByteLevel", 9) ||
                           memmem(l->decoder.p ? l->decoder.p : "", l->decoder.n, "ByteLevel", 9);
    if (l->added.n)
        l->added_json = json_parse(l->added, MAX_SECTION, 0, e);
    if (l->added.n && !l->added_json)
        return err_wrap(e, "added_tokens");
    rc = build_vocab(l, e);
    if (!rc)
        rc = build_added(l, e);
    if (!rc)
        rc = build_merges(l, e);
    if (!rc)
        rc = tokenizer_json_pipeline(l->t, l->normalizer, l->pre, l->post, l->decoder, e);
    if (!rc && l->unk[0])
        l->t->bpe.unk = vocab_find(&l->t->v, str_c(l->unk));
    return rc;
}

int tokenizer_load_json(const char *path, struct tokenizer *t, struct err *e)
{
    struct loader l = {.t = t};
    buf_init(&l.file, MAX_FILE);
    arena_init(&l.a, MAX_FILE);
    int rc = load(&l, path, e);
    if (!rc) {
        const char *slash = strrchr(path, '/');
        CLEANUP(free_charp)
        char *folder = slash ? str_dup((struct str){path, (size_t)(slash - path)}) : xstrdup(".");
        rc = tokenizer_json_config(t, folder, e);
    }
    json_decref(l.added_json);
    free(l.entry);
    free(l.special);
    arena_fini(&l.a);
    buf_fini(&l.file);
    return rc;
}
