#include "agent/secrets.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>

#define ENTRIES_MAX 64
#define VALUE_MAX   4096
#define ABSENT_AGE_NS                                                                              \
    (10 * NS_PER_S) /* one that was not there is looked for again after so long                    \
                     */

struct secret {
    struct secrets *s;
    char *ns, *name, *key;
    char value[VALUE_MAX], why[256];
    bool asking, here;
    uint64_t at_ns; /* of the last answer; 0: none yet */
};

struct secrets {
    struct kube_client *api;
    void (*changed)(void *ctx);
    void *ctx;
    struct secret *entries[ENTRIES_MAX];
    size_t n;
};

struct secrets *secrets_new(struct kube_client *api, void (*changed)(void *ctx), void *ctx)
{
    struct secrets *s = xcalloc(1, sizeof *s);
    s->api = api;
    s->changed = changed;
    s->ctx = ctx;
    return s;
}

static bool decode(const char *b64, char out[VALUE_MAX])
{
    size_t n = strlen(b64);
    char text[VALUE_MAX + 3];
    if (n % 4 || n / 4 * 3 > VALUE_MAX)
        return false;
    int len = EVP_DecodeBlock((unsigned char *)text, (const unsigned char *)b64, (int)n);
    for (size_t pad = 0; len > 0 && n > pad && b64[n - 1 - pad] == '=' && pad < 2; pad++)
        len--;
    if (len < 0 || len >= VALUE_MAX)
        return false;
    struct str v = str_trim((struct str){text, (size_t)len});
    if (memchr(v.p, 0, v.n) || memchr(v.p, '\n', v.n) || memchr(v.p, '\r', v.n))
        return false; /* it goes into a header */
    memcpy(out, v.p, v.n);
    out[v.n] = 0;
    return true;
}

static void answered(const struct kube_result *r, void *ctx)
{
    struct secret *x = ctx;
    const char *b64 = json_string_value(json_object_get(json_at(r->object, "data"), x->key));
    x->asking = false;
    x->at_ns = clock_mono_ns();
    if (r->err.code && r->status != 404 && r->status != 403) {
        log_warn("a Secret could not be read; it is asked for again", LS("name", x->name),
                 LERR(&r->err));
        if (x->here)
            return; /* the old one may still do */
    }
    x->here = !r->err.code && b64 && decode(b64, x->value);
    if (r->err.code)
        snprintf(x->why, sizeof x->why, "the Secret %s/%s can't be read: %.150s", x->ns, x->name,
                 r->err.msg);
    else
        snprintf(x->why, sizeof x->why, "the Secret %s/%s has no usable key %s", x->ns, x->name,
                 x->key);
    x->s->changed(x->s->ctx);
}

static void ask(struct secret *x)
{
    struct err e;
    struct kube_call call = {.verb = KUBE_GET,
                             .kind = &kube_secrets,
                             .namespace = x->ns,
                             .name = x->name,
                             .done = answered,
                             .ctx = x};
    x->asking = kube_start(x->s->api, &call, &e) == 0;
    if (!x->asking)
        log_warn("a Secret can't be asked for", LS("name", x->name), LERR(&e));
}

/* The least recently answered makes room. */
static struct secret *slot(struct secrets *s)
{
    size_t oldest = s->n;
    if (s->n < ENTRIES_MAX)
        return s->entries[s->n++] = xcalloc(1, sizeof **s->entries);
    for (size_t i = 0; i < s->n; i++)
        if (!s->entries[i]->asking &&
            (oldest == s->n || s->entries[i]->at_ns < s->entries[oldest]->at_ns))
            oldest = i;
    if (oldest == s->n)
        return NULL;
    struct secret *x = s->entries[oldest];
    free(x->ns);
    free(x->name);
    free(x->key);
    memset(x, 0, sizeof *x);
    return x;
}

static struct secret *find(struct secrets *s, const char *ns, const char *name, const char *key)
{
    for (size_t i = 0; i < s->n; i++) {
        struct secret *x = s->entries[i];
        if (strcmp(x->ns, ns) == 0 && strcmp(x->name, name) == 0 && strcmp(x->key, key) == 0)
            return x;
    }
    struct secret *x = slot(s);
    if (!x)
        return NULL;
    x->s = s;
    x->ns = xstrdup(ns);
    x->name = xstrdup(name);
    x->key = xstrdup(key);
    return x;
}

void secrets_forget(struct secrets *s, const char *ns, const char *name, const char *key)
{
    struct secret *x = find(s, ns, name, key);
    if (x && !x->asking) {
        x->here = false;
        x->at_ns = 0;
    }
}

enum secret_state secrets_get(struct secrets *s, const char *ns, const char *name, const char *key,
                              uint64_t max_age_ns, const char **value, const char **why)
{
    struct secret *x = find(s, ns, name, key);
    if (!x) {
        *why = "too many Secrets at once";
        return SECRET_ABSENT;
    }
    uint64_t age = clock_mono_ns() - x->at_ns;
    bool old = !x->at_ns || age > (x->here ? max_age_ns : ABSENT_AGE_NS);
    if (old && !x->asking)
        ask(x);
    *value = x->value;
    *why = x->why;
    return x->here ? SECRET_HERE : x->asking ? SECRET_ASKING : SECRET_ABSENT;
}
