/* rights.h: what the agent asks of the API server. */
#pragma once
#include "lib/kube/access.h"

extern const struct access_right agent_rights[];
