/* Which other nodes have a model: one list of NodeInventories a try, rather than a watch of all of
 * them by every node. */
#include "agent/models_int.h"

#include "lib/decide/guard.h"

#include <stdio.h>
#include <stdlib.h>

void peers_forget(struct model_fetch *f)
{
    for (size_t i = 0; i < f->n_peers; i++) {
        free(f->peer_urls[i]);
        free(f->peer_names[i]);
    }
    f->n_peers = 0;
    f->peers_known = false;
}

/* The digest under which a node offers the model on its disk; NULL: it does not. */
static const char *offered(const struct model_fetch *f, const json_t *inventory)
{
    size_t i;
    json_t *x;
    json_array_foreach (json_at(inventory, "status.models"), i, x) {
        const char *sha = json_str_at(x, "sha256", ""), *source = json_str_at(x, "source", "");
        bool right =
            *f->peers_sha256 ? strcmp(sha, f->peers_sha256) == 0 : strcmp(source, f->source) == 0;
        if (right && sha_is_hex(sha) && strcmp(json_str_at(x, "rung", ""), "nvme") == 0)
            return sha;
    }
    return NULL;
}

/* Without a pin the first that has the source decides which bytes those are. */
static void add(struct model_fetch *f, const json_t *inventory)
{
    const char *name = json_str_at(inventory, "metadata.name", "");
    const char *address = json_str_at(inventory, "status.address", "");
    const char *sha = offered(f, inventory);
    if (!sha || !*address || strcmp(name, f->m->a->opt.node_name) == 0)
        return;
    memcpy(f->peers_sha256, sha, SHA_HEX);
    f->peer_urls[f->n_peers] = xasprintf("http://%s", address);
    f->peer_names[f->n_peers++] = xstrdup(name);
}

static void listed(const struct kube_result *r, void *ctx)
{
    struct model_fetch *f = ctx;
    const json_t *items = json_object_get(r->object, "items");
    size_t n = json_array_size(items), first = n ? clock_mono_ns() / NS_PER_MS % n : 0;
    f->peers_asked = false;
    peers_forget(f);
    if (r->err.code)
        log_warn("other nodes' inventories can't be read; the source is asked", LERR(&r->err));
    /* from a random place on: nodes that fetch together don't all ask the same peers */
    for (size_t i = 0; i < n && f->n_peers < FETCH_PEERS_MAX && GUARD(fetch_from_peers); i++)
        add(f, json_array_get(items, (first + i) % n));
    f->peers_known = true;
    models_look(f->m);
}

void peers_ask(struct model_fetch *f)
{
    struct err e;
    struct kube_call call = {.verb = KUBE_LIST, .kind = &kube_ninvs, .done = listed, .ctx = f};
    if (f->peers_asked)
        return;
    snprintf(f->peers_sha256, sizeof f->peers_sha256, "%s", f->sha256);
    f->peers_asked = kube_start(f->m->a->api, &call, &e) == 0;
    if (!f->peers_asked) {
        log_warn("other nodes' inventories can't be asked for", LERR(&e));
        f->peers_known = true;
    }
}
