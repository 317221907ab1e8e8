/* events.h: heartbeats to every router that listens (lib/wire/heartbeat.h): on a tick, and at once
 * on a change. Keeps a mirror of the cached block names, so that a router that connects gets all of
 * them first. One thread, the loop's. */
#pragma once
#include "lib/io/httpd.h"
#include "worker/engine.h"

struct events;

struct events_state { /* the fixed part of a heartbeat */
    uint64_t incarnation;
    enum wire_role role;
    bool ready, draining, warmup;
    uint16_t xfer_port;
    struct wire_load load;
};

struct events *events_new(void);
void events_free(struct events *v); /* after the server has stopped */
void events_names(struct events *v, const struct kv_event *e, size_t n);
/* Answers a request for the stream; it stays subscribed until it closes. */
void events_subscribe(struct events *v, struct httpd_req *req, const struct events_state *now);
void events_beat(struct events *v, const struct events_state *now);
void events_end(struct events *v); /* ends all streams properly */
uint32_t events_count(const struct events *v);
