/* target.h: which cluster and namespace a verb speaks to, with kubectl's own flags. As
 * `kubectl baton` kubectl's rules hold; as `baton` the cluster that `baton up` started comes before
 * $KUBECONFIG. Blocking; main thread. */
#pragma once
#include "cli/common.h"
#include "lib/base/conf.h"

struct target_options {
    const char *data, *kubeconfig, *context, *namespace;
    bool all_namespaces;
};
/* Rows of a verb's option table; `m` is its struct target_options member. */
#define TARGET_OPTIONS(T, m)                                                                       \
    {"--namespace",                                                                                \
     NULL,                                                                                         \
     CONF_STR,                                                                                     \
     CONF(T, m.namespace),                                                                         \
     "",                                                                                           \
     0,                                                                                            \
     0,                                                                                            \
     "namespace, also -n (default: the context's)",                                                \
     "NAME"},                                                                                      \
        {"--kubeconfig",    NULL,  CONF_STR, CONF(T, m.kubeconfig), "", 0, 0,                      \
         "kubeconfig file", "FILE"},                                                               \
        {"--context", NULL, CONF_STR, CONF(T, m.context), "", 0, 0, "context of the kubeconfig",   \
         "NAME"},                                                                                  \
    {                                                                                              \
        "--data", "BATON_DATA", CONF_STR, CONF(T, m.data), "", 0, 0,                               \
            "data folder of a cluster that `baton up` started", "DIR"                              \
    }
#define TARGET_ALL(T, m)                                                                           \
    {                                                                                              \
        "--all-namespaces", NULL, CONF_BOOL, CONF(T, m.all_namespaces), NULL, 0, 0,                \
            "every namespace, also -A", NULL                                                       \
    }

struct target {
    struct kube_client *client;
    char *namespace; /* NULL: all */
    bool local;      /* the cluster of `baton up` */
    struct cluster cluster;
};
/* Writes -n and -A out, and puts options before other words (argv[0] is the verb). flags: the
 * options that take no value, NULL-terminated. */
void target_args(int argc, char **argv, const char *const *flags);
int target_open(const struct target_options *o, struct target *t, struct err *e) MUST_CHECK;
void target_close(struct target *t);
void target_as_plugin(void); /* this process is `kubectl baton` */

/* New reference or NULL with *e. */
json_t *target_get(struct target *t, const struct kube_kind *kind, const char *name, struct err *e);
json_t *target_list(struct target *t, const struct kube_kind *kind, const char *label_selector,
                    const char *field_selector, struct err *e); /* the items */
/* A merge patch; field manager "baton-cli". */
int target_patch(struct target *t, const struct kube_kind *kind, const char *name,
                 const json_t *body, struct err *e) MUST_CHECK;
/* The router's /debug/state, straight or through the API server; NULL when it can't be had. */
json_t *target_router_state(struct target *t, const char *namespace, const char *router_url);

extern const struct kube_kind target_revisions; /* ControllerRevisions */

/* Small readers of objects. */
const char *label_of(const json_t *o, const char *key); /* "" when absent */
const char *note_of(const json_t *o, const char *key);
const json_t *condition_of(const json_t *o, const char *type); /* NULL when absent */
bool condition_holds(const json_t *condition);
