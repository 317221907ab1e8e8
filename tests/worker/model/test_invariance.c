/* A row's bits depend on the tokens before it alone: random batches, chunk splits, orders, threads
 * and backends against the plainest run (one prompt, one thread, one chunk). KV is compared too.
 * The seed is printed; SEED=n repeats it. */
#include "kernels/cpu/cpu.h"
#include "tests/worker/model/runner.h"

#define N_SEQS     4u
#define MAX_TOKENS 56u
#define MAX_ROWS   72u

struct seq {
    uint32_t tokens[MAX_TOKENS], n;
    uint32_t done;    /* positions computed so far */
    float *reference; /* [n][vocab] */
};

static void random_seqs(struct seq *s, uint32_t vocab, uint32_t most, struct rng *rng)
{
    for (uint32_t i = 0; i < N_SEQS; i++) {
        s[i] = (struct seq){.n = most / 2 + (uint32_t)rng_below(rng, most / 2)};
        for (uint32_t t = 0; t < s[i].n; t++)
            s[i].tokens[t] = (uint32_t)rng_below(rng, vocab);
        if (i == 1) /* two that begin alike */
            memcpy(s[1].tokens, s[0].tokens, most / 3 * sizeof(uint32_t));
    }
}

static void reference(struct runner *r, struct seq *s)
{
    for (uint32_t i = 0; i < N_SEQS; i++) {
        size_t bytes = (size_t)s[i].n * r->vocab * sizeof(float);
        struct model_segment seg = runner_segment(r, i, s[i].tokens, s[i].n, 0, 0);
        runner_forward(r, &seg, 1);
        s[i].reference = malloc(bytes);
        memcpy(s[i].reference, r->logits, bytes);
    }
}

/* A random step: some of the unfinished sequences, each with a chunk of random length (often 1, as
 * in decode). */
static uint32_t random_step(const struct runner *r, const struct seq *s, struct model_segment *out,
                            uint32_t *which, struct rng *rng)
{
    uint32_t n = 0, rows = 0, first = (uint32_t)rng_below(rng, N_SEQS);
    for (uint32_t k = 0; k < N_SEQS; k++) {
        uint32_t i = (first + k) % N_SEQS, left = s[i].n - s[i].done;
        if (left == 0 || (n > 0 && rng_below(rng, 3) == 0))
            continue;
        uint32_t len = rng_below(rng, 2) ? 1 : 1 + (uint32_t)rng_below(rng, left);
        len = len < MAX_ROWS - rows ? len : MAX_ROWS - rows;
        if (len == 0)
            continue;
        out[n] = runner_segment(r, i, s[i].tokens + s[i].done, len, s[i].done,
                                (uint32_t)rng_below(rng, len + 1));
        which[n++] = i;
        rows += len;
    }
    return n;
}

static void check_rows(const struct runner *r, const struct seq *s, const struct model_segment *seg,
                       const uint32_t *which, uint32_t n)
{
    uint32_t row = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t t = seg[i].logits_from; t < seg[i].n_tokens; t++, row++) {
            const struct seq *q = &s[which[i]];
            const float *want = q->reference + (size_t)(seg[i].start + t) * r->vocab;
            if (memcmp(want, r->logits + (size_t)row * r->vocab, r->vocab * sizeof(float)) != 0)
                fail_msg("%s, %u segments: sequence %u, position %u has other bits",
                         model_isa(r->m), n, which[i], seg[i].start + t);
        }
}

/* Valid KV of every sequence is the same, wherever its blocks lie. */
static void check_kv(const struct runner *a, const struct runner *b, const struct seq *s)
{
    const struct model_kv *kv = model_work_kv(a->w);
    size_t token = (size_t)kv->head_dim * kv->elt_bytes;
    for (uint32_t i = 0; i < N_SEQS; i++)
        for (uint32_t pos = 0; pos < s[i].n; pos++) {
            uint32_t at = i * a->per_seq + pos / kv->block_tokens;
            for (uint32_t h = 0; h < kv->n_layers * 2 * kv->n_kv_heads; h++) {
                size_t in = h * kv->head_bytes + pos % kv->block_tokens * token;
                if (memcmp(a->pool + a->blocks[at] * kv->block_bytes + in,
                           b->pool + b->blocks[at] * kv->block_bytes + in, token) != 0)
                    fail_msg("sequence %u, position %u: KV has other bits", i, pos);
            }
        }
}

static void random_run(struct runner *r, struct seq *s, struct rng *rng)
{
    for (uint32_t i = 0; i < N_SEQS; i++)
        s[i].done = 0;
    for (;;) {
        struct model_segment seg[N_SEQS];
        uint32_t which[N_SEQS], n = random_step(r, s, seg, which, rng);
        if (n == 0)
            return;
        runner_forward(r, seg, n);
        check_rows(r, s, seg, which, n);
        for (uint32_t i = 0; i < n; i++)
            s[which[i]].done += seg[i].n_tokens;
    }
}

static void check_model(const char *file, const char *const *isas, uint32_t n_isas, uint32_t runs,
                        uint32_t most)
{
    uint64_t seed = runner_seed();
    struct rng rng = {seed};
    struct seq s[N_SEQS];
    struct runner plain;
    struct model *m = runner_model(file, NULL);
    random_seqs(s, model_config(m)->vocab, most, &rng);
    runner_init(&plain, m, N_SEQS, MAX_TOKENS, 1, MAX_TOKENS, seed);
    reference(&plain, s);
    for (uint32_t k = 0; k < n_isas; k++) {
        struct model *other = runner_model(file, isas[k]);
        for (uint32_t i = 0; i < runs; i++) {
            struct runner r;
            runner_init(&r, other, N_SEQS, MAX_TOKENS, 1 + (uint32_t)rng_below(&rng, 5), MAX_ROWS,
                        rng_next(&rng));
            random_run(&r, s, &rng);
            check_kv(&plain, &r, s);
            runner_fini(&r);
        }
        model_free(other);
    }
    runner_fini(&plain);
    model_free(m);
    for (uint32_t i = 0; i < N_SEQS; i++)
        free(s[i].reference);
}

static void smollm2_rows_keep_their_bits_in_any_batch_chunk_and_thread_count(void **state)
{
    (void)state;
    check_model("SmolLM2-135M-Instruct.Q4_1.gguf", (const char *const[]){NULL}, 1, 4, MAX_TOKENS);
}

static void gemma3_rows_keep_their_bits_in_any_batch_chunk_and_thread_count(void **state)
{
    (void)state;
    check_model("gemma-3-270m.Q4_K_M.gguf", (const char *const[]){NULL}, 1, 2, MAX_TOKENS);
}

/* Decodes of sequences that have their first blocks in common are attended together. */
static void decodes_that_begin_alike_keep_their_bits(void **state)
{
    (void)state;
    enum { SHARED = 2 * MODEL_BLOCK_TOKENS, LEN = SHARED + 12 };
    struct rng rng = {runner_seed()};
    struct model *m = runner_model("SmolLM2-135M-Instruct.Q4_1.gguf", NULL);
    uint32_t tokens[N_SEQS][LEN], begin[N_SEQS] = {0, SHARED, SHARED, SHARED / 2};
    size_t row = model_config(m)->vocab * sizeof(float);
    float *want[N_SEQS];
    struct runner plain;
    runner_init(&plain, m, N_SEQS, LEN, 1, LEN, rng_next(&rng));
    for (uint32_t i = 0; i < N_SEQS; i++) {
        for (uint32_t t = 0; t < LEN; t++)
            tokens[i][t] = t < begin[i] ? tokens[0][t] : (uint32_t)rng_below(&rng, plain.vocab);
        struct model_segment s = runner_segment(&plain, i, tokens[i], LEN, 0, 0);
        runner_forward(&plain, &s, 1);
        want[i] = malloc(LEN * row);
        memcpy(want[i], plain.logits, LEN * row);
    }
    for (uint32_t threads = 1; threads <= 3; threads++) {
        struct runner r;
        struct model_segment s[N_SEQS];
        runner_init(&r, m, N_SEQS, LEN, threads, LEN, rng_next(&rng));
        for (uint32_t i = 0; i < N_SEQS; i++) {
            memcpy(r.blocks + i * r.per_seq, r.blocks,
                   begin[i] / MODEL_BLOCK_TOKENS * sizeof(uint32_t));
            uint32_t n = SHARED + 1 + i - begin[i];
            s[0] = runner_segment(&r, i, tokens[i] + begin[i], n, begin[i], n);
            runner_forward(&r, s, 1);
        }
        for (uint32_t step = 0; step < LEN - SHARED - 1 - N_SEQS; step++) {
            for (uint32_t k = 0; k < N_SEQS; k++) {
                uint32_t i = (k + step) % N_SEQS, pos = SHARED + 1 + i + step;
                s[k] = runner_segment(&r, i, tokens[i] + pos, 1, pos, 0);
            }
            runner_forward(&r, s, N_SEQS);
            for (uint32_t k = 0; k < N_SEQS; k++)
                assert_memory_equal((char *)r.logits + k * row,
                                    (char *)want[(k + step) % N_SEQS] + s[k].start * row, row);
        }
        runner_fini(&r);
    }
    for (uint32_t i = 0; i < N_SEQS; i++)
        free(want[i]);
    runner_fini(&plain);
    model_free(m);
}

static void every_backend_gives_the_same_bits_on_a_real_model(void **state)
{
    (void)state;
    uint32_t n = 0;
    while (cpu_isas()[n])
        n++;
    check_model("SmolLM2-135M-Instruct.Q4_1.gguf", cpu_isas(), n, 1, 14);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smollm2_rows_keep_their_bits_in_any_batch_chunk_and_thread_count),
        cmocka_unit_test(gemma3_rows_keep_their_bits_in_any_batch_chunk_and_thread_count),
        cmocka_unit_test(decodes_that_begin_alike_keep_their_bits),
        cmocka_unit_test(every_backend_gives_the_same_bits_on_a_real_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
