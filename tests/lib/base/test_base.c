/* Base types: bounds hold, errors leave outputs alone. */
#include "lib/base/arena.h"
#include "lib/base/buf.h"
#include "lib/base/clock.h"
#include "lib/base/conf.h"
#include "lib/base/file.h"
#include "lib/base/metrics.h"
#include "lib/base/rng.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

static void numbers_out_of_bounds_leave_the_output_alone(void **state)
{
    (void)state;
    int64_t v = 7;
    assert_int_equal(str_to_i64(STR("9223372036854775808"), INT64_MIN, INT64_MAX, &v), -ERANGE);
    assert_int_equal(str_to_i64(STR("12x"), 0, 100, &v), -EINVAL);
    assert_int_equal(str_to_i64(STR(""), 0, 100, &v), -EINVAL);
    assert_int_equal(v, 7);
    assert_int_equal(str_to_i64(STR("-9223372036854775808"), INT64_MIN, INT64_MAX, &v), 0);
    assert_true(v == INT64_MIN);
    assert_int_equal(str_to_quantity_milli(STR("1.5Gi"), &v), 0);
    assert_true(v == 1610612736000);
    assert_int_equal(str_to_quantity_milli(STR("250m"), &v), 0);
    assert_int_equal(v, 250);
}

static void a_buffer_never_grows_past_its_maximum(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 10);
    assert_int_equal(buf_cstr(&b, "0123456789"), 0);
    assert_int_equal(buf_cstr(&b, "x"), -EMSGSIZE);
    assert_string_equal(b.data, "0123456789");
    buf_consume(&b, 4);
    assert_int_equal(buf_printf(&b, "%d", 1234), 0);
    assert_string_equal(b.data, "4567891234");
    buf_fini(&b);
}

static void json_strings_are_escaped_and_valid_utf8(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 1000);
    assert_int_equal(buf_json_str(&b, STR("a\"\\\n\x01\xff\xc3\xa9\xed\xa0\x80")), 0);
    assert_string_equal(
        b.data, "\"a\\\"\\\\\\n\\u0001\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
    buf_fini(&b);
}

static void an_arena_refuses_what_is_past_its_maximum(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, 20000);
    assert_non_null(arena_alloc(&a, 15000));
    assert_null(arena_alloc(&a, 15000));
    assert_string_equal(arena_printf(&a, "%s-%d", "x", 3), "x-3");
    arena_fini(&a);
}

static void times_round_trip_through_rfc3339(void **state)
{
    (void)state;
    char out[CLOCK_RFC3339_MAX];
    uint64_t ns;
    assert_int_equal(clock_parse_rfc3339("2026-11-30T02:40:32.123456Z", &ns), 0);
    assert_string_equal(clock_rfc3339(ns, 6, out), "2026-11-30T02:40:32.123456Z");
    assert_int_equal(clock_parse_rfc3339("2026-11-30T04:40:32+02:00", &ns), 0);
    assert_string_equal(clock_rfc3339(ns, 0, out), "2026-11-30T02:40:32Z");
    assert_int_equal(clock_parse_rfc3339("yesterday", &ns), -EINVAL);
}

static void counter_based_numbers_depend_on_every_argument(void **state)
{
    (void)state;
    assert_true(rng_at(1, 2, 3) == rng_at(1, 2, 3));
    assert_true(rng_at(1, 2, 3) != rng_at(1, 2, 4));
    assert_true(rng_at(1, 2, 3) != rng_at(1, 3, 3));
    assert_true(rng_at(1, 2, 3) != rng_at(2, 2, 3));
    double sum = 0;
    for (uint64_t i = 0; i < 10000; i++)
        sum += rng_unit_at(42, 0, i);
    assert_true(sum > 4900 && sum < 5100);
}

struct opts {
    const char *name;
    uint64_t port, mem;
    bool fast;
};
static const struct conf_opt table[] = {
    {"--name", "T_NAME", CONF_STR, CONF(struct opts, name), "x", 0, 0, "a name", NULL},
    {"--port", NULL, CONF_U64, CONF(struct opts, port), "80", 1, 65535, "a port", "PORT"},
    {"--mem", NULL, CONF_BYTES, CONF(struct opts, mem), "1Mi", 0, 0, "memory", NULL},
    {"--fast", NULL, CONF_BOOL, CONF(struct opts, fast), NULL, 0, 0, "go", NULL},
    {0}};

static void options_are_parsed_bounded_and_named_in_errors(void **state)
{
    (void)state;
    const struct conf_prog p = {"t", "test", "", table};
    struct opts o = {0};
    struct err e = {0};
    int first;
    char *ok[] = {"t", "--port=81", "--mem", "2Mi", "--fast", "verb", "--x"};
    assert_int_equal(conf_parse(&p, 7, ok, &o, &first, &e), 0);
    assert_int_equal(o.port, 81);
    assert_int_equal(o.mem, 2 << 20);
    assert_true(o.fast);
    assert_int_equal(first, 5);
    char *bad[] = {"t", "--port", "70000"};
    assert_int_equal(conf_parse(&p, 3, bad, &o, &first, &e), -ERANGE);
    assert_non_null(strstr(e.msg, "--port"));
    char *unknown[] = {"t", "--nope"};
    assert_int_equal(conf_parse(&p, 2, unknown, &o, &first, &e), -EINVAL);
}

static void metrics_are_exposed_in_prometheus_text(void **state)
{
    (void)state;
    struct metric_family *f = metric_family(METRIC_COUNTER, "t_total", "things", "who", NULL, 0);
    metric_add(metric_series(f, "a\"b"), 2);
    metric_observe(metric_new(METRIC_HISTOGRAM, "t_seconds", "time"), 0.3);
    struct buf b;
    buf_init(&b, 1 << 20);
    assert_int_equal(metrics_write(&b), 0);
    assert_non_null(strstr(b.data, "t_total{who=\"a\\\"b\"} 2\n"));
    assert_non_null(strstr(b.data, "t_seconds_bucket{le=\"0.5\"} 1\n"));
    assert_non_null(strstr(b.data, "t_seconds_count 1\n"));
    buf_fini(&b);
}

static void files_are_read_within_bounds_and_replaced_whole(void **state)
{
    char dir[] = "/tmp/baton-test-XXXXXX";
    struct err e = {0};
    (void)state;
    assert_non_null(mkdtemp(dir));
    CLEANUP(free_charp) char *path = xasprintf("%s/f", dir);
    assert_null(file_read(path, 10, &e));
    assert_int_equal(e.code, ENOENT);
    assert_int_equal(file_write(path, STR("0123456789"), 0600, &e), 0);
    assert_int_equal(file_write(path, STR("abcdefghij"), 0600, &e), 0);
    CLEANUP(free_charp) char *text = file_read(path, 10, &e);
    assert_string_equal(text, "abcdefghij");
    assert_null(file_read(path, 9, &e));
    assert_int_equal(e.code, EMSGSIZE);
    unlink(path);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_out_of_bounds_leave_the_output_alone),
        cmocka_unit_test(a_buffer_never_grows_past_its_maximum),
        cmocka_unit_test(json_strings_are_escaped_and_valid_utf8),
        cmocka_unit_test(an_arena_refuses_what_is_past_its_maximum),
        cmocka_unit_test(times_round_trip_through_rfc3339),
        cmocka_unit_test(counter_based_numbers_depend_on_every_argument),
        cmocka_unit_test(options_are_parsed_bounded_and_named_in_errors),
        cmocka_unit_test(metrics_are_exposed_in_prometheus_text),
        cmocka_unit_test(files_are_read_within_bounds_and_replaced_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
