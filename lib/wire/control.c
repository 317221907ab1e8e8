#include "lib/wire/control.h"

#include "lib/wire/crc32c.h"
#include "lib/wire/le.h"

#include <errno.h>

static bool known(uint8_t t)
{
    return (t >= CONTROL_HELLO && t <= CONTROL_PIECE) ||
           (t >= CONTROL_ORDER && t <= CONTROL_CLOSE) ||
           (t >= CONTROL_ACCEPT && t <= CONTROL_FAILED) || t == CONTROL_HEARTBEAT;
}

static uint32_t body_max(uint8_t t)
{
    switch (t) {
    case CONTROL_HELLO: return CONTROL_HELLO_BYTES;
    case CONTROL_CHALLENGE: return CONTROL_NONCE_BYTES + CONTROL_MAC_BYTES;
    case CONTROL_PROOF: return CONTROL_MAC_BYTES;
    case CONTROL_WELCOME: return CONTROL_WELCOME_MAX;
    case CONTROL_REFUSED: return 12;
    case CONTROL_PIECE: return CONTROL_PIECE_BYTES;
    default: return CONTROL_BODY_MAX;
    }
}

static uint32_t frame_crc(const uint8_t *header, const void *body, uint32_t n)
{
    return crc32c(crc32c(0, header, 12), body, n);
}

int64_t control_frame_decode(const void *data, size_t n, struct control_frame *out, size_t *need)
{
    const uint8_t *p = data;
    if (n >= 4 && le_get32(p) != CONTROL_MAGIC)
        return -EINVAL;
    if (n < CONTROL_HEADER_BYTES) {
        *need = CONTROL_HEADER_BYTES;
        return 0;
    }
    uint32_t body = le_get32(p + 8);
    if (!known(p[4]) || p[5] || p[6] || p[7] || body > body_max(p[4]))
        return -EINVAL;
    size_t total = CONTROL_HEADER_BYTES + (size_t)body;
    if (n < total) {
        *need = total;
        return 0;
    }
    if (frame_crc(p, p + CONTROL_HEADER_BYTES, body) != le_get32(p + 12))
        return -EINVAL;
    *out = (struct control_frame){(enum control_type)p[4], p + CONTROL_HEADER_BYTES, body};
    return (int64_t)total;
}

void control_frame_header(uint8_t out[CONTROL_HEADER_BYTES], enum control_type type,
                          const void *body, uint32_t n)
{
    le_put32(out, CONTROL_MAGIC);
    le_put32(out + 4, (uint32_t)type);
    le_put32(out + 8, n);
    le_put32(out + 12, frame_crc(out, body, n));
}

int control_frame_encode(enum control_type type, const void *body, uint32_t n, struct buf *out)
{
    uint8_t header[CONTROL_HEADER_BYTES];
    int rc = buf_reserve(out, CONTROL_HEADER_BYTES + (size_t)n);
    if (rc)
        return rc;
    control_frame_header(header, type, body, n);
    rc = buf_append(out, header, sizeof header);
    return rc ? rc : buf_append(out, body, n);
}

int control_msg_encode(const struct control_msg *m, struct buf *out)
{
    if (m->n_list > CONTROL_LIST_MAX || m->payload_bytes > CONTROL_PAYLOAD_MAX)
        return -EMSGSIZE;
    uint8_t b[CONTROL_HEADER_BYTES + CONTROL_MSG_BYTES], *p = b + CONTROL_HEADER_BYTES;
    le_put64(p, m->from);
    le_put64(p + 8, m->to);
    le_put64(p + 16, m->session);
    le_put64(p + 24, m->id);
    le_put64(p + 32, m->p_id);
    le_put64(p + 40, m->bytes);
    le_put32(p + 48, m->reason);
    le_put32(p + 52, m->n);
    le_put32(p + 56, m->n_list);
    le_put32(p + 60, m->payload_bytes);
    size_t list = 4 * (size_t)m->n_list;
    uint32_t body = (uint32_t)(CONTROL_MSG_BYTES + list + m->payload_bytes);
    le_put32(b, CONTROL_MAGIC);
    le_put32(b + 4, (uint32_t)m->type);
    le_put32(b + 8, body);
    uint32_t crc = crc32c(crc32c(0, b, 12), p, CONTROL_MSG_BYTES);
    crc = crc32c(crc, m->list, list);
    le_put32(b + 12, crc32c(crc, m->payload, m->payload_bytes));
    int rc = buf_reserve(out, sizeof b + list + m->payload_bytes);
    if (rc)
        return rc;
    rc = buf_append(out, b, sizeof b);
    if (!rc && list)
        rc = buf_append(out, m->list, list);
    if (!rc && m->payload_bytes)
        rc = buf_append(out, m->payload, m->payload_bytes);
    return rc;
}

int control_msg_decode(const struct control_frame *f, struct control_msg *m)
{
    if (f->type < CONTROL_ORDER)
        return -EINVAL;
    struct le_reader r = le_reader(f->body, f->n);
    struct control_msg v = {.type = f->type};
    v.from = le_u64(&r);
    v.to = le_u64(&r);
    v.session = le_u64(&r);
    v.id = le_u64(&r);
    v.p_id = le_u64(&r);
    v.bytes = le_u64(&r);
    v.reason = le_u32(&r);
    v.n = le_u32(&r);
    v.n_list = le_u32(&r);
    v.payload_bytes = le_u32(&r);
    if (r.failed || v.n_list > CONTROL_LIST_MAX || v.payload_bytes > CONTROL_PAYLOAD_MAX)
        return -EINVAL;
    v.list = le_take(&r, 4 * (size_t)v.n_list);
    v.payload = le_take(&r, v.payload_bytes);
    if (r.failed || r.p != r.end)
        return -EINVAL;
    if (v.type == CONTROL_HEARTBEAT && v.payload_bytes != 16 * (uint64_t)v.n)
        return -EINVAL;
    *m = v;
    return 0;
}

uint32_t control_msg_item(const struct control_msg *m, uint32_t i)
{
    ASSERT(i < m->n_list);
    return le_get32((const uint8_t *)m->list + 4 * (size_t)i);
}

void control_hello_encode(const struct control_hello *h, uint8_t out[CONTROL_HELLO_BYTES])
{
    le_put32(out, h->version);
    le_put32(out + 4, h->purpose);
    le_put64(out + 8, h->from);
    le_put64(out + 16, h->to);
    le_put64(out + 24, h->session);
    le_put64(out + 32, h->layout);
    le_put64(out + 40, h->block_bytes);
    le_put64(out + 48, h->piece_bytes);
    le_put32(out + 56, h->n_blocks);
    le_put32(out + 60, h->n_layers);
    memset(out + 64, 0, 8);
    memcpy(out + 72, h->nonce, CONTROL_NONCE_BYTES);
}

int control_hello_decode(const struct control_frame *f, struct control_hello *h)
{
    if (f->type != CONTROL_HELLO || f->n != CONTROL_HELLO_BYTES)
        return -EINVAL;
    struct le_reader r = le_reader(f->body, f->n);
    h->version = le_u32(&r);
    h->purpose = le_u32(&r);
    h->from = le_u64(&r);
    h->to = le_u64(&r);
    h->session = le_u64(&r);
    h->layout = le_u64(&r);
    h->block_bytes = le_u64(&r);
    h->piece_bytes = le_u64(&r);
    h->n_blocks = le_u32(&r);
    h->n_layers = le_u32(&r);
    (void)le_u64(&r);
    memcpy(h->nonce, f->body + 72, CONTROL_NONCE_BYTES);
    return h->version == CONTROL_VERSION ? 0 : -EINVAL;
}

void control_piece_encode(const struct control_piece *p,
                          uint8_t out[CONTROL_HEADER_BYTES + CONTROL_PIECE_BYTES])
{
    uint8_t *b = out + CONTROL_HEADER_BYTES;
    le_put64(b, p->id);
    le_put64(b + 8, p->p_id);
    le_put32(b + 16, p->dst_index);
    le_put32(b + 20, p->layer);
    le_put32(b + 24, p->bytes);
    le_put32(b + 28, p->crc);
    control_frame_header(out, CONTROL_PIECE, b, CONTROL_PIECE_BYTES);
}

int control_piece_decode(const struct control_frame *f, struct control_piece *p)
{
    if (f->type != CONTROL_PIECE || f->n != CONTROL_PIECE_BYTES)
        return -EINVAL;
    p->id = le_get64(f->body);
    p->p_id = le_get64(f->body + 8);
    p->dst_index = le_get32(f->body + 16);
    p->layer = le_get32(f->body + 20);
    p->bytes = le_get32(f->body + 24);
    p->crc = le_get32(f->body + 28);
    return 0;
}
