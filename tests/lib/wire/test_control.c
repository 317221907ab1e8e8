#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "lib/base/rng.h"
#include "lib/wire/control.h"
#include "lib/wire/crc32c.h"
#include "lib/wire/le.h"

#include <errno.h>
#include <stdlib.h>

static void crc32c_has_the_values_of_rfc_3720(void **state)
{
    (void)state;
    uint8_t b[32] = {0};
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(crc32c(0, b, 32), 0x8a9136aau);
    memset(b, 0xff, 32);
    assert_int_equal(crc32c(0, b, 32), 0x62a8ab43u);
    for (uint8_t i = 0; i < 32; i++)
        b[i] = i;
    assert_int_equal(crc32c(0, b, 32), 0x46dd794eu);
}

static void the_fast_crc_equals_the_plain_one_at_any_length_start_and_split(void **state)
{
    (void)state;
    struct rng r = {7};
    uint8_t *b = malloc(70000);
    for (size_t i = 0; i < 70000; i++)
        b[i] = (uint8_t)rng_next(&r);
    for (int k = 0; k < 400; k++) {
        size_t at = rng_below(&r, 64), n = rng_below(&r, k % 4 ? 4000 : 69000),
               cut = n ? rng_below(&r, n) : 0;
        uint32_t want = crc32c_portable(0, b + at, n);
        assert_int_equal(crc32c(0, b + at, n), want);
        assert_int_equal(crc32c(crc32c(0, b + at, cut), b + at + cut, n - cut), want);
    }
    free(b);
}

static struct control_msg sample(void)
{
    static const uint32_t list[3] = {5, 6, 7};
    return (struct control_msg){.type = CONTROL_GRANT,
                                .from = 1,
                                .to = 2,
                                .session = 3,
                                .id = 4,
                                .p_id = 5,
                                .bytes = 6,
                                .reason = 7,
                                .n = 8,
                                .list = list,
                                .n_list = 3,
                                .payload = "hello",
                                .payload_bytes = 5};
}

static void a_message_survives_the_wire(void **state)
{
    (void)state;
    struct control_msg m = sample(), back;
    struct control_frame f;
    struct buf b;
    size_t need;
    buf_init(&b, 4096);
    assert_int_equal(control_msg_encode(&m, &b), 0);
    assert_int_equal(control_frame_decode(b.data, b.n, &f, &need), (int64_t)b.n);
    assert_int_equal(control_msg_decode(&f, &back), 0);
    assert_int_equal(back.type, m.type);
    assert_int_equal(back.from, 1);
    assert_int_equal(back.to, 2);
    assert_int_equal(back.session, 3);
    assert_int_equal(back.id, 4);
    assert_int_equal(back.p_id, 5);
    assert_int_equal(back.bytes, 6);
    assert_int_equal(back.reason, 7);
    assert_int_equal(back.n, 8);
    assert_int_equal(control_msg_item(&back, 2), 7);
    assert_int_equal(back.payload_bytes, 5);
    assert_memory_equal(back.payload, "hello", 5);
    buf_fini(&b);
}

static void a_frame_that_is_cut_asks_for_more_and_says_how_much(void **state)
{
    (void)state;
    struct control_msg m = sample();
    struct control_frame f;
    struct buf b;
    buf_init(&b, 4096);
    assert_int_equal(control_msg_encode(&m, &b), 0);
    for (size_t n = 0; n < b.n; n++) {
        size_t need = 0;
        assert_int_equal(control_frame_decode(b.data, n, &f, &need), 0);
        assert_true(need > n && need <= b.n);
    }
    buf_fini(&b);
}

static void no_flipped_bit_goes_unnoticed(void **state)
{
    (void)state;
    struct control_msg m = sample();
    struct control_frame f;
    struct buf b;
    size_t need;
    buf_init(&b, 4096);
    assert_int_equal(control_msg_encode(&m, &b), 0);
    for (size_t bit = 0; bit < 8 * b.n; bit++) {
        b.data[bit / 8] ^= (char)(1 << bit % 8);
        assert_true(control_frame_decode(b.data, b.n, &f, &need) <= 0);
        b.data[bit / 8] ^= (char)(1 << bit % 8);
    }
    buf_fini(&b);
}

/* Lengths that lie, under a checksum that is right. */
static void lengths_are_bounded_before_they_are_used(void **state)
{
    (void)state;
    uint8_t body[CONTROL_MSG_BYTES] = {0}, h[CONTROL_HEADER_BYTES];
    struct control_frame f = {CONTROL_GRANT, body, sizeof body};
    struct control_msg m;
    size_t need;
    assert_int_equal(control_msg_decode(&f, &m), 0);
    static const struct {
        size_t at;
        uint32_t v;
    } lie[] = {{56, 1}, {56, 0xffffffff}, {60, 1}, {60, 0xffffffff}, {56, 0x40000000}};
    for (size_t i = 0; i < sizeof lie / sizeof *lie; i++) {
        memset(body, 0, sizeof body);
        le_put32(body + lie[i].at, lie[i].v);
        assert_int_equal(control_msg_decode(&f, &m), -EINVAL);
    }
    memset(body, 0, sizeof body);
    le_put32(body + 52, 3); /* a heartbeat of three pairs without any */
    f.type = CONTROL_HEARTBEAT;
    assert_int_equal(control_msg_decode(&f, &m), -EINVAL);
    control_frame_header(h, CONTROL_ORDER, body, sizeof body);
    le_put32(h + 8, CONTROL_BODY_MAX + 1);
    assert_int_equal(control_frame_decode(h, sizeof h, &f, &need), -EINVAL);
    control_frame_header(h, CONTROL_PROOF, body, CONTROL_MAC_BYTES);
    le_put32(h + 8, CONTROL_MAC_BYTES + 1); /* a proof has one size */
    assert_int_equal(control_frame_decode(h, sizeof h, &f, &need), -EINVAL);
    struct buf b;
    buf_init(&b, 1 << 20);
    m = sample();
    m.n_list = CONTROL_LIST_MAX + 1;
    assert_int_equal(control_msg_encode(&m, &b), -EMSGSIZE);
    buf_fini(&b);
}

static void hello_and_piece_survive_the_wire(void **state)
{
    (void)state;
    struct control_hello h = {CONTROL_VERSION, 1, 2, 3, 4, 5, 6, 7, 8, 9, {10, 11}}, h2;
    uint8_t hb[CONTROL_HELLO_BYTES], pb[CONTROL_HEADER_BYTES + CONTROL_PIECE_BYTES];
    control_hello_encode(&h, hb);
    struct control_frame f = {CONTROL_HELLO, hb, sizeof hb};
    memset(&h2, 0, sizeof h2);
    assert_int_equal(control_hello_decode(&f, &h2), 0);
    assert_memory_equal(&h, &h2, sizeof h);
    f.n--;
    assert_int_equal(control_hello_decode(&f, &h2), -EINVAL);
    hb[0]++;
    f.n++;
    assert_int_equal(control_hello_decode(&f, &h2), -EINVAL);
    struct control_piece p = {1, 2, 3, 4, 5, 6}, p2;
    size_t need;
    control_piece_encode(&p, pb);
    assert_int_equal(control_frame_decode(pb, sizeof pb, &f, &need), sizeof pb);
    assert_int_equal(control_piece_decode(&f, &p2), 0);
    assert_memory_equal(&p, &p2, sizeof p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc32c_has_the_values_of_rfc_3720),
        cmocka_unit_test(the_fast_crc_equals_the_plain_one_at_any_length_start_and_split),
        cmocka_unit_test(a_message_survives_the_wire),
        cmocka_unit_test(a_frame_that_is_cut_asks_for_more_and_says_how_much),
        cmocka_unit_test(no_flipped_bit_goes_unnoticed),
        cmocka_unit_test(lengths_are_bounded_before_they_are_used),
        cmocka_unit_test(hello_and_piece_survive_the_wire),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
