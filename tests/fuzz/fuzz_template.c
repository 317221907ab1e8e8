/* libFuzzer: a chat template (up to the first NUL byte) and the messages for it (after that, or a
 * fixed conversation). */
#include "lib/llm/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *cut = n ? memchr(data, 0, n) : NULL;
    size_t source = cut ? (size_t)(cut - data) : n;
    struct chat_template *t = NULL;
    struct err e = {0};
    struct buf out;
    if (chat_template_new((struct str){(const char *)data, source}, &t, &e)) {
        ASSERT(e.msg[0]);
        return 0;
    }
    struct chat_render in = {
        .messages = cut ? (struct str){(const char *)cut + 1, n - source - 1}
                        : STR("[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\","
                              "\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}]"),
        .tools = STR("[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}]"),
        .bos_token = STR("<s>"),
        .eos_token = STR("</s>"),
        .add_generation_prompt = true,
        .continue_final_message = n % 7 == 0,
        .plain_values = n % 2,
        .max_steps = 20000,
        .max_memory = 4 << 20,
    };
    buf_init(&out, 1 << 20);
    if (chat_template_render(t, &in, &out, &e))
        ASSERT(e.msg[0] && out.n == 0);
    buf_fini(&out);
    chat_template_free(t);
    return 0;
}
