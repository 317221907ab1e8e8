#include "agent/lines.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

struct side {
    struct lines *l;
    int messages, closed, close_at;
    char last[64], why[128];
    int fds[8], n_fds;
};

static void on_message(struct lines *l, const json_t *msg, void *ctx)
{
    struct side *s = ctx;
    s->messages++;
    snprintf(s->last, sizeof s->last, "%s", json_str_at(msg, "type", ""));
    if (json_bool_at(msg, "fd", false) && s->n_fds < 8)
        s->fds[s->n_fds++] = lines_take_fd(l);
    if (s->close_at == s->messages)
        lines_close(l);
}

static void on_closed(struct lines *l, const char *why, void *ctx)
{
    (void)l;
    struct side *s = ctx;
    s->closed++;
    snprintf(s->why, sizeof s->why, "%s", why);
    s->l = NULL;
}

static uv_loop_t loop;

/* One end as a lines object, the other raw. */
static int open_pair(struct side *s)
{
    int pair[2];
    struct lines_handlers h = {on_message, on_closed, s};
    *s = (struct side){0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    assert_int_equal(lines_new(&loop, pair[0], &h, &s->l, NULL), 0);
    return pair[1];
}

static void turn(void)
{
    for (int i = 0; i < 20; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
}

static void put(int fd, const char *text)
{
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    turn();
}

static void end(struct side *s, int fd)
{
    if (s->l)
        lines_close(s->l);
    close(fd);
    turn();
}

static void a_line_may_come_in_any_pieces(void **state)
{
    (void)state;
    struct side s;
    int fd = open_pair(&s);
    const char *text = "{\"type\":\"one\"}\n{\"type\":\"two\"}\n";
    for (const char *p = text; *p; p++)
        put(fd, (char[]){*p, 0});
    assert_int_equal(s.messages, 2);
    put(fd, "{\"type\":\"a\"}\n{\"type\":\"b\"}\n{\"type\":\"c\"}\n{\"ty");
    assert_int_equal(s.messages, 5);
    assert_string_equal(s.last, "c");
    end(&s, fd);
}

static void what_is_no_object_ends_the_connection(void **state)
{
    (void)state;
    static const char *const bad[] = {"[1]\n", "{\"a\":\n", "\n", "{\"a\":1,\"a\":2}\n",
                                      "\xff\xfe\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct side s;
        int fd = open_pair(&s);
        put(fd, bad[i]);
        assert_int_equal(s.closed, 1);
        assert_int_equal(s.messages, 0);
        end(&s, fd);
    }
}

static void a_line_without_end_is_refused_at_64_kib(void **state)
{
    (void)state;
    struct side s;
    int fd = open_pair(&s);
    char piece[4096];
    memset(piece, 'x', sizeof piece);
    for (int i = 0; i < 40 && !s.closed; i++) {
        if (write(fd, piece, sizeof piece) < 0)
            break;
        turn();
    }
    assert_int_equal(s.closed, 1);
    assert_non_null(strstr(s.why, "64 KiB"));
    end(&s, fd);
}

static void descriptors_arrive_with_the_lines_that_announce_them(void **state)
{
    (void)state;
    struct side a = {0}, b = {0};
    int pair[2];
    struct lines_handlers ha = {on_message, on_closed, &a}, hb = {on_message, on_closed, &b};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    assert_int_equal(lines_new(&loop, pair[0], &ha, &a.l, NULL), 0);
    assert_int_equal(lines_new(&loop, pair[1], &hb, &b.l, NULL), 0);
    for (int i = 0; i < 3; i++) {
        char text[8];
        snprintf(text, sizeof text, "file%d", i);
        int fd = memfd_create(text, MFD_CLOEXEC);
        assert_int_equal(write(fd, text, 5), 5);
        CLEANUP(json_decrefp) json_t *plain = json_pack("{s:s}", "type", "plain");
        CLEANUP(json_decrefp) json_t *with = json_pack("{s:s, s:b}", "type", "with", "fd", 1);
        assert_int_equal(lines_send(a.l, plain, -1), 0);
        assert_int_equal(lines_send(a.l, with, fd), 0);
        close(fd);
    }
    turn();
    assert_int_equal(b.messages, 6);
    assert_int_equal(b.n_fds, 3);
    for (int i = 0; i < 3; i++) {
        char text[8] = "", want[8];
        snprintf(want, sizeof want, "file%d", i);
        assert_int_equal(pread(b.fds[i], text, 5, 0), 5);
        assert_string_equal(text, want);
        assert_true(fcntl(b.fds[i], F_GETFD) & FD_CLOEXEC);
        close(b.fds[i]);
    }
    lines_close(a.l);
    turn();
    assert_int_equal(b.closed, 1);
}

static void a_peer_that_does_not_read_is_told_of_and_nothing_grows(void **state)
{
    (void)state;
    struct side s;
    int fd = open_pair(&s), r = 0, n = 0;
    CLEANUP(free_charp) char *big = xmalloc(32769);
    memset(big, 'y', 32768);
    big[32768] = 0;
    CLEANUP(json_decrefp) json_t *msg = json_pack("{s:s}", "x", big);
    while (r == 0 && n++ < 1000)
        r = lines_send(s.l, msg, -1);
    assert_int_equal(r, -EMSGSIZE);
    assert_in_range(n, 10, 100);
    char sink[65536];
    size_t got = 0;
    for (int i = 0; i < 2000; i++) { /* once it reads, all that was accepted arrives */
        ssize_t k = read(fd, sink, sizeof sink);
        got += k > 0 ? (size_t)k : 0;
        turn();
    }
    assert_int_equal(got, (size_t)(n - 1) * (32768 + sizeof "{\"x\":\"\"}\n" - 1));
    end(&s, fd);
}

static void a_handler_may_close_between_two_lines_of_one_read(void **state)
{
    (void)state;
    struct side s;
    int fd = open_pair(&s);
    s.close_at = 1;
    put(fd, "{\"type\":\"a\"}\n{\"type\":\"b\"}\n");
    assert_int_equal(s.messages, 1);
    assert_int_equal(s.closed, 0);
    s.l = NULL;
    end(&s, fd);
}

static void a_socket_works_in_a_folder_with_a_very_long_name(void **state)
{
    (void)state;
    char root[] = "/tmp/baton-lines-XXXXXX", dir[600];
    assert_non_null(mkdtemp(root));
    snprintf(dir, sizeof dir, "%s/%0200d", root, 7);
    assert_int_equal(mkdir(dir, 0700), 0);
    struct err e = {0};
    assert_int_equal(lines_connect(dir, "agent.sock", &e), -ENOENT);
    int server = lines_listen(dir, "agent.sock", &e);
    assert_true(server >= 0);
    int client = lines_connect(dir, "agent.sock", &e);
    assert_true(client >= 0);
    assert_int_equal(lines_listen(dir, "agent.sock", &e), -EADDRINUSE); /* another one lives */
    close(server);
    close(client);
    assert_int_equal(lines_connect(dir, "agent.sock", &e), -ECONNREFUSED);
    server = lines_listen(dir, "agent.sock", &e); /* a dead socket is replaced */
    assert_true(server >= 0);
    close(server);
    char path[700];
    snprintf(path, sizeof path, "%s/agent.sock", dir);
    unlink(path);
    rmdir(dir);
    rmdir(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_may_come_in_any_pieces),
        cmocka_unit_test(what_is_no_object_ends_the_connection),
        cmocka_unit_test(a_line_without_end_is_refused_at_64_kib),
        cmocka_unit_test(descriptors_arrive_with_the_lines_that_announce_them),
        cmocka_unit_test(a_peer_that_does_not_read_is_told_of_and_nothing_grows),
        cmocka_unit_test(a_handler_may_close_between_two_lines_of_one_read),
        cmocka_unit_test(a_socket_works_in_a_folder_with_a_very_long_name),
    };
    uv_loop_init(&loop);
    int r = cmocka_run_group_tests(tests, NULL, NULL);
    turn();
    return r | (uv_loop_close(&loop) != 0);
}
