/* Requests: what is accepted, with which defaults; what is refused, with which status and
 * parameter. */
#include "lib/llm/openai.h"

#include "lib/base/rng.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

static struct arena arena;

static int setup(void **state)
{
    (void)state;
    arena_init(&arena, 64u << 20);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    arena_fini(&arena);
    return 0;
}

static struct openai_request parse(enum openai_api api, const char *body)
{
    struct openai_request r = {0};
    struct openai_error e = {0};
    if (openai_parse(api, str_c(body), NULL, &arena, &r, &e))
        fail_msg("%s: %d %s: %s", body, e.status, e.param, e.msg);
    return r;
}

static void a_chat_request_has_openais_defaults(void **state)
{
    (void)state;
    struct openai_request r = parse(
        OPENAI_CHAT, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    assert_true(str_eq_c(r.model, "m"));
    assert_true(str_eq_c(r.messages, "[{\"role\":\"user\",\"content\":\"hi\"}]"));
    assert_int_equal(r.n_messages, 1);
    assert_true(r.temperature == 1 && r.top_p == 1 && r.min_p == 0 && r.repetition_penalty == 1);
    assert_true(r.presence_penalty == 0 && r.frequency_penalty == 0 && r.top_k == 0);
    assert_int_equal(r.n, 1);
    assert_false(r.has_max_tokens || r.has_seed || r.stream || r.logprobs || r.include_usage ||
                 r.ignore_eos);
    assert_true(r.add_generation_prompt && r.skip_special_tokens);
    assert_int_equal(r.tools.n, 0);
}

static void every_chat_field_is_read(void **state)
{
    (void)state;
    struct openai_request r = parse(
        OPENAI_CHAT, "{\"model\":\"m\\u00e9\",\"messages\":[{\"role\":\"system\",\"content\":[{"
                     "\"type\":\"text\",\"text\":\"s\"}]},"
                     "{\"role\":\"user\",\"content\":\"q\",\"name\":\"bob\"},{\"role\":"
                     "\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\"}]},"
                     "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"42\"}],"
                     "\"max_completion_tokens\":7,\"temperature\":0.5,\"top_p\":0.9,\"top_k\":40,"
                     "\"min_p\":0.05,\"n\":2,\"stream\":true,"
                     "\"stream_options\":{\"include_usage\":true,\"other\":1},\"stop\":[\"a\","
                     "\"\\n\"],\"presence_penalty\":-1,\"frequency_penalty\":1.5,"
                     "\"repetition_penalty\":1.1,\"logit_bias\":{\"50\":-100,\"7\":2.5},"
                     "\"logprobs\":true,\"top_logprobs\":3,\"seed\":-1,\"user\":\"u\","
                     "\"response_format\":{\"type\":\"text\"},\"tools\":[{\"type\":\"function\","
                     "\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"auto\","
                     "\"chat_template_kwargs\":{\"enable_thinking\":false},\"unknown\":{\"deep\":["
                     "1]},\"stop_token_ids\":[5],\"ignore_eos\":true,\"min_tokens\":1}");
    assert_true(str_eq_c(r.model, "m\xc3\xa9"));
    assert_int_equal(r.n_messages, 4);
    assert_true(r.has_max_tokens && r.max_tokens == 7 && r.min_tokens == 1);
    assert_true(r.temperature == 0.5f && r.top_p == 0.9f && r.top_k == 40 && r.min_p == 0.05f &&
                r.n == 2);
    assert_true(r.stream && r.include_usage && r.ignore_eos);
    assert_true(r.n_stop == 2 && str_eq_c(r.stop[1], "\n"));
    assert_true(r.n_logit_bias == 2 && r.logit_bias[0].id == 7 && r.logit_bias[0].bias == 2.5f &&
                r.logit_bias[1].bias == -100);
    assert_true(r.logprobs && r.top_logprobs == 3);
    assert_true(r.has_seed && r.seed == UINT64_MAX);
    assert_true(str_starts(r.tools, STR("[{\"type\":\"function\"")));
    assert_true(str_eq_c(r.chat_template_kwargs, "{\"enable_thinking\":false}"));
    assert_true(r.n_stop_ids == 1 && r.stop_ids[0] == 5);
}

static void prompts_come_in_four_shapes(void **state)
{
    (void)state;
    struct openai_request r = parse(OPENAI_COMPLETIONS, "{\"model\":\"m\",\"prompt\":\"a\\tb\"}");
    assert_true(r.n_prompts == 1 && !r.prompts[0].is_ids && str_eq_c(r.prompts[0].text, "a\tb"));
    assert_true(!r.has_max_tokens && r.max_tokens == 16);
    r = parse(OPENAI_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[\"a\",\"\"]}");
    assert_true(r.n_prompts == 2 && r.prompts[1].text.n == 0);
    r = parse(OPENAI_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[1,2,3]}");
    assert_true(r.n_prompts == 1 && r.prompts[0].is_ids && r.prompts[0].n_ids == 3 &&
                r.prompts[0].ids[2] == 3);
    r = parse(
        OPENAI_COMPLETIONS,
        "{\"model\":\"m\",\"prompt\":[[1],[2,3]],\"echo\":true,\"max_tokens\":0,\"logprobs\":5}");
    assert_true(r.n_prompts == 2 && r.prompts[1].n_ids == 2 && r.echo && r.has_max_tokens &&
                r.max_tokens == 0);
    assert_true(r.logprobs && r.top_logprobs == 5);
}

static void null_means_absent(void **state)
{
    (void)state;
    struct openai_request r = parse(
        OPENAI_COMPLETIONS, "{\"model\":\"m\",\"prompt\":\"x\",\"max_tokens\":null,\"temperature\":"
                            "null,\"stop\":null,\"logprobs\":null,\"suffix\":null,\"seed\":null,"
                            "\"logit_bias\":null,\"stream\":null,\"stream_options\":null,\"n\":"
                            "null,\"best_of\":null,\"echo\":null,\"user\":null}");
    assert_true(!r.has_max_tokens && r.temperature == 1 && r.n_stop == 0 && !r.logprobs &&
                !r.has_seed);
}

static void tool_choice_none_hides_the_tools(void **state)
{
    (void)state;
    struct openai_request r =
        parse(OPENAI_CHAT,
              "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
              "\"tools\":[{\"type\":\"function\",\"function\":{}}],\"tool_choice\":\"none\"}");
    assert_int_equal(r.tools.n, 0);
}

static void logprobs_zero_asks_for_the_tokens_own(void **state)
{
    (void)state;
    struct openai_request r =
        parse(OPENAI_COMPLETIONS, "{\"model\":\"m\",\"prompt\":\"x\",\"logprobs\":0}");
    assert_true(r.logprobs && r.top_logprobs == 0);
}

static void seeds_are_any_64_bit_integer(void **state)
{
    (void)state;
    assert_true(parse(OPENAI_COMPLETIONS,
                      "{\"model\":\"m\",\"prompt\":\"x\",\"seed\":18446744073709551615}")
                    .seed == UINT64_MAX);
    assert_true(parse(OPENAI_COMPLETIONS,
                      "{\"model\":\"m\",\"prompt\":\"x\",\"seed\":-9223372036854775808}")
                    .seed == 1ull << 63);
    assert_true(
        parse(OPENAI_COMPLETIONS, "{\"model\":\"m\",\"prompt\":\"x\",\"seed\":0}").has_seed);
}

static void tokenize_takes_a_prompt_or_messages(void **state)
{
    (void)state;
    struct openai_request r =
        parse(OPENAI_TOKENIZE,
              "{\"prompt\":\"x\",\"add_special_tokens\":false,\"return_token_strs\":true}");
    assert_true(r.n_prompts == 1 && !r.add_special_tokens && r.return_token_strs && r.model.n == 0);
    r = parse(OPENAI_TOKENIZE, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}");
    assert_int_equal(r.n_messages, 1);
    r = parse(OPENAI_DETOKENIZE, "{\"model\":\"m\",\"tokens\":[1,2]}");
    assert_true(r.prompts[0].n_ids == 2);
    r = parse(OPENAI_DETOKENIZE, "{\"tokens\":[[7]]}");
    assert_true(r.prompts[0].n_ids == 1);
}

/* ---- refusals ---- */

#define M       "\"model\":\"m\","
#define U       "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
#define CHAT_OK M U
#define COMP_OK M "\"prompt\":\"x\""

static const struct {
    enum openai_api api;
    const char *body;
    int status;
    const char *param; /* "" for none */
    const char *says;
} bad[] = {
    {OPENAI_CHAT, "", 400, "", "not valid JSON"},
    {OPENAI_CHAT, "[]", 400, "", "object"},
    {OPENAI_CHAT, "\"x\"", 400, "", "object"},
    {OPENAI_CHAT, "{" CHAT_OK, 400, "", "ends too early"},
    {OPENAI_CHAT, "{" CHAT_OK "}x", 400, "", "after the value"},
    {OPENAI_CHAT, "{" CHAT_OK ",}", 400, "", "key"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"n\":1,\"n\":2}", 400, "", "same key twice"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"x\":1,\"x\":2}", 400, "", "same key twice"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"x\":\"\xff\"}", 400, "", "UTF-8"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"x\":\"\\ud800\"}", 400, "", "escape"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"x\":NaN}", 400, "", "value"},
    {OPENAI_CHAT, "{" U "}", 400, "model", "required"},
    {OPENAI_CHAT, "{\"model\":7," U "}", 400, "model", "a string, not a number"},
    {OPENAI_CHAT, "{\"model\":\"\"," U "}", 400, "model", "512"},
    {OPENAI_CHAT, "{\"model\":null," U "}", 400, "model", "null"},
    {OPENAI_CHAT, "{\"model\":\"m\"}", 400, "messages", "required"},
    {OPENAI_CHAT, "{" M "\"messages\":[]}", 400, "messages", "at least one"},
    {OPENAI_CHAT, "{" M "\"messages\":{}}", 400, "messages", "an array"},
    {OPENAI_CHAT, "{" M "\"messages\":null}", 400, "messages", "an array"},
    {OPENAI_CHAT, "{" M "\"messages\":[7]}", 400, "messages[0]", "an object"},
    {OPENAI_CHAT, "{" M "\"messages\":[{\"content\":\"x\"}]}", 400, "messages[0].role", "required"},
    {OPENAI_CHAT, "{" M "\"messages\":[{\"role\":\"robot\",\"content\":\"x\"}]}", 400,
     "messages[0].role", "system, user"},
    {OPENAI_CHAT, "{" M "\"messages\":[{\"role\":7,\"content\":\"x\"}]}", 400, "messages[0].role",
     "string"},
    {OPENAI_CHAT, "{" M "\"messages\":[{\"role\":\"user\"}]}", 400, "messages[0].content",
     "required"},
    {OPENAI_CHAT, "{" M "\"messages\":[{\"role\":\"user\",\"content\":null}]}", 400,
     "messages[0].content", "required"},
    {OPENAI_CHAT, "{" M "\"messages\":[{\"role\":\"assistant\",\"content\":null}]}", 400,
     "messages[0].content", "tool_calls"},
    {OPENAI_CHAT, "{" M "\"messages\":[{\"role\":\"user\",\"content\":7}]}", 400,
     "messages[0].content", "string or an array"},
    {OPENAI_CHAT, "{" M "\"messages\":[{\"role\":\"user\",\"content\":[7]}]}", 400,
     "messages[0].content", "objects"},
    {OPENAI_CHAT,
     "{" M "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{"
     "\"url\":\"x\"}}]}]}",
     400, "messages[0].content", "\"text\""},
    {OPENAI_CHAT, "{" M "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
     400, "messages[0].content", "without a text"},
    {OPENAI_CHAT,
     "{" M
     "\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"tool\",\"content\":\"x\"}]}",
     400, "messages[1].tool_call_id", "required"},
    {OPENAI_CHAT, "{" M "\"messages\":[{\"role\":\"assistant\",\"tool_calls\":7}]}", 400,
     "messages[0].tool_calls", "array"},
    {OPENAI_CHAT, "{" M "\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"name\":7}]}", 400,
     "messages[0].name", "string"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"temperature\":2.1}", 400, "temperature", "between 0 and 2"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"temperature\":-0.1}", 400, "temperature", "between 0 and 2"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"temperature\":\"hot\"}", 400, "temperature",
     "a number, not a string"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"temperature\":1e999}", 400, "temperature", "between"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"top_p\":0}", 400, "top_p", "above 0"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"top_p\":1.01}", 400, "top_p", "between"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"min_p\":2}", 400, "min_p", "between"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"top_k\":-2}", 400, "top_k", "between"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"top_k\":1.5}", 400, "top_k", "whole"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"n\":0}", 400, "n", "between 1 and 16"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"n\":17}", 400, "n", "between 1 and 16"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"n\":true}", 400, "n", "integer"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"max_tokens\":0}", 400, "max_tokens", "at least 1"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"max_tokens\":-5}", 400, "max_tokens", "between"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"max_tokens\":99999999999999999999}", 400, "max_tokens",
     "between"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"max_tokens\":5,\"max_completion_tokens\":6}", 400,
     "max_completion_tokens", "differ"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"max_tokens\":5,\"min_tokens\":6}", 400, "min_tokens", "exceed"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"presence_penalty\":3}", 400, "presence_penalty",
     "between -2 and 2"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"frequency_penalty\":[]}", 400, "frequency_penalty", "an array"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"repetition_penalty\":0}", 400, "repetition_penalty", "above 0"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"stream\":\"yes\"}", 400, "stream", "boolean"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"stream_options\":{\"include_usage\":true}}", 400,
     "stream_options", "only allowed"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"stream\":true,\"stream_options\":{\"include_usage\":1}}", 400,
     "stream_options.include_usage", "boolean"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"stop\":7}", 400, "stop", "string"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"stop\":[\"\"]}", 400, "stop", "1 to"},
    {OPENAI_CHAT,
     "{" CHAT_OK ",\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\","
     "\"c\",\"d\",\"e\",\"f\",\"g\",\"h\"]}",
     400, "stop", "16"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"stop_token_ids\":[-1]}", 400, "stop_token_ids", "token id"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"logit_bias\":{\"x\":1}}", 400, "logit_bias", "token ids"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"logit_bias\":{\"5\":101}}", 400, "logit_bias", "-100"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"logit_bias\":{\"5\":1,\"05\":2}}", 400, "logit_bias", "twice"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"logit_bias\":[1]}", 400, "logit_bias", "object"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"logprobs\":5}", 400, "logprobs", "boolean"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"top_logprobs\":5}", 400, "top_logprobs",
     "'logprobs' must be true"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"logprobs\":true,\"top_logprobs\":21}", 400, "top_logprobs",
     "between 0 and 20"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"seed\":1.5}", 400, "seed", "integer"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"seed\":18446744073709551616}", 400, "seed", "64 bits"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"response_format\":{\"type\":\"json_object\"}}", 400,
     "response_format", "constrained"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}}",
     400, "response_format", "constrained"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"tools\":{}}", 400, "tools", "array"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"tools\":[{\"type\":\"web\"}]}", 400, "tools[0].function",
     "required"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"tool_choice\":\"required\"}", 400, "tool_choice", "forcing"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"modalities\":[\"audio\"]}", 400, "modalities", "text"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"user\":7}", 400, "user", "string"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"chat_template_kwargs\":[]}", 400, "chat_template_kwargs",
     "object"},
    {OPENAI_CHAT, "{" CHAT_OK ",\"continue_final_message\":true,\"add_generation_prompt\":true}",
     400, "continue_final_message", "exclude"},
    {OPENAI_COMPLETIONS, "{\"model\":\"m\"}", 400, "prompt", "required"},
    {OPENAI_COMPLETIONS, "{" M "\"prompt\":[]}", 400, "prompt", "empty"},
    {OPENAI_COMPLETIONS, "{" M "\"prompt\":7}", 400, "prompt", "a string"},
    {OPENAI_COMPLETIONS, "{" M "\"prompt\":[1,\"a\"]}", 400, "prompt", "token id"},
    {OPENAI_COMPLETIONS, "{" M "\"prompt\":[\"a\",1]}", 400, "prompt", "mixes"},
    {OPENAI_COMPLETIONS, "{" M "\"prompt\":[[1],\"a\"]}", 400, "prompt", "mixes"},
    {OPENAI_COMPLETIONS, "{" M "\"prompt\":[1,-1]}", 400, "prompt", "token id"},
    {OPENAI_COMPLETIONS, "{" M "\"prompt\":[1.5]}", 400, "prompt", "token id"},
    {OPENAI_COMPLETIONS, "{" M "\"prompt\":[4294967296]}", 400, "prompt", "token id"},
    {OPENAI_COMPLETIONS, "{" COMP_OK ",\"suffix\":\"x\"}", 400, "suffix", "not supported"},
    {OPENAI_COMPLETIONS, "{" COMP_OK ",\"best_of\":2}", 400, "best_of", "must equal"},
    {OPENAI_COMPLETIONS, "{" COMP_OK ",\"logprobs\":true}", 400, "logprobs", "integer"},
    {OPENAI_COMPLETIONS, "{" COMP_OK ",\"logprobs\":21}", 400, "logprobs", "between 0 and 20"},
    {OPENAI_COMPLETIONS, "{" COMP_OK ",\"max_tokens\":0}", 400, "max_tokens", "echo"},
    {OPENAI_COMPLETIONS, "{" COMP_OK ",\"echo\":1}", 400, "echo", "boolean"},
    {OPENAI_TOKENIZE, "{}", 400, "prompt", "one of"},
    {OPENAI_DETOKENIZE, "{}", 400, "tokens", "required"},
    {OPENAI_DETOKENIZE, "{\"tokens\":\"x\"}", 400, "tokens", "token ids"},
};

static void bad_requests_are_refused_with_the_field_that_is_wrong(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct openai_request r = {.seed = 99};
        struct openai_error e = {0};
        int rc = openai_parse(bad[i].api, str_c(bad[i].body), NULL, &arena, &r, &e);
        if (rc >= 0 || e.status != bad[i].status || strcmp(e.param, bad[i].param) != 0 ||
            !strstr(e.msg, bad[i].says))
            fail_msg("%s: %d %d \"%s\" \"%s\"", bad[i].body, rc, e.status, e.param, e.msg);
        assert_string_equal(e.type, "invalid_request_error");
        assert_int_equal(r.seed, 99); /* written only on success */
    }
}

static void deep_and_huge_bodies_are_refused(void **state)
{
    (void)state;
    struct buf b;
    struct openai_request r;
    struct openai_error e = {0};
    buf_init(&b, OPENAI_MAX_BODY + 100);
    assert_int_equal(buf_cstr(&b, "{\"x\":"), 0);
    for (int i = 0; i < 200; i++)
        assert_int_equal(buf_cstr(&b, "["), 0);
    assert_true(openai_parse(OPENAI_CHAT, buf_view(&b), NULL, &arena, &r, &e) < 0);
    assert_non_null(strstr(e.msg, "too deep"));
    assert_int_equal(buf_reserve(&b, OPENAI_MAX_BODY - b.n + 1), 0);
    memset(b.data, ' ', OPENAI_MAX_BODY + 1);
    b.n = OPENAI_MAX_BODY + 1;
    assert_true(openai_parse(OPENAI_CHAT, buf_view(&b), NULL, &arena, &r, &e) < 0);
    assert_int_equal(e.status, 413);
    buf_fini(&b);
}

static void a_request_past_its_memory_is_a_413(void **state)
{
    (void)state;
    struct arena small;
    struct openai_request r;
    struct openai_error e = {0};
    arena_init(&small, 64);
    assert_true(openai_parse(OPENAI_COMPLETIONS,
                             STR("{\"model\":\"m\",\"prompt\":[1,2,3,4,5,6,7,8,9,10]}"), NULL,
                             &small, &r, &e) < 0);
    assert_int_equal(e.status, 413);
    arena_fini(&small);
}

static void a_body_of_any_engine_gives_its_model(void **state)
{
    (void)state;
    struct str model = {0};
    struct openai_error e = {0};
    bool stream = false;
    assert_int_equal(openai_peek_model(STR("{\"input\":[{}],\"model\":\"x\\n\",\"stream\":true}"),
                                       &arena, &model, &stream, &e),
                     0);
    assert_true(str_eq_c(model, "x\n") && stream);
    assert_true(openai_peek_model(STR("{\"input\":1}"), &arena, &model, &stream, &e) < 0);
    assert_string_equal(e.param, "model");
    assert_true(openai_peek_model(STR("{\"model\":\"x\""), &arena, &model, &stream, &e) < 0);
    assert_int_equal(e.status, 400);
}

static void random_damage_never_crashes_the_parser(void **state)
{
    (void)state;
    struct rng r = {20261130};
    char body[1200];
    for (int round = 0; round < 40000; round++) {
        const char *from = bad[rng_below(&r, sizeof bad / sizeof *bad)].body;
        size_t n = strlen(from);
        if (n == 0 || n > sizeof body)
            continue;
        memcpy(body, from, n);
        for (uint64_t k = 1 + rng_below(&r, 4); k; k--)
            body[rng_below(&r, n)] = (char)rng_below(&r, 256);
        struct openai_request out;
        struct openai_error e = {0};
        struct arena a;
        arena_init(&a, 1 << 16);
        int rc = openai_parse((enum openai_api)rng_below(&r, 4), (struct str){body, n}, NULL, &a,
                              &out, &e);
        assert_true(rc == 0 || (e.status >= 400 && e.status < 500 && e.msg[0]));
        arena_fini(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chat_request_has_openais_defaults),
        cmocka_unit_test(every_chat_field_is_read),
        cmocka_unit_test(prompts_come_in_four_shapes),
        cmocka_unit_test(null_means_absent),
        cmocka_unit_test(tool_choice_none_hides_the_tools),
        cmocka_unit_test(logprobs_zero_asks_for_the_tokens_own),
        cmocka_unit_test(seeds_are_any_64_bit_integer),
        cmocka_unit_test(tokenize_takes_a_prompt_or_messages),
        cmocka_unit_test(bad_requests_are_refused_with_the_field_that_is_wrong),
        cmocka_unit_test(deep_and_huge_bodies_are_refused),
        cmocka_unit_test(a_request_past_its_memory_is_a_413),
        cmocka_unit_test(a_body_of_any_engine_gives_its_model),
        cmocka_unit_test(random_damage_never_crashes_the_parser),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
