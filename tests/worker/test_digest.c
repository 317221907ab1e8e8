/* A model file is used only when its digest is the one that was asked for. */
#include "worker/digest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* FIPS 180-2, B.1: "abc" */
#define ABC "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"

static char path[] = "/tmp/baton-digest-XXXXXX";

static int setup(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 || write(fd, "abc", 3) != 3 || close(fd);
}

static int teardown(void **state)
{
    (void)state;
    return unlink(path);
}

static void the_right_digest_and_none_pass(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_equal(digest_check(path, ABC, &e), 0);
    assert_int_equal(digest_check(path, "", &e), 0);
}

static void another_digest_is_refused_and_both_are_named(void **state)
{
    (void)state;
    struct err e = {0};
    char other[] = ABC;
    other[63] = 'e';
    assert_int_not_equal(digest_check(path, other, &e), 0);
    assert_non_null(strstr(e.msg, ABC));
    assert_non_null(strstr(e.msg, other));
}

static void a_file_that_is_not_there_is_an_error(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_not_equal(digest_check("/nonexistent/x", ABC, &e), 0);
}

static void a_folder_has_the_digest_of_sha256sums_lines(void **state)
{
    (void)state;
    char dir[] = "/tmp/baton-digest-dir-XXXXXX", cmd[512], hex[65] = "";
    struct err e = {0};
    assert_non_null(mkdtemp(dir));
    snprintf(
        cmd, sizeof cmd,
        "cd %s && printf abc > b.json && printf x > B.bin && printf y > .hidden && mkdir sub && "
        "LC_ALL=C sha256sum * 2>/dev/null | sha256sum | cut -c 1-64",
        dir);
    FILE *f = popen(cmd, "re");
    assert_true(f && fread(hex, 1, 64, f) == 64);
    pclose(f);
    assert_int_equal(digest_check(dir, hex, &e), 0);
    assert_int_not_equal(digest_check(dir, ABC, &e), 0);
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    assert_int_equal(system(cmd), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_right_digest_and_none_pass),
        cmocka_unit_test(another_digest_is_refused_and_both_are_named),
        cmocka_unit_test(a_file_that_is_not_there_is_an_error),
        cmocka_unit_test(a_folder_has_the_digest_of_sha256sums_lines),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
