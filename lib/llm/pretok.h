/* pretok.h: the pre-tokenizer: a chain of stages that cut text into words, between which the BPE
 * never merges. Internal to lib/llm. Built once by a loader, then constant; a struct pretok_scratch
 * serves one thread at a time. Patterns run in PCRE2 (UTF, Unicode properties, JIT). White space is
 * Unicode's White_Space as in Oniguruma and Rust (PCRE2's own \s also takes U+180E). Source:
 * tokenizers' pre_tokenizers/{split,byte_level,digits,metaspace}. */
#pragma once
#include "lib/base/str.h"

#define PRETOK_MAX_STAGES  8
#define PRETOK_MAX_PATTERN 4096

enum pretok_behavior {
    PRETOK_ISOLATED,
    PRETOK_REMOVED,
    PRETOK_MERGE_PREVIOUS,
    PRETOK_MERGE_NEXT,
    PRETOK_CONTIGUOUS
};
enum pretok_kind {
    PRETOK_REGEX,
    PRETOK_LITERAL,
    PRETOK_DIGIT,
    PRETOK_DIGITS /* one by one; runs */
};

/* Patterns that pretok_scan.c knows by heart. */
enum pretok_known { PRETOK_UNKNOWN, PRETOK_GPT2, PRETOK_LLAMA3, PRETOK_QWEN2 };

struct pretok_stage {
    enum pretok_kind kind;
    enum pretok_known known;
    enum pretok_behavior behavior;
    bool invert; /* the pattern describes what is between matches */
    void *code;  /* pcre2_code */
    bool jit;    /* compiled to machine code */
    char *literal;
    size_t n_literal;
};
struct pretok {
    struct pretok_stage stage[PRETOK_MAX_STAGES];
    size_t n;
    bool slow; /* PCRE2 alone: what tests compare the scanners with */
};
struct pretok_scratch {
    void *match[PRETOK_MAX_STAGES]; /* pcre2_match_data */
};

void pretok_fini(struct pretok *p);
int pretok_add_regex(struct pretok *p, struct str pattern, enum pretok_behavior b, bool invert,
                     struct err *e) MUST_CHECK;
int pretok_add_literal(struct pretok *p, struct str literal, enum pretok_behavior b, bool invert,
                       struct err *e) MUST_CHECK;
int pretok_add_digits(struct pretok *p, bool individual, struct err *e) MUST_CHECK;
/* The stages that GGUF's tokenizer.ggml.pre names; *nfc, *ignore_merges: what else that family
 * does. -ENOENT: unknown. */
int pretok_add_named(struct pretok *p, struct str name, bool *nfc, bool *ignore_merges,
                     struct err *e) MUST_CHECK;
extern const char pretok_gpt2[]; /* the pattern of ByteLevel(use_regex) */
extern const char pretok_llama3[], pretok_qwen2[];

int pretok_scratch_init(struct pretok_scratch *s, const struct pretok *p) MUST_CHECK;
void pretok_scratch_fini(struct pretok_scratch *s);

typedef int pretok_word_fn(void *arg, struct str word);
/* Calls word() for each word in order; `text` is valid UTF-8. Stops at the first non-zero return
 * and returns it. */
int pretok_run(const struct pretok *p, const struct pretok_scratch *s, struct str text,
               pretok_word_fn *word, void *arg) MUST_CHECK;
