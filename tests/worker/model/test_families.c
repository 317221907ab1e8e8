/* Every family's logits against transformers' (float32, eager attention), prefilled and decoded, on
 * every backend, with every KV type; and a row's bits whatever the batch. */
#include "kernels/cpu/cpu.h"
#include "tests/worker/model/family.h"
#include "tests/worker/model/runner.h"

#include <math.h>

#define TOKENS_MAX 64u

static struct family families[N_FAMILIES]; /* open while the tests run */

static struct model *family_model(const struct family *f, const char *isa)
{
    struct model *m = NULL;
    struct err e = {0};
    if (model_load(f->dir, isa, &m, &e) < 0)
        fail_msg("%s: %s", json_string_value(json_object_get(f->golden, "family")), e.msg);
    assert_int_equal(model_config(m)->vocab, f->vocab);
    return m;
}

static void family_runner(struct runner *r, struct model *m, uint32_t n_seqs, uint32_t threads,
                          enum model_kv_dtype dtype)
{
    struct err e = {0};
    runner_init(r, m, n_seqs, TOKENS_MAX, threads, 4 * TOKENS_MAX, 1);
    if (dtype == MODEL_KV_F16)
        return;
    model_work_free(r->w);
    free(r->pool);
    struct model_work_options o = {.threads = threads,
                                   .max_rows = 4 * TOKENS_MAX,
                                   .pool_blocks = n_seqs * r->per_seq,
                                   .kv_dtype = dtype};
    if (model_work_new(m, &o, &r->w, &e) < 0)
        fail_msg("%s", e.msg);
    size_t bytes = o.pool_blocks * model_work_kv(r->w)->block_bytes;
    r->pool = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memset(r->pool, 0xff, bytes);
}

struct difference {
    double most, rms; /* of all logits of all positions */
};

/* The prompt in chunks of `chunk` tokens. */
static struct difference compare(const struct family *f, struct runner *r, uint32_t chunk)
{
    struct difference d = {0};
    for (uint32_t at = 0; at < f->n_ids; at += chunk) {
        uint32_t n = f->n_ids - at < chunk ? f->n_ids - at : chunk;
        struct model_segment s = runner_segment(r, 0, f->ids + at, n, at, 0);
        runner_forward(r, &s, 1);
        for (size_t i = 0; i < (size_t)n * f->vocab; i++) {
            double off = (double)r->logits[i] - f->logits[(size_t)at * f->vocab + i];
            d.most = fmax(d.most, fabs(off));
            d.rms += off * off;
        }
    }
    d.rms = sqrt(d.rms / ((double)f->n_ids * f->vocab));
    return d;
}

static struct difference measure(const struct family *f, struct model *m, uint32_t chunk,
                                 enum model_kv_dtype dtype)
{
    struct runner r;
    family_runner(&r, m, 1, 2, dtype);
    struct difference d = compare(f, &r, chunk);
    runner_fini(&r);
    return d;
}

static void every_family_gives_the_logits_of_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FAMILIES; i++) {
        struct model *m = family_model(&families[i], NULL);
        double prefill = measure(&families[i], m, TOKENS_MAX, MODEL_KV_F32).most,
               decode = measure(&families[i], m, 1, MODEL_KV_F32).most;
        printf("%-18s max |delta logit| %.1e prefilled, %.1e decoded\n", family_names[i], prefill,
               decode);
        assert_true(prefill < 1e-4 && decode < 1e-4);
        model_free(m);
    }
}

/* Root mean squares: where two experts are near each other a few bits choose the other one. */
static void kv_of_fewer_bits_moves_logits_little(void **state)
{
    (void)state;
    static const struct {
        enum model_kv_dtype dtype;
        const char *name;
        double limit;
    } kinds[] = {{MODEL_KV_F16, "f16", 0.02},
                 {MODEL_KV_BF16, "bf16", 0.08},
                 {MODEL_KV_I8, "int8", 0.6},
                 {MODEL_KV_F8, "fp8", 1.2}};
    for (size_t i = 0; i < N_FAMILIES; i++) {
        bool bad = false;
        struct model *m = family_model(&families[i], NULL);
        printf("%-18s rms of delta logit with KV in", family_names[i]);
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            double rms = measure(&families[i], m, TOKENS_MAX, kinds[k].dtype).rms;
            printf(" %s %.1e", kinds[k].name, rms);
            bad = bad || !(rms > 0 && rms < kinds[k].limit);
        }
        printf("\n");
        assert_false(bad);
        model_free(m);
    }
}

/* Two sequences, the second shifted, in one batch; cut at random; against each alone. */
static void bits_of(const struct family *f, struct runner *r, struct rng *rng, float *out)
{
    uint32_t done[2] = {0, 0};
    uint32_t shifted[TOKENS_MAX];
    for (uint32_t i = 0; i < f->n_ids; i++)
        shifted[i] = f->ids[(i + 7) % f->n_ids];
    while (done[0] < f->n_ids || done[1] < f->n_ids) {
        struct model_segment s[2];
        uint32_t n = 0, of[2];
        for (uint32_t q = 0; q < 2; q++) {
            uint32_t left = f->n_ids - done[q];
            uint32_t take = rng ? (uint32_t)rng_below(rng, left + 1) : left;
            if (!take || (!rng && q && done[0] < f->n_ids))
                continue;
            of[n] = q;
            s[n++] = runner_segment(r, q, (q ? shifted : f->ids) + done[q], take, done[q], 0);
        }
        if (!n)
            continue;
        runner_forward(r, s, n);
        for (uint32_t i = 0, row = 0; i < n; row += s[i].n_tokens, i++) {
            memcpy(out + ((size_t)of[i] * TOKENS_MAX + done[of[i]]) * f->vocab,
                   r->logits + (size_t)row * f->vocab,
                   (size_t)s[i].n_tokens * f->vocab * sizeof(float));
            done[of[i]] += s[i].n_tokens;
        }
    }
}

static void check_bits(const struct family *f, const char *isa, enum model_kv_dtype dtype,
                       const float *want, struct rng *rng)
{
    size_t bytes = 2 * TOKENS_MAX * f->vocab * sizeof(float);
    float *got = calloc(1, bytes);
    struct model *m = family_model(f, isa);
    struct runner r;
    family_runner(&r, m, 2, 1 + (uint32_t)rng_below(rng, 4), dtype);
    bits_of(f, &r, rng, got);
    if (memcmp(got, want, bytes) != 0)
        fail_msg("other bits on %s, KV type %d", isa, (int)dtype);
    runner_fini(&r);
    model_free(m);
    free(got);
}

static void a_rows_bits_depend_on_its_own_tokens_alone(void **state)
{
    (void)state;
    struct rng rng = {runner_seed()};
    for (size_t i = 0; i < N_FAMILIES; i++) {
        const struct family *f = &families[i];
        enum model_kv_dtype dtype = (enum model_kv_dtype)(rng_below(&rng, 5));
        float *want = calloc(2 * TOKENS_MAX * f->vocab, sizeof *want);
        struct model *m = family_model(f, NULL);
        struct runner r;
        family_runner(&r, m, 2, 1, dtype);
        bits_of(f, &r, NULL, want);
        runner_fini(&r);
        model_free(m);
        for (const char *const *isa = cpu_isas(); *isa; isa++)
            check_bits(f, *isa, dtype, want, &rng);
        free(want);
    }
}

static int open_all(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FAMILIES; i++)
        family_open(&families[i], family_names[i]);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FAMILIES; i++)
        family_close(&families[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_gives_the_logits_of_transformers),
        cmocka_unit_test(kv_of_fewer_bits_moves_logits_little),
        cmocka_unit_test(a_rows_bits_depend_on_its_own_tokens_alone),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
