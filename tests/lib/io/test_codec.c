#include "lib/base/rng.h"
#include "lib/io/codec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct got {
    int status, end; /* CODEC_DONE or negative */
    bool keep_alive;
    char body[8192];
    size_t n;
    char type[64];
};

static void run(struct str in, size_t step, bool eof, struct got *g)
{
    struct codec c;
    memset(g, 0, sizeof *g);
    codec_init(&c);
    for (size_t at = 0; at < in.n && !g->end; at += step) {
        struct str data = {in.p + at, in.n - at < step ? in.n - at : step}, piece;
        int ev;
        while ((ev = codec_feed(&c, &data, &piece, NULL)) != CODEC_MORE) {
            if (ev == CODEC_HEADERS) {
                g->status = c.status;
                struct str type = codec_header(&c, "Content-Type");
                snprintf(g->type, sizeof g->type, STR_FMT, STR_ARG(type));
            } else if (ev == CODEC_DATA) {
                assert_true(g->n + piece.n <= sizeof g->body);
                memcpy(g->body + g->n, piece.p, piece.n);
                g->n += piece.n;
            } else {
                g->end = ev;
                break;
            }
        }
    }
    if (!g->end && eof)
        g->end = codec_eof(&c);
    g->keep_alive = c.keep_alive;
    codec_fini(&c);
}

static void expect(const char *text, int status, const char *body, bool keep_alive)
{
    for (size_t step = 1; step < 80; step++) {
        struct got g;
        run(str_c(text), step, true, &g);
        assert_int_equal(g.end, CODEC_DONE);
        assert_int_equal(g.status, status);
        assert_int_equal(g.n, strlen(body));
        assert_memory_equal(g.body, body, g.n);
        assert_int_equal(g.keep_alive, keep_alive);
    }
}

static void a_counted_body_is_read_however_it_is_cut(void **s)
{
    (void)s;
    expect("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, "hello", true);
    expect("HTTP/1.1 200\r\ncontent-length:0\r\n\r\n", 200, "", true);
    expect("HTTP/1.1 503 Busy\r\nConnection: keep-alive, Close\r\nContent-Length: 2\r\n\r\nno", 503,
           "no", false);
}

static void a_chunked_body_is_read_however_it_is_cut(void **s)
{
    (void)s;
    expect(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA;x=y\r\n0123456789\r\n"
        "0\r\nTrailer: 1\r\n\r\n",
        200, "hello0123456789", true);
}

static void a_body_without_length_ends_with_the_connection(void **s)
{
    (void)s;
    expect("HTTP/1.1 200 OK\r\n\r\nuntil the end", 200, "until the end", false);
    expect("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, "ok", false);
}

static void interim_answers_are_skipped_and_204_has_no_body(void **s)
{
    (void)s;
    expect("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", 204, "", true);
}

static void a_cut_answer_is_an_error(void **s)
{
    (void)s;
    static const char *const cut[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        "HTTP/1.1 200 OK\r\nConte",
    };
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
        struct got g;
        run(str_c(cut[i]), 7, true, &g);
        assert_true(g.end < 0);
    }
}

static void malformed_and_ambiguous_answers_are_refused(void **s)
{
    (void)s;
    static const char *const bad[] = {
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 2x0 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "\r\nHTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 101 Switching\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (size_t step = 1; step < 40; step += 6) {
            struct got g;
            run(str_c(bad[i]), step, false, &g);
            if (g.end >= 0)
                print_message("case %zu: %s\n", i, bad[i]);
            assert_true(g.end < 0);
        }
}

static void a_head_is_bounded(void **s)
{
    (void)s;
    char *big = malloc(CODEC_MAX_HEAD + 1000);
    strcpy(big, "HTTP/1.1 200 OK\r\nX: ");
    memset(big + strlen(big), 'a', CODEC_MAX_HEAD);
    struct got g;
    run((struct str){big, CODEC_MAX_HEAD + 20}, 1000, false, &g);
    assert_true(g.end < 0);
    free(big);
}

static void headers_are_found_without_regard_to_case(void **s)
{
    (void)s;
    struct got g;
    run(STR("HTTP/1.1 200 OK\r\ncontent-TYPE: \t text/plain \r\nContent-Length: 0\r\n\r\n"), 9,
        true, &g);
    assert_string_equal(g.type, "text/plain");
}

static void a_connection_serves_several_answers(void **s)
{
    (void)s;
    struct codec c;
    codec_init(&c);
    for (int i = 0; i < 3; i++) {
        struct str data = STR("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"), piece;
        assert_int_equal(codec_feed(&c, &data, &piece, NULL), CODEC_HEADERS);
        assert_int_equal(codec_feed(&c, &data, &piece, NULL), CODEC_DATA);
        assert_int_equal(codec_feed(&c, &data, &piece, NULL), CODEC_DONE);
        assert_int_equal(data.n, 0);
        codec_reset(&c);
    }
    codec_fini(&c);
}

/* Random bytes, and valid answers with random bytes changed: never a crash, never more body than
 * bytes fed. */
static void noise_never_breaks_it(void **s)
{
    (void)s;
    struct rng r = {20261130};
    static const char valid[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Y: z\r\n\r\n"
                                "5\r\nhello\r\nA\r\n0123456789\r\n0\r\n\r\n";
    for (int i = 0; i < 20000; i++) {
        char b[sizeof valid];
        memcpy(b, valid, sizeof b);
        for (uint64_t k = rng_below(&r, 4) + 1; k; k--)
            b[rng_below(&r, sizeof b - 1)] = (char)rng_next(&r);
        struct got g;
        run((struct str){b, sizeof b - 1}, rng_below(&r, 30) + 1, true, &g);
        assert_true(g.n < sizeof b);
    }
}

static void a_request_head_is_what_rfc_9112_says(void **s)
{
    (void)s;
    struct buf b;
    buf_init(&b, 4096);
    assert_int_equal(
        codec_write_head(&b, "POST", "/x", "10.0.0.1:80", "s3cret", "a: b\r\n", "text/plain", 12),
        0);
    assert_string_equal(b.data,
                        "POST /x HTTP/1.1\r\nHost: 10.0.0.1:80\r\nAuthorization: Bearer s3cret\r\n"
                        "a: b\r\nContent-Type: text/plain\r\nContent-Length: 12\r\n\r\n");
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_counted_body_is_read_however_it_is_cut),
        cmocka_unit_test(a_chunked_body_is_read_however_it_is_cut),
        cmocka_unit_test(a_body_without_length_ends_with_the_connection),
        cmocka_unit_test(interim_answers_are_skipped_and_204_has_no_body),
        cmocka_unit_test(a_cut_answer_is_an_error),
        cmocka_unit_test(malformed_and_ambiguous_answers_are_refused),
        cmocka_unit_test(a_head_is_bounded),
        cmocka_unit_test(headers_are_found_without_regard_to_case),
        cmocka_unit_test(a_connection_serves_several_answers),
        cmocka_unit_test(noise_never_breaks_it),
        cmocka_unit_test(a_request_head_is_what_rfc_9112_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
