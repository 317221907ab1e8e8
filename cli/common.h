/* common.h: what the verbs share: where the data folder is, whether its cluster runs, and clients
 * of it. Blocking; main thread. */
#pragma once
#include "lib/kube/client.h"

#define CLI_MANAGER         "baton-cli"
#define SYSTEM_NAMESPACE    "baton-system"
#define ROUTER_PORT_DEFAULT 8080

/* What `baton up` remembers of itself in <dir>/up.json, and whether its supervisor lives. */
struct cluster {
    char *dir;        /* absolute */
    char *kubeconfig; /* <dir>/kubeconfig */
    uint64_t router_port;
    int supervisor; /* pid; 0: not running */
    bool known;     /* the folder holds data of an earlier or running cluster */
};

/* dir NULL or "": $XDG_STATE_HOME/baton, else ~/.local/state/baton. */
int cluster_find(const char *dir, struct cluster *out, struct err *e) MUST_CHECK;
void cluster_refresh(struct cluster *c); /* is its supervisor alive now? */
void cluster_fini(struct cluster *c);
int cluster_remember(const struct cluster *c, struct err *e) MUST_CHECK;
int cluster_client(const struct cluster *c, struct kube_client **out, struct err *e) MUST_CHECK;

char *cli_program(const char *name); /* path beside this program */
char *cli_models_dir(void);          /* ~/.cache/baton/models */
int cli_mkdirs(const char *path, struct err *e) MUST_CHECK;
/* Moves positional arguments that stand before options behind them: `baton run "question" --once`
 * is what people type. */
void cli_options_first(int argc, char **argv, const char *const *flags_without_value);
int cli_fail(const char *verb, const struct err *e); /* prints "baton VERB: …", returns 1 */

/* Progress on stderr: one line that is rewritten on a terminal, a line a step elsewhere. */
void progress(const char *fmt, ...) PRINTF_LIKE(1, 2);
void progress_done(const char *fmt, ...) PRINTF_LIKE(1, 2);

/* Starts the cluster of c if it doesn't run and waits until its parts are ready (up.c). */
struct up_options {
    const char *data, *models_dir;
    uint64_t router_port, api_port, wait_seconds;
    bool detach;
    const char *model;
};
int up_start(struct cluster *c, const struct up_options *o, struct err *e) MUST_CHECK;
/* Applies the chat sample for a model file (NULL: the sample's own) under `name` (NULL: from the
 * file's name). The deployment's name is written to out (at least 64 bytes). */
int up_apply_model(struct kube_client *k, const char *file, const char *name, char out[64],
                   struct err *e) MUST_CHECK;
int down_cluster(const struct cluster *c, uint64_t grace_s, struct err *e) MUST_CHECK; /* down.c */

/* Manifests of the static pods (pods.c): name "controller", "router" or "agent"; new reference. */
json_t *static_pod(const struct cluster *c, const char *name);
