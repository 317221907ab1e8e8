/* Blocks of every GGUF type against what the `gguf` package makes of them (tools/goldens-gguf.py).
 */
#include "worker/model/blocks.h"
#include "lib/base/str.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#define COLS 512u

static void check(const json_t *entry)
{
    const char *name = json_string_value(json_object_get(entry, "name")),
               *hex = json_string_value(json_object_get(entry, "raw"));
    const json_t *want = json_object_get(entry, "values");
    size_t bytes = strlen(hex) / 2;
    uint8_t *raw = malloc(bytes);
    float got[COLS];
    assert_int_equal(str_from_hex(str_c(hex), raw, bytes), 0);
    assert_int_equal(json_array_size(want), COLS);
    block_floats((uint32_t)json_integer_value(json_object_get(entry, "type")), raw, COLS, got);
    for (size_t i = 0; i < COLS; i++) {
        double w = json_number_value(json_array_get(want, i));
        if (!(fabs((double)got[i] - w) <= 2e-7 * (fabs(w) + 1e-3)))
            fail_msg("%s: value %zu is %.9g, not %.9g", name, i, (double)got[i], w);
    }
    free(raw);
}

static void every_type_is_what_the_gguf_package_dequantises(void **state)
{
    (void)state;
    json_error_t je;
    json_t *all = json_load_file("tests/golden/engine/gguf-blocks.json", 0, &je);
    size_t i;
    json_t *entry;
    assert_int_equal(json_array_size(all), 11);
    json_array_foreach (all, i, entry)
        check(entry);
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_is_what_the_gguf_package_dequantises),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
