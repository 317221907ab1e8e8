/* libFuzzer: request bodies of every API (the first byte picks it). A refusal is always a 4xx with
 * a message. */
#include "lib/llm/openai.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void inside(struct str part, struct str body)
{
    ASSERT(part.n == 0 || (part.p >= body.p && part.p + part.n <= body.p + body.n));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1)
        return 0;
    struct str body = {(const char *)data + 1, n - 1}, model;
    struct openai_request r = {0};
    struct openai_error e = {0};
    struct arena a;
    bool stream;
    arena_init(&a, 1 << 20);
    if (openai_parse((enum openai_api)(data[0] % 4), body, NULL, &a, &r, &e) == 0) {
        inside(r.messages, body);
        inside(r.tools, body);
        ASSERT(r.n >= 1 && r.n <= OPENAI_MAX_N && r.n_stop <= OPENAI_MAX_STOP);
        ASSERT(r.temperature >= 0 && r.temperature <= 2 && r.top_p > 0 && r.top_p <= 1);
        for (size_t i = 1; i < r.n_logit_bias; i++)
            ASSERT(r.logit_bias[i - 1].id < r.logit_bias[i].id);
    } else {
        ASSERT(e.status >= 400 && e.status < 500 && e.msg[0]);
    }
    if (openai_peek_model(body, &a, &model, &stream, &e))
        ASSERT(e.status >= 400 && e.status < 500);
    arena_fini(&a);
    return 0;
}
