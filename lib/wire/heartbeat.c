#include "lib/wire/heartbeat.h"

#include "lib/wire/le.h"

#include <errno.h>

#define FIXED_BYTES 160

static const char *const role_name[] = {"", "prefill", "decode", "unified", "standby"};

const char *wire_role_name(enum wire_role role)
{
    return role <= WIRE_ROLE_STANDBY ? role_name[role] : "";
}

enum wire_role wire_role_parse(const char *name)
{
    for (int i = 1; i <= WIRE_ROLE_STANDBY; i++)
        if (strcmp(name, role_name[i]) == 0)
            return (enum wire_role)i;
    return WIRE_ROLE_NONE;
}

int wire_heartbeat_encode(const struct wire_heartbeat *h, struct buf *out)
{
    if (h->n_added > WIRE_HEARTBEAT_MAX_NAMES || h->n_removed > WIRE_HEARTBEAT_MAX_NAMES)
        return -EMSGSIZE;
    unsigned char b[4 + FIXED_BYTES] = {0}, *p = b + 4;
    const struct wire_load *l = &h->load;
    le_put32(b, FIXED_BYTES + 16 * (h->n_added + h->n_removed));
    le_put32(p, WIRE_HEARTBEAT_MAGIC);
    le_put16(p + 4, WIRE_HEARTBEAT_VERSION);
    p[6] = h->role;
    le_put64(p + 8, h->incarnation);
    le_put64(p + 16, h->seq);
    le_put32(p + 24, h->flags);
    le_put32(p + 28, h->xfer_port);
    const uint32_t u[] = {l->running,        l->waiting,          l->kv_blocks,
                          l->kv_blocks_used, l->kv_blocks_cached, l->block_tokens};
    memcpy(p + 32, u, sizeof u);
    memcpy(p + 56, &l->prefill_tokens_per_s, 4);
    memcpy(p + 60, &l->decode_step_s, 4);
    const uint64_t q[] = {l->waiting_tokens,      l->resident_tokens,        l->prompt_tokens_total,
                          l->cached_tokens_total, l->generated_tokens_total, l->kv_bytes_in_total,
                          l->kv_bytes_out_total,  l->preemptions_total};
    memcpy(p + 64, q, sizeof q);
    le_put32(p + 128, h->n_added);
    le_put32(p + 132, h->n_removed);
    int rc = buf_reserve(out, sizeof b + 16 * ((size_t)h->n_added + h->n_removed));
    rc = rc ? rc : buf_append(out, b, sizeof b);
    rc = rc ? rc : buf_append(out, h->added, (size_t)16 * h->n_added);
    return rc ? rc : buf_append(out, h->removed, (size_t)16 * h->n_removed);
}

static void take_load(struct le_reader *in, struct wire_load *l)
{
    l->running = le_u32(in);
    l->waiting = le_u32(in);
    l->kv_blocks = le_u32(in);
    l->kv_blocks_used = le_u32(in);
    l->kv_blocks_cached = le_u32(in);
    l->block_tokens = le_u32(in);
    l->prefill_tokens_per_s = le_f32(in);
    l->decode_step_s = le_f32(in);
    l->waiting_tokens = le_u64(in);
    l->resident_tokens = le_u64(in);
    l->prompt_tokens_total = le_u64(in);
    l->cached_tokens_total = le_u64(in);
    l->generated_tokens_total = le_u64(in);
    l->kv_bytes_in_total = le_u64(in);
    l->kv_bytes_out_total = le_u64(in);
    l->preemptions_total = le_u64(in);
}

int wire_heartbeat_decode(struct str data, struct wire_heartbeat *out)
{
    if (data.n < 4)
        return 0;
    uint32_t n = le_get32(data.p);
    if (n < FIXED_BYTES || n > WIRE_HEARTBEAT_MAX_BYTES)
        return -EINVAL;
    if (data.n - 4 < n)
        return 0;
    struct le_reader in = le_reader(data.p + 4, n);
    struct wire_heartbeat h = {0};
    uint32_t magic = le_u32(&in);
    uint16_t version = le_u16(&in);
    h.role = le_u8(&in);
    le_u8(&in);
    h.incarnation = le_u64(&in);
    h.seq = le_u64(&in);
    h.flags = le_u32(&in);
    h.xfer_port = (uint16_t)le_u32(&in);
    take_load(&in, &h.load);
    h.n_added = le_u32(&in);
    h.n_removed = le_u32(&in);
    le_take(&in, FIXED_BYTES - 136);
    if (magic != WIRE_HEARTBEAT_MAGIC || version != WIRE_HEARTBEAT_VERSION ||
        h.role > WIRE_ROLE_STANDBY || h.n_added > WIRE_HEARTBEAT_MAX_NAMES ||
        h.n_removed > WIRE_HEARTBEAT_MAX_NAMES)
        return -EINVAL;
    h.added = le_take(&in, (size_t)16 * h.n_added);
    h.removed = le_take(&in, (size_t)16 * h.n_removed);
    if (in.failed || in.p != in.end)
        return -EINVAL;
    *out = h;
    return (int)(4 + n);
}
