/* fleet_int.h: what fleet.c and fleet_events.c share. */
#pragma once
#include "router/fleet.h"

struct fleet {
    struct fleet_config c;
    struct deployment *first;
};

void worker_update_state(struct worker *w); /* route_worker from the last heartbeat and the pod */
