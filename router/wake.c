/* The push that wakes a model at zero. Of several controllers only the leader can act, and the
 * Service picks one at random: until one says 202, ask again on a fresh connection. */
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/io/http.h"
#include "lib/json/json.h"
#include "router/router.h"

#include <stdio.h>
#include <stdlib.h>

#define AGAIN_NS (250 * NS_PER_MS) /* not heard yet */
#define HEARD_NS (5 * NS_PER_S)    /* heard: should it have been forgotten */

int wake_start(struct router *r, struct err *e)
{
    struct http_client_config c = {.loop = &r->loop, .user_agent = "baton-router"};
    return *r->o.controller_url ? http_client_new(&c, &r->wake, e) : 0;
}

static void on_done(const struct http_response *res, void *ctx)
{
    struct deployment *d = ctx;
    uint64_t now = clock_mono_ns();
    bool heard = !res->error && res->status == 202;
    d->waking = false;
    d->wake_again_ns = now + (heard ? HEARD_NS : AGAIN_NS);
    if (heard)
        log_info("the controller wakes the model", LS("model", d->model_name), LS("infd", d->infd));
    else
        log_debug("the controller was not reached", LS("infd", d->infd), LI("status", res->status),
                  LS("why", res->error ? res->error : ""));
    deployment_unref(d);
}

void wake_push(struct router *r, struct deployment *d, uint64_t now)
{
    uint64_t tokens = 0;
    struct err e;
    if (!r->wake || d->waking || now < d->wake_again_ns)
        return;
    unsigned held = held_requests(r, d, &tokens);
    CLEANUP(json_decrefp)
    json_t *o = json_pack("{s:s, s:s, s:I, s:I}", "namespace", d->namespace, "infd", d->infd,
                          "held_requests", (json_int_t)held, "held_tokens", (json_int_t)tokens);
    struct buf body;
    buf_init(&body, 4096);
    CLEANUP(free_charp) char *url = xasprintf("%s/v1/internal/wake", r->o.controller_url);
    CLEANUP(free_charp)
    char *auth = xasprintf("Authorization: Bearer %s", d->secret ? d->secret : "");
    const char *headers[] = {auth, "Content-Type: application/json", NULL};
    if (o && !json_write(o, false, &body)) {
        struct http_request q = {.method = "POST",
                                 .url = url,
                                 .headers = headers,
                                 .body = buf_view(&body),
                                 .max_body_bytes = 65536,
                                 .connect_timeout_ms = 500,
                                 .timeout_ms = 2000,
                                 .fresh_connection = true,
                                 .on_done = on_done,
                                 .ctx = d};
        if (http_start(r->wake, &q, &e)) {
            deployment_ref(d);
            d->waking = true;
        } else {
            d->wake_again_ns = now + HEARD_NS;
            log_warn("--controller-url can't be asked", LS("why", e.msg));
        }
    }
    buf_fini(&body);
}
