/* bench-engine: time per token of prefill and decode, of users who share a prefix, and greedy
 * continuations, of the CPU engine without the server around it; what the machine could do at best.
 * One JSON object a line on stdout. */
#include "lib/base/clock.h"
#include "lib/base/conf.h"
#include "worker/bench/probe.h"
#include "worker/model/logprob.h"
#include "worker/model/shard.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

struct options {
    const char *model, *isa, *ids, *kv;
    uint64_t threads, prefill, decode, chunk, batch, suffix, probe_mb;
};

static const struct conf_opt opts[] = {
    {"--model", NULL, CONF_STR, CONF(struct options, model), NULL, 0, 0, "GGUF file", "FILE"},
    {"--isa", "BATON_ISA", CONF_STR, CONF(struct options, isa), "", 0, 0,
     "scalar, avx2, avx512 or amx", "ISA"},
    {"--threads", NULL, CONF_U64, CONF(struct options, threads), "1", 1, 64, "compute threads",
     "N"},
    {"--prefill", NULL, CONF_U64, CONF(struct options, prefill), "512", 1, 8192, "prompt tokens",
     "N"},
    {"--decode", NULL, CONF_U64, CONF(struct options, decode), "64", 0, 4096, "tokens to generate",
     "N"},
    {"--chunk", NULL, CONF_U64, CONF(struct options, chunk), "512", 1, 8192,
     "tokens a prefill step", "N"},
    {"--batch", NULL, CONF_U64, CONF(struct options, batch), "1", 1, 64,
     "sequences prefilled one by one and decoded together", "N"},
    {"--ids", NULL, CONF_STR, CONF(struct options, ids), "", 0, 0,
     "prompt token ids; prints the greedy continuation instead of times", "1,2,3"},
    {"--kv", NULL, CONF_STR, CONF(struct options, kv), "f16", 0, 0, "f16 or f32", "TYPE"},
    {"--suffix", NULL, CONF_U64, CONF(struct options, suffix), "0", 0, 4096,
     "the prompt is shared by the batch's sequences, each has so many tokens of its own", "N"},
    {"--probe", NULL, CONF_U64, CONF(struct options, probe_mb), "0", 0, 16384,
     "also what the machine could do: read so many MiB, multiply bytes", "MIB"},
    {0},
};
static const struct conf_prog prog = {"bench-engine", "Measures the CPU engine on one GGUF model.",
                                      "--model FILE [options]", opts};

struct bench {
    struct options o;
    struct model *m;
    struct model_work *w;
    uint8_t *pool;
    uint64_t pool_bytes;
    uint32_t *tokens, n_tokens, *blocks, per_seq;
    float *logits;
};

static uint64_t cpu_ns(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return ((uint64_t)u.ru_utime.tv_sec + (uint64_t)u.ru_stime.tv_sec) * NS_PER_S +
           ((uint64_t)u.ru_utime.tv_usec + (uint64_t)u.ru_stime.tv_usec) * NS_PER_US;
}

static int parse_ids(struct bench *b, struct err *e)
{
    struct str rest = str_c(b->o.ids), head;
    if (!rest.n) {
        b->n_tokens = (uint32_t)b->o.prefill;
        b->tokens = xcalloc(b->n_tokens, sizeof *b->tokens);
        for (uint32_t i = 0; i < b->n_tokens; i++)
            b->tokens[i] = 1000 + i * 7919 % 20000 % (model_config(b->m)->vocab - 1000);
        return 0;
    }
    b->tokens = xcalloc(rest.n, sizeof *b->tokens);
    while (rest.n) {
        uint64_t id;
        rest = str_cut(rest, ',', &head);
        if (str_to_u64(head, 0, UINT32_MAX, &id) < 0)
            return err_set(e, EINVAL, "--ids: numbers separated by commas");
        b->tokens[b->n_tokens++] = (uint32_t)id;
    }
    return 0;
}

/* Blocks of each sequence; those of a shared prompt are the first one's. */
static uint32_t share_out(struct bench *b)
{
    uint32_t total = b->n_tokens + (uint32_t)(b->o.suffix + b->o.decode) + 1, n = 0;
    uint32_t shared = b->o.suffix ? b->n_tokens / MODEL_BLOCK_TOKENS : 0;
    b->per_seq = (total + MODEL_BLOCK_TOKENS - 1) / MODEL_BLOCK_TOKENS;
    b->blocks = xcalloc(b->o.batch * b->per_seq, sizeof *b->blocks);
    for (uint32_t i = 0; i < b->o.batch; i++)
        for (uint32_t j = 0; j < b->per_seq; j++)
            b->blocks[i * b->per_seq + j] = i && j < shared ? b->blocks[j] : n++;
    return n;
}

static int setup(struct bench *b, struct err *e)
{
    int rc = model_load(b->o.model, b->o.isa, &b->m, e);
    if (rc < 0 || (rc = parse_ids(b, e)) < 0)
        return rc;
    bool f32 = strcmp(b->o.kv, "f32") == 0;
    if (!f32 && strcmp(b->o.kv, "f16") != 0)
        return err_set(e, EINVAL, "--kv: f16 or f32");
    if (b->o.suffix) /* whole blocks are shared */
        b->n_tokens -= b->n_tokens % MODEL_BLOCK_TOKENS;
    uint32_t rows = (uint32_t)b->o.chunk, n_blocks = share_out(b);
    struct model_work_options o = {.threads = (uint32_t)b->o.threads,
                                   .max_rows = rows > 64 ? rows : 64,
                                   .kv_dtype = f32 ? MODEL_KV_F32 : MODEL_KV_F16,
                                   .pool_blocks = n_blocks};
    if ((rc = model_work_new(b->m, &o, &b->w, e)) < 0)
        return rc;
    b->pool_bytes = n_blocks * model_work_kv(b->w)->block_bytes;
    void *pool =
        mmap(NULL, b->pool_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    b->logits = xcalloc((size_t)b->o.batch * model_config(b->m)->vocab, sizeof(float));
    if (pool == MAP_FAILED)
        return err_set(e, ENOMEM, "no memory for KV");
    (void)madvise(pool, b->pool_bytes, MADV_HUGEPAGE);
    b->pool = pool;
    return 0;
}

static int prefill(struct bench *b, uint32_t seq, struct err *e)
{
    for (uint32_t at = 0; at < b->n_tokens; at += (uint32_t)b->o.chunk) {
        uint32_t left = b->n_tokens - at, n = left < b->o.chunk ? left : (uint32_t)b->o.chunk;
        struct model_segment s = {b->tokens + at,
                                  n,
                                  at,
                                  b->blocks + seq * b->per_seq,
                                  b->per_seq,
                                  at + n == b->n_tokens ? n - 1 : n};
        struct model_batch batch = {
            .segments = &s, .n_segments = 1, .logits = b->logits, .logits_rows = 1};
        int rc = model_forward(b->m, b->w, b->pool, &batch, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int decode_step(struct bench *b, uint32_t pos, const uint32_t *next, struct err *e)
{
    struct model_segment s[64];
    for (uint32_t i = 0; i < b->o.batch; i++)
        s[i] = (struct model_segment){&next[i], 1, pos, b->blocks + i * b->per_seq, b->per_seq, 0};
    struct model_batch batch = {.segments = s,
                                .n_segments = (uint32_t)b->o.batch,
                                .logits = b->logits,
                                .logits_rows = (uint32_t)b->o.batch};
    return model_forward(b->m, b->w, b->pool, &batch, e);
}

static int greedy(struct bench *b, struct err *e)
{
    uint32_t vocab = model_config(b->m)->vocab;
    int rc = prefill(b, 0, e);
    for (uint32_t i = 0; rc == 0 && i < b->o.decode; i++) {
        struct logprob_norm norm;
        struct logprob_top top[2];
        logprob_norm(b->m, b->logits, vocab, &norm);
        logprob_best(&norm, b->logits, vocab, 2, top);
        printf("{\"id\":%u,\"logit\":%.9g,\"gap\":%.6g}\n", top[0].id, (double)b->logits[top[0].id],
               (double)(b->logits[top[0].id] - b->logits[top[1].id]));
        rc = decode_step(b, b->n_tokens + i, &top[0].id, e);
    }
    return rc;
}

struct span {
    uint64_t cpu, wall;
};

static struct span span_start(void)
{
    return (struct span){cpu_ns(), clock_mono_ns()};
}

static void report(const struct bench *b, const char *phase, struct span from, double tokens)
{
    if (tokens > 0)
        printf("{\"phase\":\"%s\",\"isa\":\"%s\",\"threads\":%" PRIu64 ",\"batch\":%" PRIu64
               ",\"tokens\":%.0f,\"cpu_us_token\":%.2f,\"wall_us_token\":%.2f}\n",
               phase, model_isa(b->m), b->o.threads, b->o.batch, tokens,
               (double)(cpu_ns() - from.cpu) / 1e3 / tokens,
               (double)(clock_mono_ns() - from.wall) / 1e3 / tokens);
}

static int decode(struct bench *b, uint32_t pos, struct err *e)
{
    uint32_t next[64] = {0};
    for (uint32_t i = 0; i < b->o.decode; i++) {
        for (uint32_t j = 0; j < b->o.batch; j++)
            next[j] = 1000 + (i * 31 + j) % 1000;
        int rc = decode_step(b, pos + i, next, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int speed(struct bench *b, struct err *e)
{
    struct span from = span_start();
    for (uint32_t i = 0; i < b->o.batch; i++) {
        int rc = prefill(b, i, e);
        if (rc < 0)
            return rc;
    }
    report(b, "prefill", from, (double)(b->n_tokens * b->o.batch));
    from = span_start();
    int rc = decode(b, b->n_tokens, e);
    report(b, "decode", from, (double)(b->o.decode * b->o.batch));
    return rc;
}

/* Every sequence's own tokens after the shared ones, as many sequences a step as fit. */
static int suffixes(struct bench *b, struct err *e)
{
    uint32_t n = (uint32_t)b->o.suffix, tokens[4096], at = 0;
    uint32_t some = (uint32_t)(b->o.chunk / n ? b->o.chunk / n : 1);
    while (at < b->o.batch) {
        struct model_segment s[64];
        uint32_t k = 0;
        for (; k < some && at + k < b->o.batch && (k + 1) * n <= 4096; k++) {
            for (uint32_t i = 0; i < n; i++)
                tokens[k * n + i] = 1000 + ((at + k) * 131 + i * 17) % 1000;
            s[k] = (struct model_segment){tokens + k * n, n,
                                          b->n_tokens,    b->blocks + (at + k) * b->per_seq,
                                          b->per_seq,     n - 1};
        }
        struct model_batch batch = {
            .segments = s, .n_segments = k, .logits = b->logits, .logits_rows = k};
        int rc = model_forward(b->m, b->w, b->pool, &batch, e);
        if (rc < 0)
            return rc;
        at += k;
    }
    return 0;
}

/* All users of a shared prompt, from nothing to their last tokens. */
static int users(struct bench *b, struct err *e)
{
    struct span from = span_start();
    int rc = prefill(b, 0, e);
    rc = rc ? rc : suffixes(b, e);
    rc = rc ? rc : decode(b, b->n_tokens + (uint32_t)b->o.suffix, e);
    if (!rc)
        report(b, "users", from, (double)(b->o.decode * b->o.batch));
    return rc;
}

static int bounds(const struct bench *b, struct err *e)
{
    struct probe_rate read, int8;
    uint32_t threads = (uint32_t)b->o.threads;
    int rc = probe_read(b->o.probe_mb << 20, threads, &read, e);
    rc = rc ? rc : probe_int8(threads, &int8, e);
    if (!rc)
        printf("{\"phase\":\"bounds\",\"threads\":%u,\"read_mib\":%" PRIu64
               ",\"read_wall\":%.4g,\"read_cpu\":%.4g,\"int8_wall\":%.4g,\"int8_cpu\":%.4g,"
               "\"weight_bytes\":%" PRIu64 "}\n",
               threads, b->o.probe_mb, read.wall, read.cpu, int8.wall, int8.cpu,
               model_shard_weight_bytes(b->m));
    return rc;
}

/* Memory is touched, threads run: what a worker that serves has behind it. */
static int warm_up(struct bench *b, struct err *e)
{
    memset(b->pool, 0, b->pool_bytes);
    uint32_t next[64] = {0};
    int rc = prefill(b, 0, e);
    return rc || b->o.batch > 1 || !b->o.decode ? rc : decode_step(b, b->n_tokens, next, e);
}

static int measure(struct bench *b, struct err *e)
{
    int rc = b->o.probe_mb ? bounds(b, e) : 0;
    rc = rc ? rc : warm_up(b, e);
    return rc ? rc : b->o.suffix ? users(b, e) : speed(b, e);
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    struct err e = {0};
    int first, rc = conf_parse(&prog, argc, argv, &b.o, &first, &e);
    if (rc > 0)
        return 0;
    if (rc == 0 && !b.o.model)
        rc = err_set(&e, EINVAL, "--model FILE is needed");
    if (rc == 0)
        rc = setup(&b, &e);
    if (rc == 0)
        rc = b.o.ids && *b.o.ids ? greedy(&b, &e) : measure(&b, &e);
    if (rc < 0)
        fprintf(stderr, "bench-engine: %s\n", e.msg);
    free(b.tokens);
    free(b.blocks);
    if (b.pool)
        munmap(b.pool, b.pool_bytes);
    free(b.logits);
    model_work_free(b.w);
    model_free(b.m);
    return rc < 0 ? 1 : 0;
}
