#include "local/kubelet_log.h"
#include "local/kubelet_proc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/baton-log-XXXXXX";
static char path[256];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/baton-log-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/log", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    dir_remove(folder);
    return 0;
}

static void write_text(struct klog *l, int stream, const char *text)
{
    klog_write(l, stream, str_c(text));
}

/* Everything a reader with these options gives, as one string. */
static char *read_all(struct klog_options o)
{
    struct klog_reader *r;
    struct buf b;
    buf_init(&b, 16 << 20);
    assert_int_equal(klog_reader_new(path, &o, &r, NULL), 0);
    int64_t n;
    while ((n = klog_reader_next(r, &b)) > 0)
        ;
    klog_reader_free(r);
    assert_int_equal(buf_cstr(&b, ""), 0);
    return buf_take(&b);
}

static void lines_of_both_streams_come_back_as_they_were(void **state)
{
    (void)state;
    struct klog l;
    assert_int_equal(klog_open(&l, path, 0, NULL), 0);
    write_text(&l, 0, "one\ntw");
    write_text(&l, 1, "err\n");
    write_text(&l, 0, "o\nrest");
    klog_close(&l);
    CLEANUP(free_charp) char *all = read_all((struct klog_options){.tail = -1});
    assert_string_equal(all, "one\nerr\ntwo\nrest");
}

static void a_line_longer_than_the_limit_is_put_together_again(void **state)
{
    (void)state;
    struct klog l;
    size_t n = 100000;
    CLEANUP(free_charp) char *text = xmalloc(n + 2);
    memset(text, 'x', n);
    memcpy(text + n, "\n", 2);
    assert_int_equal(klog_open(&l, path, 0, NULL), 0);
    write_text(&l, 0, text);
    klog_close(&l);
    CLEANUP(free_charp) char *all = read_all((struct klog_options){.tail = -1});
    assert_string_equal(all, text);
}

static void tail_counts_lines_across_a_rotation(void **state)
{
    (void)state;
    struct klog l;
    assert_int_equal(klog_open(&l, path, 1000, NULL), 0);
    for (int i = 0; i < 30; i++) {
        char line[32];
        snprintf(line, sizeof line, "line %d\n", i);
        write_text(&l, 0, line);
    }
    klog_close(&l);
    CLEANUP(free_charp) char *old = xasprintf("%s.1", path);
    assert_int_equal(access(old, R_OK), 0);
    CLEANUP(free_charp) char *some = read_all((struct klog_options){.tail = 20});
    CLEANUP(free_charp) char *want = xasprintf("%s", "");
    for (int i = 10; i < 30; i++) {
        char *more = xasprintf("%sline %d\n", want, i);
        free(want);
        want = more;
    }
    assert_string_equal(some, want);
    CLEANUP(free_charp) char *none = read_all((struct klog_options){.tail = 0});
    assert_string_equal(none, "");
    CLEANUP(free_charp) char *many = read_all((struct klog_options){.tail = 1000});
    assert_non_null(strstr(many, "line 29\n"));
}

static void a_follower_goes_on_through_rotations_and_loses_nothing(void **state)
{
    (void)state;
    struct klog l;
    struct klog_reader *r;
    struct buf b;
    buf_init(&b, 1 << 20);
    assert_int_equal(klog_open(&l, path, 600, NULL), 0);
    write_text(&l, 0, "first\n");
    struct klog_options o = {.tail = -1};
    assert_int_equal(klog_reader_new(path, &o, &r, NULL), 0);
    for (int i = 0; i < 100; i++) {
        char line[32];
        snprintf(line, sizeof line, "n%d\n", i);
        write_text(&l, 0, line);
        assert_true(klog_reader_next(r, &b) >= 0);
    }
    char *p = b.data;
    assert_true(strncmp(p, "first\n", 6) == 0);
    p += 6;
    for (int i = 0; i < 100; i++) {
        char line[32];
        snprintf(line, sizeof line, "n%d\n", i);
        assert_true(strncmp(p, line, strlen(line)) == 0);
        p += strlen(line);
    }
    klog_reader_free(r);
    klog_close(&l);
    buf_fini(&b);
}

static void a_byte_limit_cuts_and_then_says_that_it_is_used_up(void **state)
{
    (void)state;
    struct klog l;
    struct klog_reader *r;
    struct buf b;
    buf_init(&b, 1 << 20);
    assert_int_equal(klog_open(&l, path, 0, NULL), 0);
    write_text(&l, 0, "abc\ndef\n");
    klog_close(&l);
    struct klog_options o = {.tail = -1, .limit_bytes = 5};
    assert_int_equal(klog_reader_new(path, &o, &r, NULL), 0);
    assert_int_equal(klog_reader_next(r, &b), 5);
    assert_memory_equal(b.data, "abc\nd", 5);
    assert_int_equal(klog_reader_next(r, &b), -ENODATA);
    klog_reader_free(r);
    buf_fini(&b);
}

static void damaged_lines_are_left_out(void **state)
{
    (void)state;
    FILE *f = fopen(path, "w");
    fputs("nonsense\n\n2026-11-30T00:00:00.5Z stdout F good\n2026-99-99T00:00:00Z stdout F bad "
          "time\nx stdout\n",
          f);
    fclose(f);
    CLEANUP(free_charp) char *all = read_all((struct klog_options){.tail = -1});
    assert_string_equal(all, "good\n");
    CLEANUP(free_charp)
    char *stamped = read_all((struct klog_options){.tail = -1, .timestamps = true});
    assert_string_equal(stamped, "2026-11-30T00:00:00.5Z good\n");
    CLEANUP(free_charp)
    char *later =
        read_all((struct klog_options){.tail = -1, .since_wall_ns = UINT64_C(1796083200000000000)});
    assert_string_equal(later, "");
}

static void a_process_is_known_by_its_start_time_too(void **state)
{
    (void)state;
    struct proc_id self = {.pid = getpid()}, child = {0};
    assert_int_equal(proc_start_time(self.pid, &self.start), 0);
    assert_true(proc_alive(self));
    struct proc_id other = {self.pid, self.start + 1};
    assert_false(proc_alive(other));
    assert_int_equal(proc_signal(other, SIGKILL), -ESRCH); /* or this test would not go on */
    child.pid = fork();
    if (child.pid == 0) {
        pause();
        _exit(0);
    }
    assert_int_equal(proc_start_time(child.pid, &child.start), 0);
    int fd = proc_open(child);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(proc_signal(child, SIGKILL), 0);
    while (proc_alive(child)) /* a zombie counts as gone */
        usleep(1000);
    assert_int_equal(waitpid(child.pid, NULL, 0), child.pid);
}

static void a_file_is_replaced_whole_and_with_its_mode(void **state)
{
    (void)state;
    struct stat st;
    assert_int_equal(file_replace(path, STR("old"), 0600), 0);
    assert_int_equal(file_replace(path, STR("newer"), 0640), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 5);
    assert_int_equal(st.st_mode & 0777, 0640);
    CLEANUP(free_charp) char *nowhere = xasprintf("%s/none/x", folder);
    assert_int_equal(file_replace(nowhere, STR("x"), 0600), -ENOENT);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(lines_of_both_streams_come_back_as_they_were),
        T(a_line_longer_than_the_limit_is_put_together_again),
        T(tail_counts_lines_across_a_rotation),
        T(a_follower_goes_on_through_rotations_and_loses_nothing),
        T(a_byte_limit_cuts_and_then_says_that_it_is_used_up),
        T(damaged_lines_are_left_out),
        T(a_process_is_known_by_its_start_time_too),
        T(a_file_is_replaced_whole_and_with_its_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
