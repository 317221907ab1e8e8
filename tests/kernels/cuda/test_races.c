/* No kernel lacks a barrier, and none is superfluous: all kernel tests run under race.cc without a
 * race, and taking any single barrier out of a kernel's source (module.mk does that, into the build
 * folder) is found. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

/* By source: the tests that run its kernels. */
static const struct covered {
    const char *source, *program, *tests;
} covered[] = {
    {"decode_attention", "test_attention", "decode_attention_*"},
    {"device", "test_rows", "*norm_follow*"}, /* rows.cu with it */
    {"gemm", "test_products", "products_*"},
    {"mla", "test_mla", "mla_decode_*"},
    {"mla_prefill", "test_mla", "mla_prefill_*"},
    {"moe", "test_products", "experts_are_*"},
    {"prefill_attention", "test_attention", "prefill_attention_*"},
    {"rope", "test_rows", "*stored*"},
    {"rows", "test_rows", "*norm_follow*"},
    {"sample", "test_sampling", "*"},
};
static const char *const programs[] = {"test_attention", "test_dispatch", "test_mla",
                                       "test_products",  "test_rows",     "test_sampling"};

static char folder[4096]; /* of this program */

static void in_child(const char *program, const char *variant, const char *tests, int out)
{
    char path[4200], libraries[4200];
    snprintf(path, sizeof path, "%s/%s", folder, program);
    snprintf(libraries, sizeof libraries, "%s/race", folder);
    setenv("LD_LIBRARY_PATH", libraries, 1);
    setenv("EMU_QUICK", "1", 1);
    setenv("TEST_FILTER", tests, 1);
    if (variant)
        setenv("EMU_BROKEN", variant, 1);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    execl(path, path, (char *)NULL);
    _exit(99);
}

/* The end of what it printed; its status as of waitpid. */
static int run(const char *program, const char *variant, const char *tests, char *text, size_t cap)
{
    int fds[2], status = 0;
    size_t n = 0;
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0)
        in_child(program, variant, tests, fds[1]);
    close(fds[1]);
    for (;;) {
        if (n > cap / 2) { /* the end is what matters */
            memmove(text, text + n / 2, n - n / 2);
            n -= n / 2;
        }
        ssize_t k = read(fds[0], text + n, cap - 1 - n);
        if (k <= 0)
            break;
        n += (size_t)k;
    }
    text[n] = 0;
    close(fds[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void no_kernel_lacks_a_barrier(void **state)
{
    char text[16384];
    (void)state;
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        int status = run(programs[i], NULL, "*", text, sizeof text);
        if (status)
            fail_msg("%s under race.cc: status %x\n%s", programs[i], (unsigned)status, text);
    }
}

static const struct covered *tests_for(const char *variant)
{
    for (size_t i = 0; i < sizeof covered / sizeof *covered; i++) {
        size_t n = strlen(covered[i].source);
        if (strncmp(variant, covered[i].source, n) == 0 && variant[n] == '-')
            return &covered[i];
    }
    fail_msg("no test runs the kernels of %s", variant);
    return NULL;
}

static bool found(const char *variant)
{
    char text[16384];
    const struct covered *c = tests_for(variant);
    return run(c->program, variant, c->tests, text, sizeof text) && strstr(text, ": a race: ");
}

static void every_barrier_that_is_taken_out_is_missed(void **state)
{
    char path[4200], variant[64];
    uint32_t n = 0, unnoticed = 0;
    (void)state;
    snprintf(path, sizeof path, "%s/race/variants", folder);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    for (; fscanf(f, "%63s", variant) == 1; n++)
        if (!found(variant)) {
            printf("%s: the barrier was taken out and nothing was noticed\n", variant);
            unnoticed++;
        }
    fclose(f);
    printf("%u barriers taken out, one at a time\n", n);
    assert_true(n >= 10);
    assert_int_equal(unnoticed, 0);
}

int main(void)
{
    ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
    if (n <= 0 || !strrchr(folder, '/'))
        return 99;
    *strrchr(folder, '/') = 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_kernel_lacks_a_barrier),
        cmocka_unit_test(every_barrier_that_is_taken_out_is_missed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
