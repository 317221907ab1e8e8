/* bench-engine: CPU time per token of prefill and decode, and greedy continuations, of the CPU
 * engine without the server around it. One JSON object a line on stdout. */
#include "lib/base/clock.h"
#include "lib/base/conf.h"
#include "worker/model/logprob.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

struct options {
    const char *model, *isa, *ids;
    uint64_t threads, prefill, decode, chunk, batch;
};

static const struct conf_opt opts[] = {
    {"--model", NULL, CONF_STR, CONF(struct options, model), NULL, 0, 0, "GGUF file", "FILE"},
    {"--isa", "BATON_ISA", CONF_STR, CONF(struct options, isa), "", 0, 0, "scalar, avx2 or avx512",
     "ISA"},
    {"--threads", NULL, CONF_U64, CONF(struct options, threads), "1", 1, 64, "compute threads",
     "N"},
    {"--prefill", NULL, CONF_U64, CONF(struct options, prefill), "512", 1, 8192, "prompt tokens",
     "N"},
    {"--decode", NULL, CONF_U64, CONF(struct options, decode), "64", 0, 4096, "tokens to generate",
     "N"},
    {"--chunk", NULL, CONF_U64, CONF(struct options, chunk), "512", 1, 8192,
     "tokens a prefill step", "N"},
    {"--batch", NULL, CONF_U64, CONF(struct options, batch), "1", 1, 64,
     "sequences decoded together", "N"},
    {"--ids", NULL, CONF_STR, CONF(struct options, ids), "", 0, 0,
     "prompt token ids; prints the greedy continuation instead of times", "1,2,3"},
    {0},
};
static const struct conf_prog prog = {"bench-engine", "Measures the CPU engine on one GGUF model.",
                                      "--model FILE [options]", opts};

struct bench {
    struct options o;
    struct model *m;
    struct model_work *w;
    uint8_t *pool;
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

static int setup(struct bench *b, struct err *e)
{
    int rc = model_load(b->o.model, b->o.isa, &b->m, e);
    if (rc < 0 || (rc = parse_ids(b, e)) < 0)
        return rc;
    uint32_t total = b->n_tokens + (uint32_t)b->o.decode + 1, rows = (uint32_t)b->o.chunk;
    b->per_seq = (total + MODEL_BLOCK_TOKENS - 1) / MODEL_BLOCK_TOKENS;
    uint32_t n_blocks = b->per_seq * (uint32_t)b->o.batch;
    struct model_work_options o = {.threads = (uint32_t)b->o.threads,
                                   .max_rows = rows > 64 ? rows : 64,
                                   .pool_blocks = n_blocks};
    if ((rc = model_work_new(b->m, &o, &b->w, e)) < 0)
        return rc;
    b->blocks = xcalloc(n_blocks, sizeof *b->blocks);
    for (uint32_t i = 0; i < n_blocks; i++)
        b->blocks[i] = i;
    b->pool = aligned_alloc(64, n_blocks * model_work_kv(b->w)->block_bytes);
    b->logits = xcalloc((size_t)b->o.batch * model_config(b->m)->vocab, sizeof(float));
    return b->pool ? 0 : err_set(e, ENOMEM, "no memory for KV");
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

static int speed(struct bench *b, struct err *e)
{
    uint64_t cpu = cpu_ns(), wall = clock_mono_ns();
    for (uint32_t i = 0; i < b->o.batch; i++) {
        int rc = prefill(b, i, e);
        if (rc < 0)
            return rc;
    }
    double tokens = (double)(b->n_tokens * b->o.batch);
    printf("{\"phase\":\"prefill\",\"isa\":\"%s\",\"threads\":%" PRIu64
           ",\"tokens\":%.0f,\"cpu_us_token\":%.2f,"
           "\"wall_us_token\":%.2f}\n",
           model_isa(b->m), b->o.threads, tokens, (double)(cpu_ns() - cpu) / 1e3 / tokens,
           (double)(clock_mono_ns() - wall) / 1e3 / tokens);
    uint32_t next[64] = {0};
    cpu = cpu_ns();
    wall = clock_mono_ns();
    for (uint32_t i = 0; i < b->o.decode; i++) {
        for (uint32_t j = 0; j < b->o.batch; j++)
            next[j] = 1000 + (i * 31 + j) % 1000;
        int rc = decode_step(b, b->n_tokens + i, next, e);
        if (rc < 0)
            return rc;
    }
    tokens = (double)(b->o.decode * b->o.batch);
    if (tokens > 0)
        printf("{\"phase\":\"decode\",\"isa\":\"%s\",\"threads\":%" PRIu64 ",\"batch\":%" PRIu64
               ",\"tokens\":%.0f,\"cpu_us_token\":%.2f,\"wall_us_token\":%.2f}\n",
               model_isa(b->m), b->o.threads, b->o.batch, tokens,
               (double)(cpu_ns() - cpu) / 1e3 / tokens,
               (double)(clock_mono_ns() - wall) / 1e3 / tokens);
    return 0;
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
        rc = b.o.ids && *b.o.ids ? greedy(&b, &e) : speed(&b, &e);
    if (rc < 0)
        fprintf(stderr, "bench-engine: %s\n", e.msg);
    free(b.tokens);
    free(b.blocks);
    free(b.pool);
    free(b.logits);
    model_work_free(b.w);
    model_free(b.m);
    return rc < 0 ? 1 : 0;
}
