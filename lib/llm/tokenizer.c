#include "lib/llm/tokenizer_impl.h"

#include "lib/llm/unicode_later.h"
#include "lib/llm/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utf8proc.h>

#define SCRATCH_TEXT_KEEP (1u << 20)
#define MAX_NORMALIZED    (4 * (size_t)TOKENIZER_MAX_TEXT)

/* ---- lists of ids ---- */

void ids_init(struct ids *v, size_t max)
{
    *v = (struct ids){.max = max};
}

void ids_fini(struct ids *v)
{
    free(v->id);
    *v = (struct ids){.max = v->max};
}

int ids_append(struct ids *v, const uint32_t *id, size_t n)
{
    if (n > v->max || v->n > v->max - n)
        return -EMSGSIZE;
    if (v->n + n > v->cap) {
        size_t cap = v->cap ? v->cap : 64;
        while (cap < v->n + n)
            cap *= 2;
        uint32_t *p = realloc(v->id, cap * sizeof *p);
        if (!p)
            return -ENOMEM;
        v->id = p;
        v->cap = cap;
    }
    if (n)
        memcpy(v->id + v->n, id, n * sizeof *id);
    v->n += n;
    return 0;
}

int ids_push(struct ids *v, uint32_t id)
{
    if (v->n == v->cap || v->n >= v->max)
        return ids_append(v, &id, 1);
    v->id[v->n++] = id;
    return 0;
}

/* ---- scratch: one per thread that encodes right now, kept with its warm word cache ---- */

static void scratch_free(struct tok_scratch *s)
{
    bpe_scratch_fini(&s->bpe);
    pretok_scratch_fini(&s->pre);
    buf_fini(&s->text[0]);
    buf_fini(&s->text[1]);
    free(s);
}

static struct tok_scratch *scratch_new(const struct tokenizer *t)
{
    struct tok_scratch *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    buf_init(&s->text[0], MAX_NORMALIZED);
    buf_init(&s->text[1], MAX_NORMALIZED);
    if (bpe_scratch_init(&s->bpe) || pretok_scratch_init(&s->pre, &t->pre)) {
        scratch_free(s);
        return NULL;
    }
    return s;
}

/* The free list is the only thing about an open tokenizer that changes, hence the cast and the
 * lock. */
static struct tok_scratch *scratch_take(const struct tokenizer *ct)
{
    struct tokenizer *t = (struct tokenizer *)(uintptr_t)ct;
    pthread_mutex_lock(&t->lock);
    struct tok_scratch *s = t->idle;
    if (s)
        t->idle = s->next;
    pthread_mutex_unlock(&t->lock);
    return s ? s : scratch_new(t);
}

static void scratch_give(const struct tokenizer *ct, struct tok_scratch *s)
{
    struct tokenizer *t = (struct tokenizer *)(uintptr_t)ct;
    for (int i = 0; i < 2; i++)
        if (s->text[i].cap > SCRATCH_TEXT_KEEP)
            buf_fini(&s->text[i]);
    pthread_mutex_lock(&t->lock);
    s->next = t->idle;
    t->idle = s;
    pthread_mutex_unlock(&t->lock);
}

/* ---- normalising ---- */

static int norm_run(int options, struct str in, struct buf *out)
{
    utf8proc_uint8_t *p = NULL;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)in.p, (utf8proc_ssize_t)in.n, &p,
                                      (utf8proc_option_t)options);
    if (n < 0)
        return n == UTF8PROC_ERROR_NOMEM ? -ENOMEM : -E2BIG;
    int rc = buf_append(out, p, (size_t)n);
    free(p);
    return rc;
}

/* Characters that Hugging Face's normalizers don't know stay where they are, and nothing moves past
 * them. */
static int norm_unicode(enum norm_kind kind, struct str in, struct buf *out)
{
    const struct unicode_set *unknown = unicode_later_find("unnormalized");
    int options = UTF8PROC_STABLE;
    options |= kind == NORM_NFC || kind == NORM_NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    if (kind == NORM_NFKC || kind == NORM_NFKD)
        options |= UTF8PROC_COMPAT;
    size_t from = 0, k;
    uint32_t cp;
    int rc = 0;
    for (size_t i = 0; i < in.n && !rc; i += k) {
        k = utf8_next(in.p + i, in.n - i, &cp);
        if (cp < 0x300 || !unicode_set_has(unknown, cp))
            continue;
        rc = norm_run(options, (struct str){in.p + from, i - from}, out);
        if (!rc)
            rc = buf_append(out, in.p + i, k);
        from = i + k;
    }
    return rc ? rc : norm_run(options, (struct str){in.p + from, in.n - from}, out);
}

static int norm_replace(struct str in, struct str a, struct str b, struct buf *out)
{
    int rc = 0;
    while (in.n && !rc) {
        const char *hit = memmem(in.p, in.n, a.p, a.n);
        size_t k = hit ? (size_t)(hit - in.p) : in.n;
        rc = buf_append(out, in.p, k);
        if (hit && !rc)
            rc = buf_str(out, b);
        k += hit ? a.n : 0;
        in.p += k;
        in.n -= k;
    }
    return rc;
}

static int replace_byte(struct str in, char a, struct str b, struct buf *out)
{
    size_t hits = 0;
    for (size_t i = 0; i < in.n; i++)
        hits += in.p[i] == a;
    int rc = buf_reserve(out, in.n + hits * b.n);
    if (rc)
        return rc;
    char *to = out->data + out->n;
    for (size_t i = 0; i < in.n; i++) {
        if (in.p[i] != a) {
            *to++ = in.p[i];
            continue;
        }
        memcpy(to, b.p, b.n);
        to += b.n;
    }
    out->n = (size_t)(to - out->data);
    *to = 0;
    return 0;
}

static int norm_apply(const struct norm_step *st, struct str in, bool at_start, struct buf *out)
{
    struct str a = str_c(st->a), b = str_c(st->b);
    switch (st->kind) {
    case NORM_REPLACE:
        return a.n == 1 ? replace_byte(in, *a.p, b, out) : norm_replace(in, a, b, out);
    case NORM_NFC:
    case NORM_NFD:
    case NORM_NFKC:
    case NORM_NFKD: return utf8_is_ascii(in) ? buf_str(out, in) : norm_unicode(st->kind, in, out);
    case NORM_PREPEND:
    case NORM_PREPEND_ONCE:
    case NORM_PREPEND_FIRST: break;
    }
    bool wanted = in.n && (st->kind == NORM_PREPEND || !str_starts(in, a)) &&
                  (st->kind != NORM_PREPEND_FIRST || at_start);
    int rc = wanted ? buf_str(out, a) : 0;
    return rc ? rc : buf_str(out, in);
}

static bool norm_is_identity(const struct norm_step *st, struct str in)
{
    return st->kind <= NORM_NFKD && utf8_is_ascii(in);
}

/* *text becomes a view of one of the scratch buffers, or stays as it is. */
static int normalize(const struct tokenizer *t, struct tok_scratch *s, bool at_start,
                     struct str *text)
{
    for (size_t i = 0, which = 0; i < t->n_norm; i++) {
        if (norm_is_identity(&t->norm[i], *text))
            continue;
        struct buf *out = &s->text[which];
        buf_reset(out);
        int rc = norm_apply(&t->norm[i], *text, at_start, out);
        if (rc)
            return rc;
        *text = buf_view(out);
        which ^= 1;
    }
    return 0;
}

/* ---- encoding ---- */

struct encoding {
    const struct tokenizer *t;
    struct tok_scratch *s;
    struct ids *out;
    bool parse_special;
    const char *end; /* of the text that words are views of */
};

static bool is_mark(struct str w, size_t i)
{
    return i + 3 <= w.n && memcmp(w.p + i, SPM_SPACE, 3) == 0;
}

/* Whether no token holds what is on both sides of i: the last byte before and the first after. */
static bool may_cut(const struct tokenizer *t, struct str w, size_t i)
{
    unsigned char before = (unsigned char)w.p[i - 1], after = (unsigned char)w.p[i];
    if (is_mark(w, i))
        return !t->joins[before];
    if (after == '\n')
        return t->cuts_lines && !t->joins_line[before];
    return before == '\n' && t->cuts_lines && !t->line_joins[after];
}

/* A SentencePiece text has no words, but where no token crosses from a character to a following
 * U+2581, or to or from a line's end, the merges on both sides can't meet: cutting there changes
 * nothing and lets words be short and cached. */
static size_t spm_word_end(const struct tokenizer *t, struct str w)
{
    for (size_t i = 0; i < w.n;) {
        if (is_mark(w, i)) {
            do
                i += 3;
            while (is_mark(w, i));
        } else if (w.p[i] == '\n') {
            while (i < w.n && w.p[i] == '\n')
                i++;
        } else {
            do
                i++;
            while (i < w.n && w.p[i] != '\n' && w.p[i] != SPM_SPACE[0]);
        }
        if (i < w.n && may_cut(t, w, i))
            return i;
    }
    return w.n;
}

static int encode_word(void *arg, struct str word)
{
    struct encoding *c = arg;
    if (!c->t->spm)
        return bpe_encode(&c->t->bpe, &c->s->bpe, word, (size_t)(c->end - word.p), c->out);
    int rc = 0;
    while (word.n && !rc) {
        size_t k = spm_word_end(c->t, word);
        rc = bpe_encode(&c->t->bpe, &c->s->bpe, (struct str){word.p, k}, (size_t)(c->end - word.p),
                        c->out);
        word.p += k;
        word.n -= k;
    }
    return rc;
}

/* Text between raw added tokens: normalise, match the added tokens that see normalised text, cut
 * into words. */
static int cut_segment(struct encoding *c, struct str text, bool at_start)
{
    int rc = text.n ? normalize(c->t, c->s, at_start, &text) : 0;
    size_t from = 0;
    struct added_match m;
    c->end = text.p + text.n;
    while (!rc && added_next(&c->t->added, text, from, true, c->parse_special, &m)) {
        rc = pretok_run(&c->t->pre, &c->s->pre, (struct str){text.p + from, m.start - from},
                        encode_word, c);
        if (!rc)
            rc = ids_push(c->out, m.id);
        from = m.end;
    }
    if (!rc)
        rc = pretok_run(&c->t->pre, &c->s->pre, (struct str){text.p + from, text.n - from},
                        encode_word, c);
    return rc;
}

static int encode_segment(struct encoding *c, struct str text, bool at_start)
{
    struct segment_cache *cache = c->t->segments;
    if (!cache || text.n < SEGMENT_MIN_BYTES)
        return cut_segment(c, text, at_start);
    struct segment s = segment_of(cache, text, at_start | (c->parse_special ? 2u : 0u));
    size_t before = c->out->n;
    int rc = segment_cache_find(cache, &s, c->out);
    if (rc)
        return rc < 0 ? rc : 0;
    rc = cut_segment(c, text, at_start);
    if (!rc)
        segment_cache_put(cache, &s, c->out->id + before, c->out->n - before);
    return rc;
}

static int encode_text(struct encoding *c, struct str text)
{
    size_t from = 0;
    struct added_match m;
    int rc = 0;
    while (!rc && added_next(&c->t->added, text, from, false, c->parse_special, &m)) {
        rc = encode_segment(c, (struct str){text.p + from, m.start - from}, from == 0);
        if (!rc)
            rc = ids_push(c->out, m.id);
        from = m.end;
    }
    return rc ? rc : encode_segment(c, (struct str){text.p + from, text.n - from}, from == 0);
}

static int encode_all(struct encoding *c, struct str text, unsigned flags)
{
    const struct tokenizer *t = c->t;
    int rc = flags & TOKENIZE_ADD_SPECIAL ? ids_append(c->out, t->prefix, t->n_prefix) : 0;
    struct buf repaired;
    buf_init(&repaired, 3 * (size_t)TOKENIZER_MAX_TEXT);
    if (!rc && !utf8_valid(text)) {
        rc = utf8_repair(text, &repaired);
        text = buf_view(&repaired);
    }
    if (!rc)
        rc = encode_text(c, text);
    if (!rc && flags & TOKENIZE_ADD_SPECIAL)
        rc = ids_append(c->out, t->suffix, t->n_suffix);
    buf_fini(&repaired);
    return rc;
}

int tokenizer_encode(const struct tokenizer *t, struct str text, unsigned flags, struct ids *out,
                     struct err *e)
{
    if (text.n > TOKENIZER_MAX_TEXT)
        return err_set(e, E2BIG, "a text of %zu bytes is larger than the limit of %u", text.n,
                       TOKENIZER_MAX_TEXT);
    struct tok_scratch *s = scratch_take(t);
    if (!s)
        return err_set(e, ENOMEM, "not enough memory to tokenize");
    struct encoding c = {
        .t = t, .s = s, .out = out, .parse_special = flags & TOKENIZE_PARSE_SPECIAL};
    size_t before = out->n;
    int rc = encode_all(&c, text.p ? text : STR(""), flags);
    scratch_give(t, s);
    if (!rc)
        return 0;
    out->n = before;
    if (rc == -EMSGSIZE)
        return err_set(e, EMSGSIZE, "the text has more than %zu tokens", out->max);
    return err_set(e, -rc,
                   rc == -ENOMEM ? "not enough memory to tokenize"
                                 : "the text can't be cut by this model's pre-tokenizer");
}

/* ---- opening ---- */

static int find_file(const char *path, char out[4096], bool *gguf, struct err *e)
{
    struct stat st;
    struct str name = str_c(path);
    if (stat(path, &st))
        return err_set(e, errno, "%s: %s", path, strerror(errno));
    const char *inside = S_ISDIR(st.st_mode) ? "/tokenizer.json" : "";
    if (str_ends(name, STR(".safetensors")) || str_ends(name, STR(".safetensors.index.json"))) {
        const char *slash = strrchr(path, '/'); /* weights: the tokenizer lies beside them */
        name.n = slash ? (size_t)(slash - path) + 1 : 0;
        inside = "tokenizer.json";
    }
    if (snprintf(out, 4096, STR_FMT "%s", STR_ARG(name), inside) >= 4096)
        return err_set(e, ENAMETOOLONG, "%s: the path is too long", path);
    FILE *f = fopen(out, "rbe");
    if (!f)
        return err_set(e, errno, "%s: %s", out, strerror(errno));
    char magic[4] = {0};
    *gguf = fread(magic, 1, 4, f) == 4 && memcmp(magic, "GGUF", 4) == 0;
    fclose(f);
    return 0;
}

int tokenizer_open(const char *path, struct tokenizer **out, struct err *e)
{
    char file[4096];
    bool gguf = false;
    int rc = find_file(path, file, &gguf, e);
    if (rc)
        return rc;
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t || pthread_mutex_init(&t->lock, NULL)) {
        free(t);
        return err_set(e, ENOMEM, "not enough memory for a tokenizer");
    }
    t->bos = t->eos = t->pad = t->bpe.unk = TOKEN_NONE;
    rc = added_init(&t->added);
    if (rc)
        err_set(e, ENOMEM, "not enough memory for a tokenizer");
    else
        rc = gguf ? tokenizer_load_gguf(file, t, e) : tokenizer_load_json(file, t, e);
    if (!rc)
        rc = tokenizer_finish(t, e);
    if (rc) {
        tokenizer_free(t);
        return e ? err_wrap(e, "%s: tokenizer", file) : rc;
    }
    *out = t;
    return 0;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    for (struct tok_scratch *s = t->idle, *next; s; s = next) {
        next = s->next;
        scratch_free(s);
    }
    for (size_t i = 0; i < t->n_norm; i++) {
        free(t->norm[i].a);
        free(t->norm[i].b);
    }
    segment_cache_free(t->segments);
    vocab_fini(&t->v);
    added_fini(&t->added);
    pretok_fini(&t->pre);
    free(t->special);
    free(t->chat_template);
    free(t->out_off);
    free(t->out_bytes);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

void tokenizer_remember(struct tokenizer *t, size_t bytes)
{
    if (!t->segments)
        t->segments = segment_cache_new(bytes); /* without it everything is only slower */
}

void tokenizer_freep(struct tokenizer **t)
{
    tokenizer_free(*t);
    *t = NULL;
}
