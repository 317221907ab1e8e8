/* tokenizer_impl.h: what a tokenizer is made of; shared by its loaders (tokenizer_gguf.c,
 * tokenizer_json.c) and the encoder (tokenizer.c). A loader fills a zeroed struct, then calls
 * tokenizer_finish. Internal to lib/llm. */
#pragma once
#include "lib/llm/added.h"
#include "lib/llm/bpe.h"
#include "lib/llm/pretok.h"
#include "lib/llm/segment_cache.h"
#include "lib/llm/tokenizer.h"

#include <pthread.h>

#define SPM_SPACE              "\xe2\x96\x81" /* U+2581 stands for a space in SentencePiece vocabularies */
#define TOKENIZER_MAX_NORMS    8
#define TOKENIZER_MAX_TEMPLATE 16
#define TOKENIZER_MAX_EOG      64

enum norm_kind {
    NORM_NFC,
    NORM_NFD,
    NORM_NFKC,
    NORM_NFKD,
    NORM_REPLACE,      /* a by b */
    NORM_PREPEND,      /* a before each segment */
    NORM_PREPEND_ONCE, /* a before each segment that doesn't begin with it */
    NORM_PREPEND_FIRST /* the same at the very beginning of the text only */
};
struct norm_step {
    enum norm_kind kind;
    char *a, *b;
};

struct tok_scratch {
    struct tok_scratch *next;
    struct bpe_scratch bpe;
    struct pretok_scratch pre;
    struct buf text[2];
};

struct tokenizer {
    struct vocab v;
    struct added added;
    struct pretok pre;
    struct bpe bpe;
    struct norm_step norm[TOKENIZER_MAX_NORMS];
    size_t n_norm;
    bool spm;              /* U+2581 for spaces */
    bool strip_left_space; /* decoding drops one space at the beginning */
    bool joins[256];       /* last bytes of characters that a token holds right before U+2581 */
    bool joins_line[256];  /* bytes that a token holds right before a line's end */
    bool line_joins[256];  /* and right after one */
    bool cuts_lines;       /* a line's end is a token: nothing is fused across it as unknown */

    uint32_t bos, eos, pad;
    uint32_t prefix[TOKENIZER_MAX_TEMPLATE], suffix[TOKENIZER_MAX_TEMPLATE];
    size_t n_prefix, n_suffix;
    uint32_t eog[TOKENIZER_MAX_EOG];
    size_t n_eog;
    uint8_t *special; /* by id */
    char *chat_template;
    char pre_name[64];
    char describe[160];

    /* What each id decodes to. */
    uint32_t *out_off; /* [n+1] */
    char *out_bytes;

    struct segment_cache *segments; /* NULL: tokenizer_remember was not called */
    pthread_mutex_t lock;           /* guards idle */
    struct tok_scratch *idle;
};

/* Builds what loaders don't: output bytes, byte ids, end-of-generation ids by name, word
 * boundaries. */
int tokenizer_finish(struct tokenizer *t, struct err *e) MUST_CHECK;
void tokenizer_add_eog(struct tokenizer *t, uint32_t id);
int tokenizer_add_norm(struct tokenizer *t, enum norm_kind kind, struct str a, struct str b,
                       struct err *e) MUST_CHECK;
int tokenizer_load_gguf(const char *path, struct tokenizer *t, struct err *e) MUST_CHECK;
/* json_path is a tokenizer.json; files beside it are read from its folder. */
int tokenizer_load_json(const char *json_path, struct tokenizer *t, struct err *e) MUST_CHECK;
/* The sections of a tokenizer.json as raw JSON (empty: absent), and the files in its folder. */
int tokenizer_json_pipeline(struct tokenizer *t, struct str normalizer, struct str pre,
                            struct str post, struct str decoder, struct err *e) MUST_CHECK;
int tokenizer_json_config(struct tokenizer *t, const char *folder, struct err *e) MUST_CHECK;

/* Byte-level vocabularies write each byte as a printable character (GPT-2's table). Decodes s into
 * bytes; false when it holds another character (then it is literal text). out has room for s.n
 * bytes. */
bool bytelevel_decode(struct str s, char *out, size_t *n);
