/* Chat templates against transformers' apply_chat_template (goldens by tools/goldens-llm.py), and
 * their limits. */
#include "lib/llm/template.h"
#include "tests/lib/llm/strings.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static char *read_text(const char *name)
{
    CLEANUP(free_charp) char *path = xasprintf(GOLDEN "templates/%s", name);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    char *text = xcalloc(1, 65536);
    assert_true(fread(text, 1, 65535, f) > 0);
    fclose(f);
    return text;
}

static struct chat_template *compile(const char *source)
{
    struct err e = {0};
    struct chat_template *t = NULL;
    if (chat_template_new(str_c(source), &t, &e))
        fail_msg("%s", e.msg);
    return t;
}

static struct str dump(const json_t *v, struct buf *out)
{
    buf_reset(out);
    if (json_is_object(v) || json_is_array(v))
        assert_int_equal(json_write(v, false, out), 0);
    return buf_view(out);
}

/* "LENGTH HASH", or NULL when the conversation is refused. */
static void check_case(const struct chat_template *t, const char *name, const json_t *c, size_t i)
{
    struct buf messages, tools, extra, out;
    struct err e = {0};
    buf_init(&messages, 1 << 20);
    buf_init(&tools, 1 << 20);
    buf_init(&extra, 1 << 20);
    buf_init(&out, 1 << 20);
    struct chat_render in = {
        .messages = dump(json_object_get(c, "messages"), &messages),
        .tools = dump(json_object_get(c, "tools"), &tools),
        .extra = dump(json_object_get(c, "extra"), &extra),
        .bos_token = STR("<s>"),
        .eos_token = STR("</s>"),
        .add_generation_prompt = json_is_true(json_object_get(c, "generation")),
        .continue_final_message = json_is_true(json_object_get(c, "continue")),
        .plain_values = true,
    };
    const char *want = json_string_value(json_object_get(json_object_get(c, "expect"), name));
    int rc = chat_template_render(t, &in, &out, &e);
    CLEANUP(free_charp) char *got = xasprintf("%zu %08x", out.n, fnv(out.data, out.n));
    if (want ? rc || strcmp(got, want) != 0 : rc == 0)
        fail_msg("%s, conversation %zu: expected %s, got %s %s: %s", name, i,
                 want ? want : "a refusal", got, e.msg, out.data);
    if (rc)
        assert_true(e.msg[0] && out.n == 0);
    buf_fini(&messages);
    buf_fini(&tools);
    buf_fini(&extra);
    buf_fini(&out);
}

static void templates_render_as_transformers_renders_them(void **state)
{
    (void)state;
    static const char *const names[] = {
        "smollm2.jinja",      "gemma3.jinja",      "llama3-short.jinja",
        "llama3-tools.jinja", "qwen25.jinja",      "qwen3.jinja",
        "mistral.jinja",      "deepseek-v3.jinja", "features.jinja"};
    CLEANUP(json_decrefp)
    json_t *cases = json_parse_file(GOLDEN "conversations.json", 4 << 20, NULL);
    assert_true(json_array_size(cases) >= 100);
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        CLEANUP(free_charp) char *source = read_text(names[k]);
        struct chat_template *t = compile(source);
        size_t i, rendered = 0;
        json_t *c;
        json_array_foreach (cases, i, c) {
            check_case(t, names[k], c, i);
            rendered += json_is_string(json_object_get(json_object_get(c, "expect"), names[k]));
        }
        assert_true(rendered >= 50);
        chat_template_free(t);
    }
}

/* Renders `source` for one user message, as the server does it (values adapted). Result in a static
 * buffer. */
static const char *render_as(const char *source, const char *messages, int want, struct err *e)
{
    static struct buf out;
    out.max = 1 << 20;
    buf_reset(&out);
    struct chat_template *t = NULL;
    int rc = chat_template_new(str_c(source), &t, e);
    if (!rc) {
        struct chat_render in = {.messages = str_c(messages),
                                 .max_steps = 200000,
                                 .now_wall_ns = 1700000000ull * 1000000000u};
        rc = chat_template_render(t, &in, &out, e);
        chat_template_free(t);
    }
    if (rc != want)
        fail_msg("%s: %d, not %d: %s", source, rc, want, e->msg);
    return out.data ? out.data : "";
}

static const char *render(const char *source)
{
    struct err e = {0};
    return render_as(source, "[{\"role\":\"user\",\"content\":\"hi\"}]", 0, &e);
}

static void values_print_as_python_prints_them(void **state)
{
    (void)state;
    assert_string_equal(
        render("{{ [1, 2.0, 1e16, 1.5e-5, true, none, 'it''s', \"a'b\", (1,), {'k': []}] }}"),
        "[1, 2.0, 1e+16, 1.5e-05, True, None, 'its', \"a'b\", (1,), {'k': []}]");
    assert_string_equal(render("{{ 0.1 + 0.2 }} {{ 100 / 3 }} {{ 5 // -2 }} {{ 2 ** -1 }}"),
                        "0.30000000000000004 33.333333333333336 -3 0.5");
    assert_string_equal(
        render("{{ missing }}|{{ missing is defined }}|{{ messages[5] is defined }}"),
        "|False|False");
    assert_string_equal(
        render("{{ 'é😀x'[1] }}{{ 'abc'[::-1] }}{{ 'abcdef'[-3:-1] }}{{ [1, 2, 3][::2] }}"),
        "😀cbade[1, 3]");
}

static void white_space_is_controlled_as_in_jinja(void **state)
{
    (void)state;
    assert_string_equal(render("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
    assert_string_equal(render("a\n  {%+ if true %}b{% endif +%}\nc"), "a\n  b\nc");
    assert_string_equal(render("a  {{- ' b ' -}}  c"), "a b c");
    assert_string_equal(render("x {# a comment #}\ny"), "x y");
    assert_string_equal(render("{% raw %}{{ x }}{% endraw %}\r\nz"), "{{ x }}z");
}

static void loop_variables_stay_in_their_loop(void **state)
{
    (void)state;
    assert_string_equal(
        render(
            "{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }},{% endfor %}{{ x }}"),
        "2,3,1");
    assert_string_equal(render("{% set n = namespace(x=0) %}{% for i in [1, 2] %}{% set n.x = n.x "
                               "+ i %}{% endfor %}{{ n.x }}"),
                        "3");
}

static void the_time_comes_from_the_caller(void **state)
{
    (void)state;
    assert_string_equal(render("{{ strftime_now('%Y-%m-%d') }}"), "2023-11-14");
}

static void errors_say_the_line_and_what_is_wrong(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"a\n{% if %}", "line 2"},
        {"{{ x", "not closed"},
        {"{% for x in y %}", "ends inside a block"},
        {"{% endif %}", "endif"},
        {"{{ 1 | nonesuch }}", "filter"},
        {"{{ 1 is nonesuch }}", "test"},
        {"{% include 'x' %}", "include"},
        {"{% break %}", "loops"},
        {"{% for a in b recursive %}{% endfor %}", "recursive"},
        {"\n\n{{ undefined_name.attr }}", "line 3: 'undefined_name' is undefined"},
        {"{{ 'a' + 1 }}", "str and int"},
        {"{{ messages.append(1) }}", "not allowed"},
        {"{{ [1] < 'a' }}", "ordered"},
        {"{{ 1 // 0 }}", "zero"},
        {"{{ 9223372036854775807 + 1 }}", "too large"},
        {"{{ messages[0]['nope'].x }}", "'dict object' has no attribute 'nope'"},
        {"{{ messages() }}", "not callable"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = {0};
        render_as(bad[i][0], "[{\"role\":\"user\",\"content\":\"hi\"}]",
                  -EINVAL + (strstr(bad[i][1], "too large") ? EINVAL - ERANGE : 0), &e);
        if (!strstr(e.msg, bad[i][1]))
            fail_msg("%s: \"%s\" doesn't say \"%s\"", bad[i][0], e.msg, bad[i][1]);
    }
}

static void raise_exception_gives_the_templates_own_words(void **state)
{
    (void)state;
    struct err e = {0};
    render_as("{{ raise_exception('roles must alternate') }}", "[]", -EBADMSG, &e);
    assert_string_equal(e.msg, "roles must alternate");
}

static void hostile_templates_end_at_a_limit(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "{% for a in range(1000000) %}{% for b in range(1000000) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 100000000 }}",
        "{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% "
        "endfor %}{{ ns.s }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(300) %}{% set ns.l = [ns.l] %}{% endfor "
        "%}{{ ns.l }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(40) %}{% set ns.l = ns.l + ns.l %}{% "
        "endfor %}",
        "{{ range(100000000) }}",
        "{{ ('a' * 1000000).replace('', 'bbbbbbbb') }}{{ ('a' * 1000000).replace('', 'bbbbbbbb') "
        "}}",
    };
    struct err e = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        render_as(bad[i], "[]", -E2BIG, &e);
    char deep[4000];
    memset(deep, '(', sizeof deep);
    memcpy(deep, "{{", 2);
    deep[sizeof deep - 1] = 0;
    render_as(deep, "[]", -EINVAL, &e);
}

static void servers_adapt_what_clients_send(void **state)
{
    (void)state;
    static const char parts[] = "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
                                "\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]";
    static const char calls[] =
        "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\","
        "\"arguments\":\"{\\\"x\\\": 1}\"}}]}]";
    struct err e = {0};
    assert_string_equal(
        render_as("{% for m in messages %}{{ m.content }}{% endfor %}", parts, 0, &e), "a\nb");
    assert_string_equal(
        render_as(
            "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}",
            parts, 0, &e),
        "<a><b>");
    assert_string_equal(render_as("{{ messages[0].tool_calls[0].function.arguments | tojson }}[{{ "
                                  "messages[0].content }}]",
                                  calls, 0, &e),
                        "{\"x\": 1}[]");
    assert_string_equal(
        render_as("{{ messages[0].role }}", "[{\"role\":\"developer\",\"content\":\"x\"}]", 0, &e),
        "system");
    assert_string_equal(render_as("{% if messages[0].role == 'developer' %}d{% endif %}",
                                  "[{\"role\":\"developer\",\"content\":\"x\"}]", 0, &e),
                        "d");
}

static void the_advice_for_a_model_without_template_names_both_ways_out(void **state)
{
    (void)state;
    assert_non_null(strstr(chat_template_missing, "/v1/completions"));
    assert_non_null(strstr(chat_template_missing, "model.chatTemplate"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_render_as_transformers_renders_them),
        cmocka_unit_test(values_print_as_python_prints_them),
        cmocka_unit_test(white_space_is_controlled_as_in_jinja),
        cmocka_unit_test(loop_variables_stay_in_their_loop),
        cmocka_unit_test(the_time_comes_from_the_caller),
        cmocka_unit_test(errors_say_the_line_and_what_is_wrong),
        cmocka_unit_test(raise_exception_gives_the_templates_own_words),
        cmocka_unit_test(hostile_templates_end_at_a_limit),
        cmocka_unit_test(servers_adapt_what_clients_send),
        cmocka_unit_test(the_advice_for_a_model_without_template_names_both_ways_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
