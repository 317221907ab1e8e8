/* discovery.h: /api, /apis (aggregated v2 and legacy), /version, /openapi. */
#pragma once
#include "local/server_int.h"

bool discovery_handle(struct call *c, struct str path);
