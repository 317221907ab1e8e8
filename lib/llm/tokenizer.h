/* tokenizer.h: text to token ids and back, with the ids that Hugging Face `tokenizers` gives.
 *
 * Opened from a GGUF file (metadata only; weights are never read), from a tokenizer.json
 * (tokenizer_config.json and generation_config.json beside it are read when they exist), from a
 * folder that holds one of them, or from a model's safetensors (or their index) beside one. Kinds:
 * byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM, StarCoder,
 * ... pre-tokenizers) and SentencePiece-style BPE (Gemma, Llama 2, Mistral) by merges or by scores,
 * with byte fallback. Special and added tokens are matched first. Input that is not UTF-8 is read
 * as Python's bytes.decode(errors="replace") reads it.
 *
 * Owner: tokenizer_open makes one, tokenizer_free ends it. A tokenizer is constant once open: any
 * number of threads may use it at once. Work is near-linear in the text, memory O(text). Source:
 * tokenizers' models/bpe and pre_tokenizers (behaviour); ggml docs/gguf.md (keys). */
#pragma once
#include "lib/base/buf.h"

#define TOKENIZER_MAX_TEXT  (64u << 20) /* bytes; a longer text is refused with -E2BIG */
#define TOKENIZER_MAX_VOCAB (4u << 20)
#define TOKEN_NONE          UINT32_MAX

/* A growable list of ids with a maximum. */
struct ids {
    uint32_t *id;
    size_t n, cap, max;
};
void ids_init(struct ids *v, size_t max);
void ids_fini(struct ids *v);
int ids_push(struct ids *v, uint32_t id) MUST_CHECK; /* -EMSGSIZE past the maximum */
int ids_append(struct ids *v, const uint32_t *id, size_t n) MUST_CHECK;

struct tokenizer;

int tokenizer_open(const char *path, struct tokenizer **out, struct err *e) MUST_CHECK;
void tokenizer_free(struct tokenizer *t); /* NULL is fine */
void tokenizer_freep(struct tokenizer **t);

/* From now on texts between special tokens that come up again are looked up, within so many bytes
 * of memory. Before the first use by other threads. */
void tokenizer_remember(struct tokenizer *t, size_t bytes);

enum tokenizer_flags {
    TOKENIZE_ADD_SPECIAL = 1, /* BOS (and EOS) where the model wants them */
    TOKENIZE_PARSE_SPECIAL =
        2 /* "<|im_end|>" in the text becomes the control token; else it is plain text */
};
/* Appends the ids of `text`. A rendered chat template takes PARSE_SPECIAL alone when it begins with
 * BOS itself. */
int tokenizer_encode(const struct tokenizer *t, struct str text, unsigned flags, struct ids *out,
                     struct err *e) MUST_CHECK;

/* Appends the text of the ids, each invalid byte sequence as U+FFFD. Ids past the vocabulary are
 * -EINVAL. */
int tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t n, bool skip_special,
                     struct buf *out, struct err *e) MUST_CHECK;
/* The bytes that a token stands for ("" for one past the vocabulary); special tokens give their
 * literal text. */
struct str tokenizer_bytes(const struct tokenizer *t, uint32_t id);
/* The id of a token by its exact literal text ("<|im_end|>", "hello"), or TOKEN_NONE. */
uint32_t tokenizer_find(const struct tokenizer *t, struct str text);

uint32_t tokenizer_vocab(const struct tokenizer *t);
uint32_t tokenizer_bos(const struct tokenizer *t); /* TOKEN_NONE when there is none */
uint32_t tokenizer_eos(const struct tokenizer *t);
uint32_t tokenizer_pad(const struct tokenizer *t);
bool tokenizer_adds_bos(const struct tokenizer *t);
bool tokenizer_is_special(const struct tokenizer *t,
                          uint32_t id); /* control tokens: not shown to users */
bool tokenizer_is_eog(const struct tokenizer *t,
                      uint32_t id); /* ends a generation: EOS, end of turn, ... */
/* All end-of-generation ids, ascending; valid as long as t. */
const uint32_t *tokenizer_eog(const struct tokenizer *t, size_t *n);
/* The chat template that came with the model, or an empty str. */
struct str tokenizer_chat_template(const struct tokenizer *t);
/* One line for logs and /debug/state: "byte-level BPE, pre-tokenizer smollm, 49152 tokens". */
const char *tokenizer_describe(const struct tokenizer *t);

/* Incremental detokenizer: append ids, get bytes up to the last complete UTF-8 character. At most 3
 * bytes are held back; bytes that can't become UTF-8 come out as U+FFFD. One thread; no allocation.
 * Joining what comes out equals tokenizer_decode of all the ids. `detok_init` continues after
 * `prompt` (may be empty): it decides whether a leading space of a SentencePiece model is dropped.
 */
struct detok {
    const struct tokenizer *t;
    bool skip_special, started;
    uint8_t held[4];
    uint8_t n_held;
};
void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special, bool after_prompt);
int detok_push(struct detok *d, uint32_t id, struct buf *out) MUST_CHECK;
int detok_flush(struct detok *d, struct buf *out) MUST_CHECK;
