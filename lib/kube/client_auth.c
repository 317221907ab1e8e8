/* Credentials that rotate: tokens and certificates in files are read again once a minute, and at
 * once when the server or TLS refuses them. What can't be read, or is empty, stays as it was. */
#include "lib/base/clock.h"
#include "lib/base/file.h"
#include "lib/base/log.h"
#include "lib/kube/client_int.h"

#include <stdlib.h>

#define REREAD_NS (60 * NS_PER_S)
#define FILE_MAX  (1u << 20)

struct old_pem {
    struct old_pem *next;
    char *pem;
};

static bool same(const char *a, const char *b)
{
    return a && b && strcmp(a, b) == 0;
}

static bool reread_token(struct kube_client *c)
{
    if (!c->config.token_file)
        return false;
    CLEANUP(free_charp) char *text = file_read(c->config.token_file, FILE_MAX, NULL);
    struct str t = text ? str_trim(str_c(text)) : (struct str){0};
    char *now = t.n ? str_dup(t) : NULL;
    if (!now || same(now, c->token)) {
        free(now);
        return false;
    }
    bool changed = c->token != NULL;
    free(c->token);
    c->token = now;
    return changed;
}

/* The old text is kept until the client goes: requests under way point to it. */
static bool reread_pem(struct kube_client *c, const char *file, char **slot)
{
    char *now = file ? file_read(file, FILE_MAX, NULL) : NULL;
    if (!now || !*now || same(now, *slot)) {
        free(now);
        return false;
    }
    struct old_pem *old = xcalloc(1, sizeof *old);
    *old = (struct old_pem){c->old_pem, *slot};
    c->old_pem = old;
    *slot = now;
    log_info("credentials for the API server were read again", LS("file", file));
    return true;
}

static bool reread(struct kube_client *c)
{
    struct kube_config *k = &c->config;
    c->read_ns = clock_mono_ns();
    bool token = reread_token(c), ca = reread_pem(c, k->ca_file, &k->ca_pem),
         cert = reread_pem(c, k->cert_file, &k->cert_pem),
         key = reread_pem(c, k->key_file, &k->key_pem);
    if ((ca || cert || key) && c->http)
        http_client_tls(c->http, k->ca_pem, k->cert_pem, k->key_pem);
    return token || ca || cert || key;
}

bool kube_credentials_changed(struct kube_client *c)
{
    return reread(c);
}

void kube_headers_init(struct kube_headers *h, struct kube_client *c, const char *content_type)
{
    size_t n = 0;
    if (!c->read_ns || clock_mono_ns() - c->read_ns >= REREAD_NS)
        reread(c);
    const char *t = c->token ? c->token : c->config.token;
    *h = (struct kube_headers){0};
    h->list[n++] = "Accept: application/json";
    if (t) {
        h->auth = xasprintf("Authorization: Bearer %s", t);
        h->list[n++] = h->auth;
    }
    if (content_type) {
        h->type = xasprintf("Content-Type: %s", content_type);
        h->list[n++] = h->type;
    }
}

void kube_headers_fini(struct kube_headers *h)
{
    free(h->auth);
    free(h->type);
}

void kube_auth_fini(struct kube_client *c)
{
    for (struct old_pem *o = c->old_pem, *next; o; o = next) {
        next = o->next;
        free(o->pem);
        free(o);
    }
    free(c->token);
}
