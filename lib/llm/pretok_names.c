/* The pre-tokenizers that GGUF files name in tokenizer.ggml.pre. */
#include "lib/llm/pretok.h"

#include <errno.h>

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define SPACES       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PREFIX       "[^\\r\\n\\p{L}\\p{N}]?"

const char pretok_llama3[] =
    CONTRACTIONS "|" PREFIX "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;
const char pretok_qwen2[] =
    CONTRACTIONS "|" PREFIX "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;
static const char tekken[] = PREFIX UPPER "*" LOWER "+|" PREFIX UPPER "+" LOWER
                                          "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES;
static const char gpt4o[] =
    PREFIX UPPER "*" LOWER "+" CONTRACTIONS "?|" PREFIX UPPER "+" LOWER "*" CONTRACTIONS
                 "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES;
static const char deepseek3_words[] =
    "[!\"#$%&'()*+,\\-./"
    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
    " ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES;

struct named {
    const char *name;
    const char *regex[3];
    bool digits, nfc, ignore_merges;
};
static const struct named names[] = {
    {"gpt-2", {pretok_gpt2}, false, false, false},
    {"phi-2", {pretok_gpt2}, false, false, false},
    {"olmo", {pretok_gpt2}, false, false, false},
    {"default", {pretok_gpt2}, false, false, false},
    {"smollm", {pretok_gpt2}, true, false, false},
    {"starcoder", {pretok_gpt2}, true, false, false},
    {"refact", {pretok_gpt2}, true, false, false},
    {"command-r", {pretok_gpt2}, true, false, false},
    {"codeshell", {pretok_gpt2}, true, false, false},
    {"llama3", {pretok_llama3}, false, false, true},
    {"llama-v3", {pretok_llama3}, false, false, true},
    {"llama-bpe", {pretok_llama3}, false, false, true},
    {"smaug-bpe", {pretok_llama3}, false, false, true},
    {"dbrx", {pretok_llama3}, false, false, false},
    {"qwen2", {pretok_qwen2}, false, true, false},
    {"deepseek-r1-qwen", {pretok_qwen2}, false, true, false},
    {"stablelm2", {pretok_qwen2}, false, false, false},
    {"tekken", {tekken}, false, false, true},
    {"gpt-4o", {gpt4o}, false, false, false},
    {"llama4", {gpt4o}, false, false, false},
    {"deepseek-v3",
     {"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", deepseek3_words},
     false,
     false,
     false},
};

int pretok_add_named(struct pretok *p, struct str name, bool *nfc, bool *ignore_merges,
                     struct err *e)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct named *w = &names[i];
        if (!str_eq_c(name, w->name))
            continue;
        int rc = w->digits ? pretok_add_digits(p, true, e) : 0;
        for (size_t k = 0; k < 3 && w->regex[k] && !rc; k++)
            rc = pretok_add_regex(p, str_c(w->regex[k]), PRETOK_ISOLATED, false, e);
        *nfc = w->nfc;
        *ignore_merges = w->ignore_merges;
        return rc;
    }
    return err_set(
        e, ENOENT,
        "the pre-tokenizer \"%.*s\" (tokenizer.ggml.pre) is not supported; use the model's "
        "tokenizer.json instead",
        (int)(name.n > 64 ? 64 : name.n), name.p);
}
