/* What a bad network or a stranger does to real sockets: bytes that change on the way, garbage,
 * silence, half a handshake. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/lib/xfer/pair.h"

#include "lib/wire/control.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#define HOST   "127.0.0.1"
#define SECRET "an old secret"

static struct pair_side d, p;

static void both(void)
{
    struct err e;
    assert_int_equal(pair_start(&d, HOST, XFER_ONLY_TCP, NULL, SECRET, 1000, &e), 0);
    assert_int_equal(pair_start(&p, HOST, XFER_ONLY_TCP, NULL, SECRET, 1000, &e), 0);
}

static void neither(void)
{
    pair_stop(&d);
    pair_stop(&p);
}

static int dial(uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

/* A relay between D and P that flips one bit of what P sends, at a given byte of the stream. */
struct relay {
    int listener;
    uint16_t to, port;
    uint64_t flip_at;
    pthread_t thread;
};

static bool relay_some(int from, int to, uint64_t *passed, uint64_t flip_at)
{
    char b[16384];
    ssize_t n = read(from, b, sizeof b);
    if (n <= 0)
        return false;
    if (flip_at >= *passed && flip_at < *passed + (uint64_t)n)
        b[flip_at - *passed] ^= 0x10;
    *passed += (uint64_t)n;
    for (ssize_t at = 0; at < n;) {
        ssize_t w = send(to, b + at, (size_t)(n - at), MSG_NOSIGNAL);
        if (w <= 0)
            return false;
        at += w;
    }
    return true;
}

static void *relay_main(void *arg)
{
    struct relay *r = arg;
    int a = accept(r->listener, NULL, NULL), b = dial(r->to);
    uint64_t up = 0, down = 0;
    struct pollfd f[2] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
    for (bool go = true; go && poll(f, 2, 5000) > 0;) {
        if (f[0].revents)
            go = relay_some(a, b, &up, UINT64_MAX);
        if (go && f[1].revents)
            go = relay_some(b, a, &down, r->flip_at);
    }
    close(a);
    close(b);
    return NULL;
}

static void relay_start(struct relay *r, uint16_t to, uint64_t flip_at)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t n = sizeof a;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *r = (struct relay){.to = to, .flip_at = flip_at};
    r->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(r->listener, (struct sockaddr *)&a, n), 0);
    assert_int_equal(listen(r->listener, 4), 0);
    assert_int_equal(getsockname(r->listener, (struct sockaddr *)&a, &n), 0);
    r->port = ntohs(a.sin_port);
    assert_int_equal(pthread_create(&r->thread, NULL, relay_main, r), 0);
}

static enum xfer_reason through_relay(uint64_t flip_at)
{
    struct relay r;
    char name[128];
    both();
    relay_start(&r, xfer_port(p.x), flip_at);
    snprintf(name, sizeof name, HOST ":%u:%016llx", r.port, (unsigned long long)p.incarnation);
    struct pair_slot *s = pair_order(&d, name, (struct pair_order){flip_at + 1, 8, UINT32_MAX});
    assert_true(pair_run(&d, &p, 1, 5000));
    assert_int_equal(d.wrong_bytes, 0);
    assert_int_equal(pair_busy(&d), 0);
    enum xfer_reason why = s->done ? XFER_OK : s->reason;
    neither();
    close(r.listener);
    pthread_join(r.thread, NULL);
    return why;
}

static void a_flipped_bit_fails_the_transfer_and_never_passes_for_kv(void **state)
{
    (void)state;
    assert_int_equal(through_relay(UINT64_MAX - 1), XFER_OK); /* the relay itself is innocent */
    uint32_t corrupt = 0;
    /* 8 blocks x 4 layers x 4,144 bytes follow the handshake and two messages: some flips hit
     * headers, most hit data. */
    for (uint64_t at = 600; at < 130000; at += 8641) {
        enum xfer_reason why = through_relay(at);
        assert_int_not_equal(why, XFER_OK);
        corrupt += why == XFER_CORRUPT;
    }
    assert_true(corrupt >= 8);
    for (uint64_t at = 0; at < 260; at += 13) /* handshake and control frames */
        assert_int_not_equal(through_relay(at), XFER_OK);
}

/* The worker closes the connection of who sends this. */
static bool closes_on(const void *bytes, size_t n, int ms)
{
    int fd = dial(xfer_port(p.x));
    struct pollfd f = {fd, POLLIN, 0};
    char b[4096];
    (void)!send(fd, bytes, n, MSG_NOSIGNAL);
    bool closed = false;
    while (!closed && poll(&f, 1, ms) > 0)
        closed = read(fd, b, sizeof b) <= 0;
    close(fd);
    return closed;
}

static void garbage_on_the_port_closes_the_connection(void **state)
{
    (void)state;
    both();
    char noise[8192];
    struct rng r = {1};
    for (int i = 0; i < 20; i++) {
        for (size_t k = 0; k < sizeof noise; k += 8) {
            uint64_t w = rng_next(&r);
            memcpy(noise + k, &w, 8);
        }
        assert_true(closes_on(noise, sizeof noise, 500));
    }
    assert_true(closes_on("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 27, 500));
    neither();
}

static void messages_before_the_proof_close_the_connection(void **state)
{
    (void)state;
    both();
    struct buf b;
    buf_init(&b, 1 << 16);
    struct control_msg m = {.type = CONTROL_ORDER,
                            .from = 1,
                            .to = p.incarnation,
                            .session = 1,
                            .id = 2,
                            .payload = "x",
                            .payload_bytes = 1};
    assert_int_equal(control_msg_encode(&m, &b), 0);
    assert_true(closes_on(b.data, b.n, 500));
    /* and the length of one is not even waited for */
    assert_true(closes_on(b.data, 16, 500));
    buf_reset(&b);
    uint8_t hello[CONTROL_HELLO_BYTES], zero[CONTROL_MAC_BYTES] = {0};
    struct control_hello h = {.version = CONTROL_VERSION,
                              .purpose = 1,
                              .from = 1,
                              .to = p.incarnation,
                              .session = 1,
                              .layout = 7,
                              .block_bytes = PAIR_LAYERS * PAIR_PIECE,
                              .piece_bytes = PAIR_PIECE,
                              .n_blocks = PAIR_BLOCKS,
                              .n_layers = PAIR_LAYERS};
    control_hello_encode(&h, hello);
    assert_int_equal(control_frame_encode(CONTROL_HELLO, hello, sizeof hello, &b), 0);
    assert_int_equal(control_frame_encode(CONTROL_PROOF, zero, sizeof zero, &b), 0);
    assert_true(closes_on(b.data, b.n, 500));
    buf_fini(&b);
    struct xfer_event e;
    assert_int_equal(xfer_poll(p.x, &e), 0);
    neither();
}

static void strangers_who_say_nothing_are_hung_up_on_and_do_not_block_friends(void **state)
{
    (void)state;
    both();
    int fd[80];
    char name[128];
    for (int i = 0; i < 80; i++)
        fd[i] = dial(xfer_port(p.x));
    usleep(1300 * 1000); /* longer than the lease */
    pair_name(&p, HOST, name);
    struct pair_slot *s = pair_order(&d, name, (struct pair_order){1, 4, UINT32_MAX});
    assert_true(pair_run(&d, &p, 1, 2000));
    assert_true(s->done);
    for (int i = 0; i < 80; i++) {
        char c;
        ssize_t n = recv(fd[i], &c, 1, MSG_DONTWAIT);
        assert_true(n == 0 || (n < 0 && errno == ECONNRESET));
        close(fd[i]);
    }
    neither();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flipped_bit_fails_the_transfer_and_never_passes_for_kv),
        cmocka_unit_test(garbage_on_the_port_closes_the_connection),
        cmocka_unit_test(messages_before_the_proof_close_the_connection),
        cmocka_unit_test(strangers_who_say_nothing_are_hung_up_on_and_do_not_block_friends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
