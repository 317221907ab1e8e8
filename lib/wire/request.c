#include "lib/wire/request.h"

#include "lib/wire/le.h"

#include <errno.h>
#include <math.h>

#define HEADER_BYTES 188

static void put_peer(unsigned char *p, const struct wire_peer *peer)
{
    memcpy(p, peer->host, WIRE_HOST_MAX);
    le_put64(p + 64, peer->incarnation);
    le_put16(p + 72, peer->port);
    le_put16(p + 74, 0);
}

int wire_request_encode(const struct wire_request *r, struct buf *out)
{
    unsigned char h[HEADER_BYTES] = {0};
    const float f[6] = {
        r->temperature,      r->top_p, r->min_p, r->repetition_penalty, r->presence_penalty,
        r->frequency_penalty};
    le_put32(h, WIRE_REQUEST_MAGIC);
    le_put32(h + 4, WIRE_REQUEST_VERSION);
    le_put64(h + 8, r->id[0]);
    le_put64(h + 16, r->id[1]);
    le_put64(h + 24, r->seed);
    le_put32(h + 32, r->flags);
    memcpy(h + 36, f, sizeof f);
    const uint32_t u[] = {
        r->top_k,    r->max_tokens,  r->min_tokens, r->deadline_ms, (uint32_t)r->n_top << 16 | r->n,
        r->n_prompt, r->n_generated, r->n_stop_ids, r->n_bias,      r->n_blocks};
    memcpy(h + 60, u, sizeof u);
    put_peer(h + 100, &r->prefill);
    size_t n_tokens = (size_t)r->n_prompt + r->n_generated;
    size_t start = out->n;
    int rc = buf_append(out, h, sizeof h);
    rc = rc ? rc : buf_append(out, r->tokens, 4 * n_tokens);
    rc = rc ? rc : buf_append(out, r->stop_ids, (size_t)4 * r->n_stop_ids);
    rc = rc ? rc : buf_append(out, r->bias, sizeof *r->bias * r->n_bias);
    rc = rc ? rc : buf_append(out, r->blocks, sizeof *r->blocks * r->n_blocks);
    if (rc)
        out->n = start;
    return rc;
}

static int check_counts(const struct wire_request *r, struct err *e)
{
    if (r->n_prompt == 0 || r->n_prompt > WIRE_MAX_TOKENS || r->n_generated > WIRE_MAX_TOKENS)
        return err_set(e, EINVAL, "request: %u prompt and %u generated tokens", r->n_prompt,
                       r->n_generated);
    if (r->n == 0 || r->n > WIRE_MAX_CHOICES || r->n_top > WIRE_MAX_TOP)
        return err_set(e, EINVAL, "request: n %u, n_top %u", r->n, r->n_top);
    if (r->n_generated && r->n != 1)
        return err_set(e, EINVAL, "request: only a request with n = 1 can be replayed");
    if (r->n_stop_ids > WIRE_MAX_STOP_IDS || r->n_bias > WIRE_MAX_BIAS || r->n_blocks > r->n_prompt)
        return err_set(e, EINVAL, "request: %u stop ids, %u biases, %u block names", r->n_stop_ids,
                       r->n_bias, r->n_blocks);
    return 0;
}

static int check_floats(const struct wire_request *r, struct err *e)
{
    if (!(r->temperature >= 0 && r->temperature <= 100) || !(r->top_p > 0 && r->top_p <= 1) ||
        !(r->min_p >= 0 && r->min_p <= 1) ||
        !(r->repetition_penalty > 0 && r->repetition_penalty <= 100) ||
        !(fabsf(r->presence_penalty) <= 100) || !(fabsf(r->frequency_penalty) <= 100))
        return err_set(e, EINVAL, "request: a sampling parameter is out of bounds");
    for (uint32_t i = 0; i < r->n_bias; i++)
        if (!(fabsf(r->bias[i].bias) <= 1e4f))
            return err_set(e, EINVAL, "request: logit bias out of bounds");
    return 0;
}

static void take_header(struct le_reader *in, struct wire_request *r)
{
    r->id[0] = le_u64(in);
    r->id[1] = le_u64(in);
    r->seed = le_u64(in);
    r->flags = le_u32(in);
    r->temperature = le_f32(in);
    r->top_p = le_f32(in);
    r->min_p = le_f32(in);
    r->repetition_penalty = le_f32(in);
    r->presence_penalty = le_f32(in);
    r->frequency_penalty = le_f32(in);
    r->top_k = le_u32(in);
    r->max_tokens = le_u32(in);
    r->min_tokens = le_u32(in);
    r->deadline_ms = le_u32(in);
    uint32_t n = le_u32(in);
    r->n = (uint16_t)n;
    r->n_top = (uint16_t)(n >> 16);
    r->n_prompt = le_u32(in);
    r->n_generated = le_u32(in);
    r->n_stop_ids = le_u32(in);
    r->n_bias = le_u32(in);
    r->n_blocks = le_u32(in);
    const void *host = le_take(in, WIRE_HOST_MAX);
    if (host)
        memcpy(r->prefill.host, host, WIRE_HOST_MAX);
    r->prefill.host[WIRE_HOST_MAX - 1] = 0;
    r->prefill.incarnation = le_u64(in);
    r->prefill.port = le_u16(in);
    le_u16(in);
    le_take(in, HEADER_BYTES - 176);
}

int wire_request_decode(struct str body, struct wire_request *out, struct err *e)
{
    struct wire_request r = {0};
    if ((uintptr_t)body.p % 4)
        return err_set(e, EINVAL, "request: the body must be 4-byte aligned");
    struct le_reader in = le_reader(body.p, body.n);
    if (le_u32(&in) != WIRE_REQUEST_MAGIC)
        return err_set(e, EINVAL, "request: not a Baton request (magic)");
    uint32_t version = le_u32(&in);
    if (version != WIRE_REQUEST_VERSION)
        return err_set(e, EINVAL, "request: version %u, this worker speaks %u", version,
                       WIRE_REQUEST_VERSION);
    take_header(&in, &r);
    int rc = in.failed ? err_set(e, EINVAL, "request: truncated header") : check_counts(&r, e);
    if (rc)
        return rc;
    r.tokens = le_take(&in, 4 * ((size_t)r.n_prompt + r.n_generated));
    r.stop_ids = le_take(&in, (size_t)4 * r.n_stop_ids);
    r.bias = le_take(&in, sizeof *r.bias * r.n_bias);
    r.blocks = le_take(&in, sizeof *r.blocks * r.n_blocks);
    if (in.failed || in.p != in.end)
        return err_set(e, EINVAL, "request: %zu bytes do not match its counts", body.n);
    rc = check_floats(&r, e);
    if (!rc)
        *out = r;
    return rc;
}
