/* api.h: the worker's HTTP side (docs/contracts.md): generate streams, heartbeats, cancel, health,
 * metrics, state. Runs in the loop's thread; talks to the engine by its queues only. */
#pragma once
#include "lib/io/httpd.h"
#include "worker/engine.h"
#include "worker/launcher.h"

struct api;

struct api_config {
    uv_loop_t *loop;
    const char *host, *secret, *name, *model_name;
    const char *model_path; /* the model's file or folder, for routers; NULL: not offered */
    uint16_t port;
    uint64_t incarnation;
    uint32_t max_queue;
    struct model_kv kv;
    const struct model_config *model;
    struct launcher *launcher;  /* or NULL: who is told of changes */
    void (*drained)(void *ctx); /* everything has ended and was handed out */
    void (*restart)(void *ctx); /* once: a rank is masked, and it is time to be whole again */
    void *ctx;
};

int api_start(const struct api_config *c, struct api **out, struct err *e) MUST_CHECK;
void api_serve(struct api *a, struct engine *g, enum wire_role role); /* from now on ready */
void api_stop(struct api *a); /* closes everything; then the loop must run until it is empty */
void api_free(struct api *a);
uint16_t api_port(const struct api *a);
void api_notify(void *api); /* any thread: the engine has output */
void api_set_role(struct api *a, enum wire_role role);
void api_set_sleep(struct api *a, bool wanted); /* the rung of a standby worker */
void api_drain(struct api *a, uint64_t deadline_ns);
