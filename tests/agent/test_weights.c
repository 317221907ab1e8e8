#include "agent/weights.h"

#include "lib/base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MB (1u << 20)
static char folder[64];
static const char u1, u2, u3;
static const struct weights_key key_a = {"hf://a", "aa", "x86", "rows", 0},
                                key_b = {"hf://b", "bb", "x86", "rows", 0};

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/dev/shm/baton-weights-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    CLEANUP(free_charp) char *cmd = xasprintf("rm -rf %s", folder);
    return system(cmd);
}

static struct weights *open_store(uint64_t budget)
{
    struct weights *w;
    struct err e = {0};
    assert_int_equal(weights_open(folder, budget, &w, &e), 0);
    return w;
}

static enum weights_state get(struct weights *w, const void *user, const struct weights_key *k,
                              uint64_t bytes, int *fd)
{
    enum weights_state s;
    struct err e = {0};
    assert_int_equal(weights_get(w, user, k, bytes, &s, fd, &e), 0);
    return s;
}

static void fill(struct weights *w, const void *user, const struct weights_key *k, uint64_t bytes)
{
    int fd = -1;
    assert_int_equal(get(w, user, k, bytes, &fd), WEIGHTS_FILL);
    assert_int_equal(pwrite(fd, "data", 4, 0), 4);
    close(fd);
    assert_int_equal(weights_filled(w, user, "00ff", NULL), 0);
}

static void one_fills_and_all_others_read_the_same_file(void **state)
{
    (void)state;
    struct weights *w = open_store(8 * MB);
    int a = -1, b = -1;
    assert_int_equal(get(w, &u1, &key_a, MB, &a), WEIGHTS_FILL);
    assert_int_equal(get(w, &u2, &key_a, MB, &b), WEIGHTS_WAIT);
    assert_int_equal(b, -1);
    struct stat st;
    assert_int_equal(fstat(a, &st), 0);
    assert_true(st.st_blocks * 512 >= MB); /* all of it, before anyone writes */
    close(a);
    assert_int_equal(weights_filled(w, &u2, "00ff", NULL), -ENOENT); /* not the filler */
    assert_int_equal(weights_filled(w, &u1, "00ff", NULL), 0);
    assert_int_equal(get(w, &u2, &key_a, MB, &b), WEIGHTS_READY);
    assert_ptr_equal(mmap(NULL, MB, PROT_READ | PROT_WRITE, MAP_SHARED, b, 0), MAP_FAILED);
    assert_int_equal(write(b, "x", 1), -1);
    close(b);
    assert_int_equal(weights_fills(w), 1);
    weights_close(w);
}

static void complete_images_are_adopted_and_unfinished_ones_removed(void **state)
{
    (void)state;
    struct weights *w = open_store(8 * MB);
    int fd = -1;
    fill(w, &u1, &key_a, MB);
    assert_int_equal(get(w, &u2, &key_b, 2 * MB, &fd), WEIGHTS_FILL);
    close(fd);
    weights_close(w); /* as a kill -9 would leave it */
    w = open_store(8 * MB);
    assert_int_equal(weights_count(w), 1);
    assert_int_equal(weights_used_bytes(w), MB);
    struct weights_info i;
    weights_info(w, 0, &i);
    assert_true(i.ready);
    assert_string_equal(i.source, "hf://a");
    assert_string_equal(i.checksum, "00ff");
    assert_int_equal(get(w, &u3, &key_a, MB, &fd), WEIGHTS_READY);
    close(fd);
    assert_int_equal(get(w, &u2, &key_b, 2 * MB, &fd), WEIGHTS_FILL);
    close(fd);
    weights_close(w);
}

static void a_manifest_without_its_image_or_of_another_size_is_nothing(void **state)
{
    (void)state;
    struct weights *w = open_store(8 * MB);
    fill(w, &u1, &key_a, MB);
    weights_close(w);
    CLEANUP(free_charp) char *cmd = xasprintf("truncate -s 100 %s/*.image", folder);
    assert_int_equal(system(cmd), 0);
    w = open_store(8 * MB);
    assert_int_equal(weights_count(w), 0);
    weights_close(w);
}

static void an_image_that_was_written_after_it_was_complete_is_loaded_again(void **state)
{
    (void)state;
    struct weights *w = open_store(8 * MB);
    int fd = -1;
    fill(w, &u1, &key_a, MB);
    weights_close(w);
    CLEANUP(free_charp)
    char *cmd = xasprintf("sleep 0.02; printf x | dd of=$(ls %s/*.image) bs=1 seek=5000 "
                          "conv=notrunc 2>/dev/null",
                          folder);
    assert_int_equal(system(cmd), 0);
    w = open_store(8 * MB);
    assert_int_equal(weights_count(w), 0);
    assert_int_equal(get(w, &u2, &key_a, MB, &fd), WEIGHTS_FILL);
    close(fd);
    weights_close(w);
}

static void a_manifest_without_a_checksum_is_nothing(void **state)
{
    (void)state;
    struct weights *w = open_store(8 * MB);
    fill(w, &u1, &key_a, MB);
    weights_close(w);
    CLEANUP(free_charp)
    char *cmd = xasprintf("sed -i 's/00ff//' %s/*.json", folder);
    assert_int_equal(system(cmd), 0);
    w = open_store(8 * MB);
    assert_int_equal(weights_count(w), 0);
    weights_close(w);
}

static void a_filler_that_leaves_makes_room_for_the_next(void **state)
{
    (void)state;
    struct weights *w = open_store(8 * MB);
    int fd = -1;
    assert_int_equal(get(w, &u1, &key_a, MB, &fd), WEIGHTS_FILL);
    close(fd);
    assert_int_equal(get(w, &u2, &key_a, MB, &fd), WEIGHTS_WAIT);
    weights_release(w, &u1);
    assert_int_equal(weights_used_bytes(w), 0);
    assert_int_equal(get(w, &u2, &key_a, MB, &fd), WEIGHTS_FILL);
    close(fd);
    weights_close(w);
}

static void the_budget_holds_and_only_unused_images_are_dropped(void **state)
{
    (void)state;
    struct weights *w = open_store(3 * MB);
    struct weights_key third = {"hf://c", "cc", "x86", "rows", 0};
    enum weights_state s;
    struct err e = {0};
    int fd = -1;
    fill(w, &u1, &key_a, MB);
    fill(w, &u2, &key_b, 2 * MB);
    assert_int_equal(weights_get(w, &u3, &third, 2 * MB, &s, &fd, &e), -ENOSPC);
    assert_non_null(strstr(e.msg, "weight budget"));
    weights_release(w, &u1);
    assert_int_equal(weights_get(w, &u3, &third, 2 * MB, &s, &fd, &e),
                     -ENOSPC); /* dropping a is not enough */
    assert_int_equal(weights_count(w), 2);
    weights_release(w, &u2);
    assert_int_equal(get(w, &u3, &third, 2 * MB, &fd), WEIGHTS_FILL);
    close(fd);
    assert_true(weights_used_bytes(w) <= 3 * MB);
    weights_close(w);
}

static void a_user_that_maps_an_image_already_keeps_it_from_being_dropped(void **state)
{
    (void)state;
    struct weights *w = open_store(2 * MB);
    enum weights_state s;
    struct err e = {0};
    int fd = -1;
    fill(w, &u1, &key_a, MB);
    weights_close(w);
    w = open_store(2 * MB);
    weights_hold(w, &u1, &key_a);
    weights_hold(w, &u2, &key_b); /* unknown: nothing happens */
    assert_int_equal(weights_get(w, &u2, &key_b, 2 * MB, &s, &fd, &e), -ENOSPC);
    assert_int_equal(weights_count(w), 1);
    weights_close(w);
}

static void layouts_isas_and_ranks_are_images_of_their_own(void **state)
{
    (void)state;
    struct weights *w = open_store(16 * MB);
    struct weights_key k = key_a;
    fill(w, &u1, &k, MB);
    k.rank = 1;
    fill(w, &u1, &k, MB);
    k.isa = "arm";
    fill(w, &u1, &k, MB);
    k.layout = "cols";
    fill(w, &u1, &k, MB);
    assert_int_equal(weights_count(w), 4);
    weights_close(w);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(one_fills_and_all_others_read_the_same_file),
        T(complete_images_are_adopted_and_unfinished_ones_removed),
        T(an_image_that_was_written_after_it_was_complete_is_loaded_again),
        T(a_manifest_without_a_checksum_is_nothing),
        T(a_manifest_without_its_image_or_of_another_size_is_nothing),
        T(a_filler_that_leaves_makes_room_for_the_next),
        T(the_budget_holds_and_only_unused_images_are_dropped),
        T(a_user_that_maps_an_image_already_keeps_it_from_being_dropped),
        T(layouts_isas_and_ranks_are_images_of_their_own),
    };
    log_init("test", "text", LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
