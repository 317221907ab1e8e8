/* The incremental detokenizer, and decoding as its whole-sequence case. */
#include "lib/llm/tokenizer_impl.h"
#include "lib/llm/utf8.h"

#include <errno.h>

void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special, bool after_prompt)
{
    *d = (struct detok){.t = t, .skip_special = skip_special, .started = after_prompt};
}

/* One more byte after the ones held; *taken is false when it must be looked at again. */
static int complete_held(struct detok *d, char byte, bool *taken, struct buf *out)
{
    uint32_t cp;
    char *held = (char *)d->held;
    size_t had = d->n_held;
    held[d->n_held++] = byte;
    *taken = true;
    size_t k = utf8_next(held, d->n_held, &cp);
    if (cp == UTF8_BAD && utf8_is_partial(held, d->n_held))
        return 0;
    d->n_held = 0;
    if (cp != UTF8_BAD)
        return buf_append(out, held, k);
    *taken = k > had;
    return buf_cstr(out, UTF8_REPLACEMENT);
}

static int emit(struct detok *d, struct str s, struct buf *out)
{
    int rc = 0;
    while (d->n_held && s.n && !rc) {
        bool taken;
        rc = complete_held(d, s.p[0], &taken, out);
        s.p += taken;
        s.n -= taken;
    }
    while (s.n && !rc) {
        size_t good = 0, k = 0;
        uint32_t cp = 0;
        while (good < s.n && (k = utf8_next(s.p + good, s.n - good, &cp), cp != UTF8_BAD))
            good += k;
        rc = buf_append(out, s.p, good);
        s.p += good;
        s.n -= good;
        if (rc || s.n == 0)
            break;
        if (utf8_is_partial(s.p, s.n)) {
            memcpy(d->held, s.p, s.n);
            d->n_held = (uint8_t)s.n;
            break;
        }
        rc = buf_cstr(out, UTF8_REPLACEMENT);
        s.p += k;
        s.n -= k;
    }
    return rc;
}

int detok_push(struct detok *d, uint32_t id, struct buf *out)
{
    if (d->skip_special && tokenizer_is_special(d->t, id))
        return 0;
    struct str s = tokenizer_bytes(d->t, id);
    if (!d->started && s.n) {
        d->started = true;
        if (d->t->strip_left_space && s.p[0] == ' ' && !tokenizer_is_special(d->t, id)) {
            s.p++;
            s.n--;
        }
    }
    return emit(d, s, out);
}

int detok_flush(struct detok *d, struct buf *out)
{
    int rc = d->n_held ? buf_cstr(out, UTF8_REPLACEMENT) : 0;
    d->n_held = 0;
    return rc;
}

int tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t n, bool skip_special,
                     struct buf *out, struct err *e)
{
    struct detok d;
    size_t before = out->n;
    int rc = 0;
    detok_init(&d, t, skip_special, false);
    for (size_t i = 0; i < n && !rc; i++) {
        if (ids[i] >= tokenizer_vocab(t)) {
            rc = err_set(e, EINVAL, "token id %u is not in the vocabulary of %u tokens", ids[i],
                         tokenizer_vocab(t));
            goto out;
        }
        rc = detok_push(&d, ids[i], out);
    }
    if (!rc)
        rc = detok_flush(&d, out);
    if (rc)
        err_set(e, -rc, "the decoded text is larger than the limit of %zu bytes", out->max);
out:
    if (rc && out->data) {
        out->n = before;
        out->data[before] = 0;
    }
    return rc;
}
