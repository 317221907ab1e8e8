/* libFuzzer: frames and messages of the control channel. Whatever comes, nothing is read out of
 * bounds, and what decodes encodes back to the same bytes. The first byte chooses whether the
 * frame's checksum is repaired, so that the fields behind it are reached too. */
#include "lib/wire/control.h"
#include "lib/wire/le.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void repair(uint8_t *p, size_t n)
{
    if (n < CONTROL_HEADER_BYTES)
        return;
    le_put32(p, CONTROL_MAGIC);
    memset(p + 5, 0, 3);
    uint32_t body = (uint32_t)(n - CONTROL_HEADER_BYTES);
    control_frame_header(p, (enum control_type)p[4], p + CONTROL_HEADER_BYTES, body);
}

static void back_and_forth(const struct control_msg *m, const uint8_t *bytes, size_t n)
{
    struct buf b;
    buf_init(&b, CONTROL_HEADER_BYTES + CONTROL_BODY_MAX);
    ASSERT(control_msg_encode(m, &b) == 0);
    ASSERT(b.n == n && memcmp(b.data, bytes, n) == 0);
    for (uint32_t i = 0; i < m->n_list; i++)
        (void)control_msg_item(m, i);
    buf_fini(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1)
        return 0;
    uint8_t *p = malloc(n);
    memcpy(p, data + 1, n - 1);
    if (data[0] & 1)
        repair(p, n - 1);
    struct control_frame f;
    struct control_msg m;
    struct control_hello h;
    struct control_piece pc;
    size_t need = 0;
    int64_t used = control_frame_decode(p, n - 1, &f, &need);
    ASSERT(used <= (int64_t)n - 1 && (used != 0 || need > n - 1));
    if (used > 0) {
        if (control_msg_decode(&f, &m) == 0)
            back_and_forth(&m, p, (size_t)used);
        (void)!control_hello_decode(&f, &h);
        (void)!control_piece_decode(&f, &pc);
    }
    free(p);
    return 0;
}
