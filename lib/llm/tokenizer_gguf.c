/* A tokenizer from a GGUF file's tokenizer.* keys. Weights are not read. */
#include "lib/llm/tokenizer_impl.h"

#include "lib/llm/gguf.h"
#include "lib/llm/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_PAIRS (16u << 20)

enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN,
    TOKEN_CONTROL,
    TOKEN_USER_DEFINED,
    TOKEN_UNUSED,
    TOKEN_BYTE
};

struct source {
    struct gguf *g;
    const struct str *tokens;
    size_t n_tokens;
    const int64_t *types; /* NULL: all are normal */
    const float *scores;  /* NULL: none */
    const struct str *merges;
    size_t n_merges;
};

static void gguf_freep(struct gguf **g)
{
    gguf_free(*g);
}

static int64_t type_of(const struct source *s, size_t id)
{
    return s->types ? s->types[id] : TOKEN_NORMAL;
}

static int read_arrays(struct source *s, struct err *e)
{
    size_t n;
    if (gguf_strs(s->g, "tokenizer.ggml.tokens", &s->tokens, &s->n_tokens) || s->n_tokens == 0)
        return err_set(e, EINVAL, "the file has no vocabulary (tokenizer.ggml.tokens)");
    if (s->n_tokens > TOKENIZER_MAX_VOCAB)
        return err_set(e, E2BIG, "a vocabulary of %zu tokens is larger than the limit of %u",
                       s->n_tokens, TOKENIZER_MAX_VOCAB);
    int rc = gguf_i64s(s->g, "tokenizer.ggml.token_type", &s->types, &n);
    if (rc != -ENOENT && (rc || n != s->n_tokens))
        return err_set(e, EINVAL, "tokenizer.ggml.token_type doesn't have one entry a token");
    rc = gguf_f32s(s->g, "tokenizer.ggml.scores", &s->scores, &n);
    if (rc != -ENOENT && (rc || n != s->n_tokens))
        return err_set(e, EINVAL, "tokenizer.ggml.scores doesn't have one entry a token");
    rc = gguf_strs(s->g, "tokenizer.ggml.merges", &s->merges, &s->n_merges);
    if (rc != -ENOENT && rc)
        return err_set(e, EINVAL, "tokenizer.ggml.merges is not a list of strings");
    return 0;
}

static uint32_t id_at(const struct source *s, const char *key)
{
    uint64_t v;
    return gguf_u64(s->g, key, &v) || v >= s->n_tokens ? TOKEN_NONE : (uint32_t)v;
}

static bool bool_or(const struct source *s, const char *key, bool dflt)
{
    bool v;
    return gguf_bool(s->g, key, &v) ? dflt : v;
}

static struct str str_or(const struct source *s, const char *key, struct str dflt)
{
    struct str v;
    return gguf_str(s->g, key, &v) ? dflt : v;
}

static bool all_spaces(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] != ' ')
            return false;
    return s.n > 0;
}

/* User-defined runs of spaces are written as spaces in the file; the BPE sees U+2581. */
static int spm_key(struct str tok, struct buf *out)
{
    int rc = 0;
    buf_reset(out);
    if (!all_spaces(tok))
        return buf_str(out, tok);
    for (size_t i = 0; i < tok.n && !rc; i++)
        rc = buf_cstr(out, SPM_SPACE);
    return rc;
}

static int key_of(const struct tokenizer *t, struct str tok, int64_t type, struct buf *out)
{
    size_t n;
    if (t->spm)
        return type == TOKEN_USER_DEFINED ? spm_key(tok, out) : (buf_reset(out), buf_str(out, tok));
    buf_reset(out);
    int rc = buf_reserve(out, tok.n);
    if (rc)
        return rc;
    if (type == TOKEN_CONTROL || type == TOKEN_USER_DEFINED ||
        !bytelevel_decode(tok, out->data, &n))
        return buf_str(out, tok);
    out->n = n;
    return 0;
}

static int add_tokens(struct tokenizer *t, const struct source *s, struct err *e)
{
    struct buf key;
    buf_init(&key, 1u << 20);
    int rc = vocab_init(&t->v, (uint32_t)s->n_tokens, e);
    for (uint32_t id = 0; id < s->n_tokens && !rc; id++) {
        int64_t type = type_of(s, id);
        if (key_of(t, s->tokens[id], type, &key)) {
            rc = err_set(e, E2BIG, "token %u has %zu bytes", id, s->tokens[id].n);
            break;
        }
        bool control = type == TOKEN_CONTROL || type == TOKEN_UNKNOWN;
        rc = vocab_add(&t->v, id, buf_view(&key), !control && type != TOKEN_UNUSED, e);
        if (!rc && (control || type == TOKEN_USER_DEFINED))
            rc = added_add(&t->added, buf_view(&key), id, control ? ADDED_SPECIAL : 0, e);
    }
    buf_fini(&key);
    return rc;
}

/* ---- merges as listed (byte-level models) ---- */

static int decode_part(const struct tokenizer *t, struct str part, struct buf *out)
{
    return key_of(t, part, TOKEN_NORMAL, out);
}

static int add_merge(struct tokenizer *t, struct str line, uint32_t rank, struct buf *l,
                     struct buf *r)
{
    const char *cut = line.n > 1 ? memchr(line.p + 1, ' ', line.n - 1) : NULL;
    if (!cut)
        return -EINVAL;
    struct str a = {line.p, (size_t)(cut - line.p)};
    struct str b = {cut + 1, line.n - a.n - 1};
    if (decode_part(t, a, l) || decode_part(t, b, r))
        return -EINVAL;
    uint32_t left = vocab_find(&t->v, buf_view(l)), right = vocab_find(&t->v, buf_view(r));
    if (buf_str(l, buf_view(r)))
        return -EINVAL;
    uint32_t whole = vocab_find(&t->v, buf_view(l));
    if (left == TOKEN_NONE || right == TOKEN_NONE || whole == TOKEN_NONE)
        return -ENOENT;
    vocab_pair_add(&t->v, left, right, rank, whole);
    return 0;
}

static int add_merges(struct tokenizer *t, const struct source *s, struct err *e)
{
    struct buf l, r;
    buf_init(&l, 1u << 20);
    buf_init(&r, 1u << 20);
    int rc = s->n_merges > MAX_PAIRS ? err_set(e, E2BIG, "%zu merges are too many", s->n_merges)
                                     : vocab_pairs_init(&t->v, s->n_merges, e);
    for (size_t i = 0; i < s->n_merges && !rc; i++) {
        rc = add_merge(t, s->merges[i], (uint32_t)i, &l, &r);
        if (rc == -ENOENT)
            rc = 0; /* a merge of tokens that the vocabulary lacks can't happen */
        else if (rc)
            err_set(e, EINVAL, "merge %zu (tokenizer.ggml.merges) is not two tokens", i);
    }
    buf_fini(&l);
    buf_fini(&r);
    return rc;
}

/* ---- merges from scores (SentencePiece models) ----
 * Every way to cut a token into two tokens is a merge. Order: the better score of the whole first,
 * then the longer left part; so Hugging Face's converter derives them. User-defined tokens count as
 * score 0. */

struct derived {
    float score;
    uint32_t n_left, n_right; /* characters */
    uint32_t id, left, right;
};

static int by_rank(const void *pa, const void *pb)
{
    const struct derived *a = pa, *b = pb;
    if (a->score != b->score)
        return a->score > b->score ? -1 : 1;
    if (a->n_left != b->n_left)
        return a->n_left > b->n_left ? -1 : 1;
    if (a->n_right != b->n_right)
        return a->n_right > b->n_right ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

struct derived_list {
    struct derived *d;
    size_t n, cap;
};

static int push_derived(struct derived_list *l, struct derived d)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4096;
        struct derived *p = cap > MAX_PAIRS ? NULL : realloc(l->d, cap * sizeof *p);
        if (!p)
            return -E2BIG;
        l->d = p;
        l->cap = cap;
    }
    l->d[l->n++] = d;
    return 0;
}

static int derive_token(const struct tokenizer *t, uint32_t id, float score, struct derived_list *l)
{
    struct str k = vocab_key(&t->v, id);
    size_t chars = utf8_count(k), done = 0;
    uint32_t cp;
    int rc = 0;
    if (chars > 512)
        return 0; /* no token of a trained vocabulary is that long: bounds the work on hostile files
                   */
    for (size_t i = 0; i < k.n && !rc;) {
        i += utf8_next(k.p + i, k.n - i, &cp);
        done++;
        if (i == k.n)
            break;
        uint32_t left = vocab_find(&t->v, (struct str){k.p, i});
        uint32_t right =
            left == TOKEN_NONE ? left : vocab_find(&t->v, (struct str){k.p + i, k.n - i});
        if (right != TOKEN_NONE)
            rc = push_derived(l, (struct derived){score, (uint32_t)done, (uint32_t)(chars - done),
                                                  id, left, right});
    }
    return rc;
}

static int derive_merges(struct tokenizer *t, const struct source *s, struct err *e)
{
    struct derived_list l = {0};
    int rc = 0;
    for (uint32_t id = 0; id < s->n_tokens && !rc; id++) {
        int64_t type = type_of(s, id);
        if (type == TOKEN_NORMAL || type == TOKEN_USER_DEFINED)
            rc = derive_token(t, id, type == TOKEN_NORMAL ? s->scores[id] : 0, &l);
    }
    if (rc) {
        err_set(e, E2BIG, "the vocabulary has more than %u merges", MAX_PAIRS);
    } else {
        if (l.n)
            qsort(l.d, l.n, sizeof *l.d, by_rank);
        rc = vocab_pairs_init(&t->v, l.n, e);
        for (size_t i = 0; i < l.n && !rc; i++)
            vocab_pair_add(&t->v, l.d[i].left, l.d[i].right, (uint32_t)i, l.d[i].id);
    }
    free(l.d);
    return rc;
}

/* ---- the two kinds ---- */

static int load_byte_level(struct tokenizer *t, const struct source *s, struct err *e)
{
    struct str pre = str_or(s, "tokenizer.ggml.pre", STR("default"));
    bool nfc = false;
    t->bpe.byte_level = true;
    if (!s->merges)
        return err_set(e, EINVAL, "the file has no merges (tokenizer.ggml.merges)");
    int rc = pretok_add_named(&t->pre, pre, &nfc, &t->bpe.ignore_merges, e);
    if (!rc && nfc)
        rc = tokenizer_add_norm(t, NORM_NFC, STR(""), STR(""), e);
    if (!rc)
        rc = add_tokens(t, s, e);
    if (!rc)
        rc = add_merges(t, s, e);
    snprintf(t->pre_name, sizeof t->pre_name, "%.*s", (int)(pre.n > 60 ? 60 : pre.n), pre.p);
    return rc;
}

static int load_spm(struct tokenizer *t, const struct source *s, struct err *e)
{
    bool space_prefix = bool_or(s, "tokenizer.ggml.add_space_prefix", true);
    t->spm = t->bpe.byte_fallback = t->bpe.fuse_unk = true;
    t->strip_left_space = space_prefix;
    if (!s->scores)
        return err_set(e, EINVAL, "the file has no scores (tokenizer.ggml.scores)");
    int rc = space_prefix ? tokenizer_add_norm(t, NORM_PREPEND, STR(SPM_SPACE), STR(""), e) : 0;
    if (!rc)
        rc = tokenizer_add_norm(t, NORM_REPLACE, STR(" "), STR(SPM_SPACE), e);
    if (!rc)
        rc = add_tokens(t, s, e);
    if (!rc)
        rc = derive_merges(t, s, e);
    t->bpe.unk = id_at(s, "tokenizer.ggml.unknown_token_id");
    return rc;
}

static void read_special(struct tokenizer *t, const struct source *s, bool bos_by_default)
{
    bool add_bos = bool_or(s, "tokenizer.ggml.add_bos_token", bos_by_default);
    bool add_eos = bool_or(s, "tokenizer.ggml.add_eos_token", false);
    t->bos = id_at(s, "tokenizer.ggml.bos_token_id");
    t->eos = id_at(s, "tokenizer.ggml.eos_token_id");
    t->pad = id_at(s, "tokenizer.ggml.padding_token_id");
    if (add_bos && t->bos != TOKEN_NONE)
        t->prefix[t->n_prefix++] = t->bos;
    if (add_eos && t->eos != TOKEN_NONE)
        t->suffix[t->n_suffix++] = t->eos;
    tokenizer_add_eog(t, id_at(s, "tokenizer.ggml.eot_token_id"));
    tokenizer_add_eog(t, id_at(s, "tokenizer.ggml.eom_token_id"));
    struct str chat = str_or(s, "tokenizer.chat_template", STR(""));
    if (chat.n)
        t->chat_template = str_dup(chat);
}

int tokenizer_load_gguf(const char *path, struct tokenizer *t, struct err *e)
{
    struct source s = {0};
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    int rc = gguf_open(path, &g, e);
    if (rc)
        return rc;
    s.g = g;
    rc = read_arrays(&s, e);
    if (rc)
        return rc;
    struct str model = str_or(&s, "tokenizer.ggml.model", STR(""));
    bool llama = str_eq_c(model, "llama");
    if (llama)
        rc = load_spm(t, &s, e);
    else if (str_eq_c(model, "gpt2"))
        rc = load_byte_level(t, &s, e);
    else
        return err_set(e, ENOTSUP, "tokenizer model \"%.*s\" is not supported (gpt2 and llama are)",
                       (int)(model.n > 64 ? 64 : model.n), model.p);
    if (!rc)
        read_special(t, &s, llama || str_eq_c(str_c(t->pre_name), "llama-bpe"));
    return rc;
}
