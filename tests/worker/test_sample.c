/* Sampling: the order of operations, and that draws follow the distribution and nothing but (seed,
 * choice, position). */
#include "lib/base/rng.h"
#include "worker/model/model.h"
#include "worker/sample.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#define V 8u
static struct sampler *s;
static const float logits[V] = {1, 3, 2, 3, -1, 0, 2.5f, -4};
static uint32_t tokens[4] = {1, 6, 3, 3};
static const uint32_t eog[] = {1};

static struct wire_request plain(void)
{
    return (struct wire_request){
        .top_p = 1, .repetition_penalty = 1, .n = 1, .n_prompt = 2, .seed = 5};
}

static uint32_t draw(const struct wire_request *r, uint32_t n_tokens, uint16_t choice)
{
    struct sample_in in = {r, tokens, n_tokens, choice, eog, 1};
    uint32_t id = UINT32_MAX;
    assert_int_equal(sample_token(s, &in, logits, &id), 0);
    return id;
}

static void greedy_takes_the_lowest_of_the_best(void **state)
{
    (void)state;
    struct wire_request r = plain();
    assert_int_equal(draw(&r, 2, 0), 1);
    r.temperature = 9e-6f;
    assert_int_equal(draw(&r, 2, 0), 1);
}

static void bias_and_min_tokens_come_first(void **state)
{
    (void)state;
    struct wire_request r = plain();
    struct wire_bias b[] = {{7, 100}, {9999, 1}};
    r.min_tokens = 1;
    assert_int_equal(draw(&r, 2, 0), 3); /* 1 ends generation: masked */
    assert_int_equal(draw(&r, 3, 0), 1);
    r.flags = WIRE_IGNORE_EOS;
    assert_int_equal(draw(&r, 2, 0), 1);
    r.bias = b;
    r.n_bias = 2;
    assert_int_equal(draw(&r, 2, 0), 7);
    uint32_t stop = 7;
    r.stop_ids = &stop;
    r.n_stop_ids = 1;
    assert_int_equal(draw(&r, 2, 0), 1);
}

static void repetition_counts_the_prompt_and_the_others_do_not(void **state)
{
    (void)state;
    struct wire_request r = plain();
    r.repetition_penalty = 2; /* prompt 1, 6: 3 -> 1.5, 2.5 -> 1.25 */
    assert_int_equal(draw(&r, 2, 0), 3);
    assert_int_equal(draw(&r, 3, 0), 2); /* 3 was generated too */
    r = plain();
    r.presence_penalty = .75f;
    assert_int_equal(draw(&r, 2, 0), 1);
    assert_int_equal(draw(&r, 4, 0), 1);
    tokens[2] = tokens[3] = 1;
    r.frequency_penalty = .1f;
    assert_int_equal(draw(&r, 4, 0), 3);
    r.presence_penalty = 0;
    r.frequency_penalty = .4f; /* twice .4 off 3 leaves 2.2 */
    struct wire_bias off = {3, -1};
    r.bias = &off;
    r.n_bias = 1;
    assert_int_equal(draw(&r, 4, 0), 6);
    assert_int_equal(draw(&r, 3, 0), 1); /* once: 2.6 is still best */
    tokens[2] = tokens[3] = 3;
}

static void expect_set(struct wire_request *r, unsigned want)
{
    unsigned seen = 0;
    r->temperature = 1;
    for (uint64_t i = 0; i < 4000; i++) {
        r->seed = i;
        seen |= 1u << draw(r, 2, 0);
    }
    assert_int_equal(seen, want);
}

static void filters_keep_what_they_should(void **state)
{
    (void)state;
    struct wire_request r = plain();
    r.top_k = 1;
    expect_set(&r, 1u << 1 | 1u << 3); /* ties of the last are kept */
    r.top_k = 3;
    expect_set(&r, 1u << 1 | 1u << 3 | 1u << 6);
    r = plain();
    r.top_p = .5f; /* softmax: .315 .315 .191 .116 ... */
    expect_set(&r, 1u << 1 | 1u << 3);
    r.top_p = .65f;
    expect_set(&r, 1u << 1 | 1u << 3 | 1u << 6);
    r = plain();
    r.min_p = .3f; /* exp(-1) = .367, exp(-2) = .135 */
    expect_set(&r, 1u << 1 | 1u << 3 | 1u << 6 | 1u << 2);
    r.top_k = 2;
    expect_set(&r, 1u << 1 | 1u << 3);
}

static void draws_follow_the_distribution(void **state)
{
    (void)state;
    struct wire_request r = plain();
    double p[V], total = 0;
    uint32_t count[V] = {0};
    r.temperature = 1.5f;
    for (uint32_t i = 0; i < V; i++)
        total += p[i] = exp((double)logits[i] / 1.5);
    for (uint64_t i = 0; i < 100000; i++) {
        r.seed = i;
        count[draw(&r, 3, 2)]++;
    }
    for (uint32_t i = 0; i < V; i++) {
        double want = 1e5 * p[i] / total;
        assert_true(fabs(count[i] - want) < 5 * sqrt(want) + 5);
    }
    r.seed = 77;
    uint32_t id = draw(&r, 3, 2);
    assert_int_equal(draw(&r, 3, 2), id);
    int other = 0;
    for (uint16_t c = 0; c < 8; c++)
        other += draw(&r, 3, c) != id;
    assert_true(other > 0);
}

static void a_row_without_a_number_is_an_error(void **state)
{
    (void)state;
    float bad[V];
    for (uint32_t i = 0; i < V; i++)
        bad[i] = NAN;
    struct wire_request r = plain();
    struct sample_in in = {&r, tokens, 2, 0, eog, 1};
    uint32_t id = 99;
    assert_int_equal(sample_token(s, &in, bad, &id), -EIO);
    r.temperature = 1;
    assert_int_equal(sample_token(s, &in, bad, &id), -EIO);
    assert_int_equal(id, 99);
}

static bool as_draw(const struct wire_request *r, struct model_draw *out)
{
    struct sample_in in = {r, tokens, 3, 2, eog, 1};
    return sample_as_draw(&in, out);
}

/* A device has the logits and the number, nothing else. */
static void a_device_may_choose_what_its_logits_alone_decide(void **state)
{
    (void)state;
    struct wire_request r = plain();
    struct wire_bias b[] = {{7, 100}};
    struct model_draw d;
    assert_true(as_draw(&r, &d) && d.temperature == 0);
    r.top_k = 3; /* the greatest is the greatest */
    assert_true(as_draw(&r, &d) && d.temperature == 0);
    r.top_k = 0;
    r.temperature = .8f;
    r.min_p = .1f;
    assert_true(as_draw(&r, &d) && d.temperature == .8f && d.min_p == .1f);
    assert_true(d.u == rng_unit_at(5, 2, 3));
    struct wire_request other[8];
    for (size_t i = 0; i < 8; i++)
        other[i] = r;
    other[0].top_k = 3;
    other[1].top_p = .9f;
    other[2].repetition_penalty = 1.1f;
    other[3].presence_penalty = .5f;
    other[4].frequency_penalty = .5f;
    other[5].n_bias = 1;
    other[5].bias = b;
    other[6].min_tokens = 2;
    other[7].flags = WIRE_LOGPROBS;
    for (size_t i = 0; i < 8; i++)
        assert_false(as_draw(&other[i], &d));
    r.min_tokens = 1; /* one has come */
    assert_true(as_draw(&r, &d));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_lowest_of_the_best),
        cmocka_unit_test(bias_and_min_tokens_come_first),
        cmocka_unit_test(repetition_counts_the_prompt_and_the_others_do_not),
        cmocka_unit_test(filters_keep_what_they_should),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(a_device_may_choose_what_its_logits_alone_decide),
        cmocka_unit_test(a_row_without_a_number_is_an_error),
    };
    s = sampler_new(V);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    sampler_free(s);
    return rc;
}
