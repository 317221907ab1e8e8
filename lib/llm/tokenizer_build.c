/* What every loader's tokenizer gets in the end, and the questions that are answered from it. */
#include "lib/llm/tokenizer_impl.h"

#include "lib/llm/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

int tokenizer_add_norm(struct tokenizer *t, enum norm_kind kind, struct str a, struct str b,
                       struct err *e)
{
    if (t->n_norm == TOKENIZER_MAX_NORMS)
        return err_set(e, E2BIG, "more than %d normalizing steps", TOKENIZER_MAX_NORMS);
    if (kind == NORM_REPLACE && a.n == 0)
        return err_set(e, EINVAL, "a normalizer replaces the empty string");
    t->norm[t->n_norm++] = (struct norm_step){kind, str_dup(a), str_dup(b)};
    return 0;
}

void tokenizer_add_eog(struct tokenizer *t, uint32_t id)
{
    if (id >= t->v.n || t->n_eog == TOKENIZER_MAX_EOG || tokenizer_is_eog(t, id))
        return;
    size_t i = t->n_eog++;
    for (; i && t->eog[i - 1] > id; i--)
        t->eog[i] = t->eog[i - 1];
    t->eog[i] = id;
}

/* Control tokens that end a generation in some family, whatever the file says about EOS. */
static void add_known_eog(struct tokenizer *t)
{
    static const char *const names[] = {
        "<|eot_id|>",    "<|im_end|>",          "<|end|>",    "<end_of_turn>",
        "<|endoftext|>", "<|end_of_text|>",     "<|eom_id|>", "<EOT>",
        "_<EOT>",        "<|end_of_sentence|>", "<|return|>", "<|call|>",
    };
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        for (size_t i = 0; i < t->added.n; i++)
            if (strcmp(t->added.tok[i].text, names[k]) == 0)
                tokenizer_add_eog(t, t->added.tok[i].id);
    if (t->eos != TOKEN_NONE)
        tokenizer_add_eog(t, t->eos);
}

static int hex_byte(struct str key)
{
    uint8_t b;
    if (key.n != 6 || memcmp(key.p, "<0x", 3) != 0 || key.p[5] != '>' ||
        str_from_hex((struct str){key.p + 3, 2}, &b, 1))
        return -1;
    return b;
}

static void find_byte_ids(struct tokenizer *t)
{
    t->bpe.mark_id = vocab_find(&t->v, STR(SPM_SPACE));
    for (unsigned b = 0; b < 256; b++) {
        char text[8];
        if (t->bpe.byte_level) {
            text[0] = (char)b;
            t->bpe.byte_id[b] = vocab_find(&t->v, (struct str){text, 1});
        } else {
            snprintf(text, sizeof text, "<0x%02X>", b);
            t->bpe.byte_id[b] = vocab_find(&t->v, str_c(text));
            if (b < 0x80)
                t->bpe.ascii_id[b] = vocab_find(&t->v, (struct str){(char[]){(char)b}, 1});
        }
    }
}

/* Notes what some token holds right before a U+2581 and beside a line's end (see spm_word_end). */
static void find_joins(struct tokenizer *t)
{
    for (uint32_t id = 0; id < t->v.n; id++) {
        struct str k = vocab_key(&t->v, id);
        for (size_t i = 3; i + 3 <= k.n; i++)
            if (memcmp(k.p + i, SPM_SPACE, 3) == 0 && memcmp(k.p + i - 3, SPM_SPACE, 3) != 0)
                t->joins[(unsigned char)k.p[i - 1]] = true;
        for (size_t i = 1; i < 3 && i + 3 <= k.n; i++)
            if (memcmp(k.p + i, SPM_SPACE, 3) == 0)
                t->joins[(unsigned char)k.p[i - 1]] = true;
        for (size_t i = 1; i < k.n; i++) {
            bool before = k.p[i - 1] == '\n', after = k.p[i] == '\n';
            t->joins_line[(unsigned char)k.p[i - 1]] |= after && !before;
            t->line_joins[(unsigned char)k.p[i]] |= before && !after;
        }
    }
    t->cuts_lines = t->bpe.ascii_id['\n'] != UINT32_MAX;
}

static int out_append(struct buf *out, const struct tokenizer *t, uint32_t id, const char *literal)
{
    struct str k = vocab_key(&t->v, id);
    if (literal)
        return buf_cstr(out, literal);
    if (t->bpe.byte_level)
        return buf_str(out, k);
    int b = hex_byte(k);
    if (b >= 0 && t->bpe.byte_fallback) {
        char c = (char)b;
        return buf_append(out, &c, 1);
    }
    int rc = 0;
    while (k.n && !rc) {
        const char *hit = memmem(k.p, k.n, SPM_SPACE, 3);
        size_t n = hit ? (size_t)(hit - k.p) : k.n;
        rc = buf_append(out, k.p, n);
        if (hit && !rc)
            rc = buf_append(out, " ", 1);
        k.p += n + (hit ? 3 : 0);
        k.n -= n + (hit ? 3 : 0);
    }
    return rc;
}

static int build_output(struct tokenizer *t)
{
    struct buf out;
    buf_init(&out, 1u << 30);
    const char **literal = calloc((size_t)t->v.n + 1, sizeof *literal);
    t->out_off = calloc((size_t)t->v.n + 1, sizeof *t->out_off);
    t->special = calloc((size_t)t->v.n + 1, 1);
    int rc = literal && t->out_off && t->special ? 0 : -ENOMEM;
    for (size_t i = 0; i < t->added.n && !rc; i++) {
        const struct added_token *a = &t->added.tok[i];
        if (t->bpe.byte_level || a->flags & ADDED_SPECIAL)
            literal[a->id] = a->text;
        t->special[a->id] |= (a->flags & ADDED_SPECIAL) != 0;
    }
    for (uint32_t id = 0; id < t->v.n && !rc; id++) {
        rc = out_append(&out, t, id, literal[id]);
        t->out_off[id + 1] = (uint32_t)out.n;
    }
    free(literal);
    t->out_bytes = buf_take(&out);
    return rc;
}

int tokenizer_finish(struct tokenizer *t, struct err *e)
{
    t->bpe.v = &t->v;
    find_byte_ids(t);
    if (t->spm)
        find_joins(t);
    if (build_output(t))
        return err_set(e, ENOMEM, "not enough memory for the vocabulary's texts");
    add_known_eog(t);
    snprintf(t->describe, sizeof t->describe, "%s, pre-tokenizer %s, %u tokens",
             t->bpe.byte_level ? "byte-level BPE" : "SentencePiece BPE",
             t->pre_name[0] ? t->pre_name : "none", t->v.n);
    return 0;
}

struct str tokenizer_bytes(const struct tokenizer *t, uint32_t id)
{
    if (id >= t->v.n)
        return (struct str){"", 0};
    return (struct str){t->out_bytes + t->out_off[id], t->out_off[id + 1] - t->out_off[id]};
}

uint32_t tokenizer_find(const struct tokenizer *t, struct str text)
{
    for (size_t i = 0; i < t->added.n; i++)
        if (str_eq_c(text, t->added.tok[i].text))
            return t->added.tok[i].id;
    return vocab_find(&t->v, text);
}

uint32_t tokenizer_vocab(const struct tokenizer *t)
{
    return t->v.n;
}

uint32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

uint32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

uint32_t tokenizer_pad(const struct tokenizer *t)
{
    return t->pad;
}

bool tokenizer_adds_bos(const struct tokenizer *t)
{
    return t->n_prefix > 0 && t->prefix[0] == t->bos;
}

bool tokenizer_is_special(const struct tokenizer *t, uint32_t id)
{
    return id < t->v.n && t->special[id];
}

bool tokenizer_is_eog(const struct tokenizer *t, uint32_t id)
{
    for (size_t i = 0; i < t->n_eog; i++)
        if (t->eog[i] == id)
            return true;
    return false;
}

const uint32_t *tokenizer_eog(const struct tokenizer *t, size_t *n)
{
    *n = t->n_eog;
    return t->eog;
}

struct str tokenizer_chat_template(const struct tokenizer *t)
{
    return str_c(t->chat_template);
}

const char *tokenizer_describe(const struct tokenizer *t)
{
    return t->describe;
}
