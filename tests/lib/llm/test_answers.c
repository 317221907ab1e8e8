/* Answers: the JSON that clients get, parsed back; stop strings against a plain search. */
#include "lib/json/json.h"
#include "lib/llm/openai.h"

#include "lib/base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

static const struct openai_head chat = {OPENAI_CHAT, "chatcmpl-1", {"m", 1}, 1700000000};
static const struct openai_head completion = {OPENAI_COMPLETIONS, "cmpl-1", {"m", 1}, 1700000000};

static json_t *parsed(struct buf *b)
{
    struct err e = {0};
    json_t *o = json_parse(buf_view(b), 1 << 20, 0, &e);
    if (!o)
        fail_msg("%s: %s", e.msg, b->data);
    buf_fini(b);
    return o;
}

static struct buf empty(void)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    return b;
}

static void a_chat_answer_has_openais_shape(void **state)
{
    (void)state;
    struct openai_choice c[2] = {
        {.index = 0, .text = STR("a\n\"b\""), .finish = OPENAI_FINISH_STOP},
        {.index = 1, .finish = OPENAI_FINISH_LENGTH}};
    struct openai_usage u = {10, 3, 8};
    struct buf b = empty();
    assert_int_equal(openai_write_response(&chat, c, 2, &u, &b), 0);
    CLEANUP(json_decrefp) json_t *o = parsed(&b);
    assert_string_equal(json_str_at(o, "object", ""), "chat.completion");
    assert_string_equal(json_str_at(o, "id", ""), "chatcmpl-1");
    assert_string_equal(json_str_at(o, "choices.0.message.content", ""), "a\n\"b\"");
    assert_string_equal(json_str_at(o, "choices.0.message.role", ""), "assistant");
    assert_string_equal(json_str_at(o, "choices.0.finish_reason", ""), "stop");
    assert_string_equal(json_str_at(o, "choices.1.finish_reason", ""), "length");
    assert_true(json_is_null(json_at(o, "choices.0.logprobs")));
    assert_int_equal(json_int_at(o, "created", 0), 1700000000);
    assert_int_equal(json_int_at(o, "usage.total_tokens", 0), 13);
    assert_int_equal(json_int_at(o, "usage.prompt_tokens_details.cached_tokens", 0), 8);
}

static void chunks_carry_the_role_once_and_usage_at_the_end(void **state)
{
    (void)state;
    struct openai_choice c = {.index = 0, .text = STR("hi")};
    struct buf b = empty();
    assert_int_equal(openai_write_chunk(&chat, &c, true, true, &b), 0);
    json_t *o = parsed(&b);
    assert_string_equal(json_str_at(o, "choices.0.delta.role", ""), "assistant");
    assert_string_equal(json_str_at(o, "choices.0.delta.content", ""), "hi");
    assert_true(json_is_null(json_at(o, "usage")) &&
                json_is_null(json_at(o, "choices.0.finish_reason")));
    json_decref(o);
    b = empty();
    c = (struct openai_choice){.index = 0, .finish = OPENAI_FINISH_STOP};
    assert_int_equal(openai_write_chunk(&chat, &c, false, false, &b), 0);
    o = parsed(&b);
    assert_int_equal(json_object_size(json_at(o, "choices.0.delta")), 0);
    assert_null(json_at(o, "usage"));
    assert_string_equal(json_str_at(o, "choices.0.finish_reason", ""), "stop");
    json_decref(o);
    b = empty();
    assert_int_equal(openai_write_usage_chunk(&chat, &(struct openai_usage){1, 2, 0}, &b), 0);
    o = parsed(&b);
    assert_int_equal(json_array_size(json_at(o, "choices")), 0);
    assert_int_equal(json_int_at(o, "usage.completion_tokens", 0), 2);
    json_decref(o);
}

static void logprobs_have_the_shape_of_each_api(void **state)
{
    (void)state;
    struct openai_alt top[3] = {
        {5, -0.25f, STR("a")}, {6, -1.5f, STR("\xe2\x82")}, {7, -2.5f, STR("a")}};
    struct openai_logprob tok[2] = {{{1, NAN, STR("x")}, NULL, 0, 0},
                                    {{5, -0.25f, STR("a")}, top, 3, 1}};
    struct openai_logprobs lp = {tok, 2, false};
    struct openai_choice c = {.text = STR("xa"), .finish = OPENAI_FINISH_STOP, .logprobs = &lp};
    struct openai_usage u = {0};
    struct buf b = empty();
    assert_int_equal(openai_write_response(&completion, &c, 1, &u, &b), 0);
    json_t *o = parsed(&b);
    assert_string_equal(json_str_at(o, "choices.0.logprobs.tokens.1", ""), "a");
    assert_true(json_is_null(json_at(o, "choices.0.logprobs.token_logprobs.0")));
    assert_true(json_is_null(json_at(o, "choices.0.logprobs.top_logprobs.0")));
    json_t *alts = json_at(o, "choices.0.logprobs.top_logprobs.1");
    assert_int_equal(json_object_size(alts), 2); /* of two tokens with one text the likelier */
    assert_true(json_number_value(json_object_get(alts, "a")) == -0.25);
    assert_true(json_number_value(json_object_get(alts, "bytes:\\xe2\\x82")) == -1.5);
    assert_int_equal(json_int_at(o, "choices.0.logprobs.text_offset.1", 0), 1);
    json_decref(o);
    b = empty();
    lp.as_token_ids = true;
    assert_int_equal(openai_write_response(&chat, &c, 1, &u, &b), 0);
    o = parsed(&b);
    assert_string_equal(json_str_at(o, "choices.0.logprobs.content.1.token", ""), "token_id:5");
    assert_int_equal(json_array_size(json_at(o, "choices.0.logprobs.content.1.top_logprobs")), 3);
    assert_int_equal(json_int_at(o, "choices.0.logprobs.content.1.top_logprobs.1.bytes.0", 0),
                     0xe2);
    json_decref(o);
}

static void floats_read_back_the_same_bits(void **state)
{
    (void)state;
    struct rng r = {20261130};
    for (int i = 0; i < 100000; i++) {
        uint32_t bits = (uint32_t)rng_next(&r);
        float v, back;
        memcpy(&v, &bits, 4);
        struct buf b = empty();
        assert_int_equal(openai_write_float(v, &b), 0);
        if (isfinite(v)) {
            back = strtof(b.data, NULL);
            assert_memory_equal(&v, &back, 4);
        } else {
            assert_string_equal(b.data, "null");
        }
        buf_fini(&b);
    }
}

static void errors_and_models_have_openais_shape(void **state)
{
    (void)state;
    struct openai_error e;
    struct buf b = empty();
    openai_error_model(&e, STR("gpt-9"));
    assert_int_equal(e.status, 404);
    assert_int_equal(openai_write_error(&e, &b), 0);
    json_t *o = parsed(&b);
    assert_string_equal(json_str_at(o, "error.code", ""), "model_not_found");
    assert_string_equal(json_str_at(o, "error.param", ""), "model");
    assert_non_null(strstr(json_str_at(o, "error.message", ""), "gpt-9"));
    json_decref(o);
    b = empty();
    openai_error_context(&e, "messages", 2048, 3000, 16);
    assert_int_equal(openai_write_error(&e, &b), 0);
    o = parsed(&b);
    assert_string_equal(json_str_at(o, "error.code", ""), "context_length_exceeded");
    assert_string_equal(json_str_at(o, "error.type", ""), "invalid_request_error");
    json_decref(o);
    b = empty();
    struct openai_model m = {STR("a\"b"), STR("baton"), 5, 8192};
    assert_int_equal(openai_write_models(&m, 1, &b), 0);
    o = parsed(&b);
    assert_string_equal(json_str_at(o, "data.0.id", ""), "a\"b");
    assert_int_equal(json_int_at(o, "data.0.max_model_len", 0), 8192);
    json_decref(o);
}

static void a_full_buffer_is_left_as_it_was(void **state)
{
    (void)state;
    struct openai_choice c = {.text = STR("some text that doesn't fit")};
    struct buf b;
    buf_init(&b, 40);
    assert_int_equal(buf_cstr(&b, "data: "), 0);
    assert_true(openai_write_chunk(&chat, &c, true, false, &b) < 0);
    assert_string_equal(b.data, "data: ");
    buf_fini(&b);
}

/* ---- stop strings ---- */

/* The earliest place where a stop string stands, the shortest one there; text.n when none does. */
static size_t plain_search(struct str text, const struct str *stop, size_t n, size_t *len)
{
    for (size_t i = 0; i < text.n; i++) {
        *len = 0;
        for (size_t k = 0; k < n; k++)
            if ((*len == 0 || stop[k].n < *len) &&
                str_starts((struct str){text.p + i, text.n - i}, stop[k]))
                *len = stop[k].n;
        if (*len)
            return i;
    }
    *len = 0;
    return text.n;
}

static void check_stops(struct rng *r, struct str text, const struct str *stop, size_t n,
                        bool include)
{
    struct arena a;
    struct stop_match m;
    struct buf out = empty();
    size_t len, at = plain_search(text, stop, n, &len), fed = 0;
    int matched = 0;
    arena_init(&a, 4096);
    assert_int_equal(stop_match_init(&m, stop, n, include, &a), 0);
    while (fed < text.n && matched == 0) {
        size_t k = 1 + (size_t)rng_below(r, 4);
        k = k < text.n - fed ? k : text.n - fed;
        matched = stop_match_push(&m, (struct str){text.p + fed, k}, &out);
        fed += k;
        assert_true(matched >= 0);
        if (!matched)
            assert_int_equal(out.n + m.n_held, fed);
    }
    if (!matched)
        matched = stop_match_flush(&m, &out);
    assert_int_equal(matched, len > 0);
    if (!str_eq(buf_view(&out), (struct str){text.p, at + (include ? len : 0)}))
        fail_msg("\"%.*s\" became \"%.*s\"", STR_ARG(text), (int)out.n, out.data);
    buf_fini(&out);
    arena_fini(&a);
}

static void streamed_stop_strings_equal_a_plain_search(void **state)
{
    (void)state;
    struct rng r = {20261130};
    for (int round = 0; round < 60000; round++) {
        char text[24], stops[3][5];
        struct str stop[3];
        size_t n = (size_t)rng_below(&r, 4), len = (size_t)rng_below(&r, sizeof text);
        for (size_t i = 0; i < len; i++)
            text[i] = (char)('a' + rng_below(&r, 2));
        for (size_t k = 0; k < n; k++) {
            stop[k] = (struct str){stops[k], 1 + (size_t)rng_below(&r, 5)};
            for (size_t i = 0; i < stop[k].n; i++)
                stops[k][i] = (char)('a' + rng_below(&r, 2));
        }
        check_stops(&r, (struct str){text, len}, stop, n, rng_below(&r, 2));
    }
}

static void text_that_can_not_become_a_stop_string_comes_out_at_once(void **state)
{
    (void)state;
    struct arena a;
    struct stop_match m;
    struct str stop = STR("</s>");
    struct buf out = empty();
    arena_init(&a, 4096);
    assert_int_equal(stop_match_init(&m, &stop, 1, false, &a), 0);
    assert_int_equal(stop_match_push(&m, STR("hello <"), &out), 0);
    assert_string_equal(out.data, "hello ");
    assert_int_equal(stop_match_push(&m, STR("/b>"), &out), 0);
    assert_string_equal(out.data, "hello </b>");
    assert_int_equal(stop_match_push(&m, STR("x</s>y"), &out), 1);
    assert_string_equal(out.data, "hello </b>x");
    assert_int_equal(m.matched, 0);
    assert_int_equal(stop_match_push(&m, STR("more"), &out), 1);
    assert_string_equal(out.data, "hello </b>x");
    buf_fini(&out);
    arena_fini(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chat_answer_has_openais_shape),
        cmocka_unit_test(chunks_carry_the_role_once_and_usage_at_the_end),
        cmocka_unit_test(logprobs_have_the_shape_of_each_api),
        cmocka_unit_test(floats_read_back_the_same_bits),
        cmocka_unit_test(errors_and_models_have_openais_shape),
        cmocka_unit_test(a_full_buffer_is_left_as_it_was),
        cmocka_unit_test(streamed_stop_strings_equal_a_plain_search),
        cmocka_unit_test(text_that_can_not_become_a_stop_string_comes_out_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
