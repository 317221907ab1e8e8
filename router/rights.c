/* Compared by a test with the router's Role in the chart. */
#include "router/rights.h"

const struct access_right router_rights[] = {
    {"serving.baton.dev", "inferencedeployments", "list,watch", NULL, NULL},
    {"", "pods", "list,watch", NULL, NULL},
    {"", "secrets", "list,watch", NULL, NULL},
    {0},
};
