/* blocks.h: the one name that a KV block has everywhere (DESIGN.md §1.3): in a worker's prefix
 * cache, the tiers, the transfer, the router's index and the events between them.
 *
 *   seed   = SHA-256("baton-kv-block/1" | u32 block_tokens | for each of model revision, KV dtype,
 * adapter, tenant salt: u32 length, bytes)[0..16) name i = SHA-256(name i-1 (name -1 is the seed) |
 * block_tokens x u32 token id)[0..16)
 *
 * All integers little-endian. Only full blocks have names. Pure functions, any thread. A name is no
 * proof: tokens are compared on a hit. */
#pragma once
#include "lib/base/str.h"

#define BLOCK_NAME_BYTES 16
struct block_name {
    uint8_t b[BLOCK_NAME_BYTES];
};

struct block_space {
    struct str model_revision; /* the weights' sha256 or revision */
    struct str kv_dtype;       /* "f16", "bf16", "f32", "fp8_e4m3", ... */
    struct str adapter;        /* LoRA name and revision, or empty */
    struct str tenant_salt;    /* or empty: shared between tenants */
    uint32_t block_tokens;
};
void block_seed(const struct block_space *s, struct block_name *out);

/* Names of the n_tokens / block_tokens full blocks into out; returns how many. `prev` is the seed,
 * or the name of the block before tokens[0] when a chain is continued. */
size_t block_names(const struct block_name *prev, const uint32_t *tokens, size_t n_tokens,
                   uint32_t block_tokens, struct block_name *out);
/* The same with a memory of blocks that were named before: a prompt that begins as an earlier one
 * did is named by comparing. Any number of threads; of two at once one does without. */
struct block_memo;
struct block_memo *block_memo_new(void); /* 3 MiB for blocks of up to 32 tokens; NULL: no memory */
void block_memo_free(struct block_memo *m);
size_t block_names_memo(struct block_memo *m, const struct block_name *prev, const uint32_t *tokens,
                        size_t n_tokens, uint32_t block_tokens, struct block_name *out);
bool block_name_eq(const struct block_name *a, const struct block_name *b);
uint64_t block_name_hash(const struct block_name *n); /* for tables: the first 8 bytes */
