#include "lib/wire/record.h"

#include "lib/wire/le.h"

#include <errno.h>

int wire_record_encode(const struct wire_record *r, struct buf *out)
{
    unsigned char h[WIRE_RECORD_BYTES];
    le_put32(h, r->id);
    memcpy(h + 4, &r->logprob, 4);
    le_put16(h + 8, r->choice);
    h[10] = r->kind;
    h[11] = r->finish;
    le_put16(h + 12, r->n_top);
    le_put16(h + 14, r->extra_bytes);
    int rc = buf_reserve(out, sizeof h + 8u * r->n_top + r->extra_bytes);
    rc = rc ? rc : buf_append(out, h, sizeof h);
    rc = rc ? rc : buf_append(out, r->top, 8u * r->n_top);
    return rc ? rc : buf_append(out, r->extra, r->extra_bytes);
}

int wire_record_decode(struct str data, struct wire_record *r)
{
    if (data.n < WIRE_RECORD_BYTES)
        return 0;
    struct le_reader in = le_reader(data.p, data.n);
    struct wire_record x = {.id = le_u32(&in), .logprob = le_f32(&in), .choice = le_u16(&in)};
    x.kind = le_u8(&in);
    x.finish = le_u8(&in);
    x.n_top = le_u16(&in);
    x.extra_bytes = le_u16(&in);
    if (x.kind < WIRE_TOKEN || x.kind > WIRE_PING || x.finish > WIRE_FINISH_ABORT || x.n_top > 64)
        return -EINVAL;
    x.top = le_take(&in, 8u * x.n_top);
    x.extra = le_take(&in, x.extra_bytes);
    if (in.failed)
        return 0;
    *r = x;
    return WIRE_RECORD_BYTES + 8 * x.n_top + x.extra_bytes;
}

struct wire_top wire_record_top(const struct wire_record *r, size_t i)
{
    const unsigned char *p = (const unsigned char *)r->top + 8 * i;
    return (struct wire_top){le_get32(p), le_getf32(p + 4)};
}
