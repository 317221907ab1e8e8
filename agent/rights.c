/* Compared by a test with the agent's ClusterRole and Role in the chart. */
#include "agent/rights.h"

const struct access_right agent_rights[] = {
    {"", "nodes", "get", NULL, "*"},
    {"", "pods", "list,watch,patch", NULL, "*"},
    {"", "pods/status", "patch", NULL, "*"},
    {"serving.baton.dev", "nodeinventories", "list,watch,create,patch", NULL, "*"},
    {"serving.baton.dev", "nodeinventories/status", "patch", NULL, "*"},
    {"serving.baton.dev", "inferencedeployments", "list,watch", NULL, "*"},
    {"", "secrets", "get", NULL, NULL},
    {0},
};
