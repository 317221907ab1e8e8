/* rights.h: what the router asks of the API server. */
#pragma once
#include "lib/kube/access.h"

extern const struct access_right router_rights[];
