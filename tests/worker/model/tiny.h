/* tiny.h: writes a small, valid GGUF model (random weights, any tensor type), for tests that need
 * many of them. */
#pragma once
#include "lib/base/buf.h"
#include "lib/base/rng.h"
#include "lib/llm/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct tiny {
    uint32_t layers, d, heads, kv_heads, ff, vocab, type;
    bool gemma;
    uint64_t seed;
    /* where things lie in the file, for tests that damage it */
    size_t n_tensors_at, n_kvs_at, first_kv_at, tensors_at, data_at;
};

static inline void tiny_put(struct buf *b, const void *p, size_t n)
{
    if (buf_append(b, p, n) < 0)
        abort();
}

static inline void tiny_u32(struct buf *b, uint32_t v)
{
    tiny_put(b, &v, 4);
}

static inline void tiny_u64(struct buf *b, uint64_t v)
{
    tiny_put(b, &v, 8);
}

static inline void tiny_str(struct buf *b, const char *s)
{
    tiny_u64(b, strlen(s));
    tiny_put(b, s, strlen(s));
}

static inline void tiny_kv_u32(struct buf *b, const char *arch, const char *key, uint32_t v)
{
    char name[128];
    snprintf(name, sizeof name, "%s.%s", arch, key);
    tiny_str(b, name);
    tiny_u32(b, 4);
    tiny_u32(b, v);
}

struct tiny_tensor {
    char name[64];
    uint32_t type, n_dims;
    uint64_t ne[2], bytes;
};

static inline void tiny_tensor(struct tiny_tensor *t, uint32_t *n, const char *name, uint32_t type,
                               uint64_t cols, uint64_t rows)
{
    struct tiny_tensor *x = &t[(*n)++];
    uint32_t block = 1, bytes = 4;
    snprintf(x->name, sizeof x->name, "%s.weight", name);
    if (!gguf_type_block(type, &block, &bytes))
        abort();
    x->type = type;
    x->n_dims = rows ? 2 : 1;
    x->ne[0] = cols;
    x->ne[1] = rows;
    x->bytes = cols / block * bytes * (rows ? rows : 1);
}

static inline uint32_t tiny_tensors(const struct tiny *m, struct tiny_tensor *t)
{
    uint32_t n = 0, hd = m->d / m->heads, kv = hd * m->kv_heads;
    char name[48];
    tiny_tensor(t, &n, "token_embd", m->type, m->d, m->vocab);
    tiny_tensor(t, &n, "output_norm", GGUF_F32, m->d, 0);
    for (uint32_t l = 0; l < m->layers; l++) {
        const struct {
            const char *name;
            uint64_t cols, rows;
        } layer[] = {{"attn_norm", m->d, 0},      {"attn_q", m->d, m->d},
                     {"attn_k", m->d, kv},        {"attn_v", m->d, kv},
                     {"attn_output", m->d, m->d}, {"ffn_norm", m->d, 0},
                     {"ffn_gate", m->d, m->ff},   {"ffn_up", m->d, m->ff},
                     {"ffn_down", m->ff, m->d},   {"attn_q_norm", hd, 0},
                     {"attn_k_norm", hd, 0},      {"post_attention_norm", m->d, 0},
                     {"post_ffw_norm", m->d, 0}};
        for (uint32_t i = 0; i < (m->gemma ? 13 : 9); i++) {
            snprintf(name, sizeof name, "blk.%u.%s", l, layer[i].name);
            tiny_tensor(t, &n, name, layer[i].rows ? m->type : GGUF_F32, layer[i].cols,
                        layer[i].rows);
        }
    }
    return n;
}

/* Random blocks whose f16 scales are small numbers. */
static inline void tiny_fill(struct buf *b, const struct tiny_tensor *t, struct rng *rng)
{
    uint32_t block, bytes;
    if (!gguf_type_block(t->type, &block, &bytes))
        abort();
    for (uint64_t at = 0; at < t->bytes; at += bytes) {
        uint8_t raw[256];
        for (uint32_t i = 0; i < bytes; i++)
            raw[i] = (uint8_t)rng_next(rng);
        float f = t->n_dims == 1 ? 1.0f : (float)rng_unit(rng) * 0.2f - 0.1f;
        const uint16_t small = 0x1400, min = 0x9c00, bf = 0x3d10;
        if (t->type == GGUF_F32)
            memcpy(raw, &f, 4);
        else if (t->type == GGUF_BF16)
            memcpy(raw, &bf, 2);
        else
            memcpy(raw + (t->type == GGUF_Q6_K ? 208 : 0), &small, 2);
        if (t->type == GGUF_F16)
            raw[1] = (uint8_t)(0x24 | (rng_next(rng) & 0x80));
        if (t->type == GGUF_Q4_1 || t->type == GGUF_Q5_1)
            memcpy(raw + 2, &min, 2);
        if (t->type == GGUF_Q4_K || t->type == GGUF_Q5_K)
            memcpy(raw + 2, &small, 2);
        tiny_put(b, raw, bytes);
    }
}

static inline void tiny_pad(struct buf *b)
{
    while (b->n % 32)
        tiny_put(b, "", 1);
}

static inline void tiny_build(struct tiny *m, struct buf *b)
{
    struct tiny_tensor *t = calloc(64 + 16 * m->layers, sizeof *t);
    uint32_t n = tiny_tensors(m, t);
    const char *arch = m->gemma ? "gemma3" : "llama";
    struct rng rng = {m->seed};
    float eps = 1e-5f;
    uint64_t at = 0;
    tiny_put(b, "GGUF", 4);
    tiny_u32(b, 3);
    m->n_tensors_at = b->n;
    tiny_u64(b, n);
    m->n_kvs_at = b->n;
    tiny_u64(b, 8);
    m->first_kv_at = b->n;
    tiny_str(b, "general.architecture");
    tiny_u32(b, 8);
    tiny_str(b, arch);
    tiny_kv_u32(b, arch, "block_count", m->layers);
    tiny_kv_u32(b, arch, "embedding_length", m->d);
    tiny_kv_u32(b, arch, "feed_forward_length", m->ff);
    tiny_kv_u32(b, arch, "context_length", 512);
    tiny_kv_u32(b, arch, "attention.head_count", m->heads);
    tiny_kv_u32(b, arch, "attention.head_count_kv", m->kv_heads);
    tiny_str(b, m->gemma ? "gemma3.attention.layer_norm_rms_epsilon"
                         : "llama.attention.layer_norm_rms_epsilon");
    tiny_u32(b, 6);
    tiny_put(b, &eps, 4);
    m->tensors_at = b->n;
    for (uint32_t i = 0; i < n; i++) {
        tiny_str(b, t[i].name);
        tiny_u32(b, t[i].n_dims);
        for (uint32_t d = 0; d < t[i].n_dims; d++)
            tiny_u64(b, t[i].ne[d]);
        tiny_u32(b, t[i].type);
        tiny_u64(b, at);
        at += (t[i].bytes + 31) / 32 * 32;
    }
    tiny_pad(b);
    m->data_at = b->n;
    for (uint32_t i = 0; i < n; i++) {
        tiny_fill(b, &t[i], &rng);
        tiny_pad(b);
    }
    free(t);
}

/* Writes b to a temporary file and returns its path (to be unlinked and freed). */
static inline char *tiny_file(const struct buf *b)
{
    char *path = xstrdup("/tmp/baton-tiny-XXXXXX");
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, b->data, b->n) != (ssize_t)b->n)
        abort();
    close(fd);
    return path;
}
