/* baton: the command line. One file a verb; this one only finds it. */
#include "cli/plan.h"
#include "cli/target.h"
#include "cli/verbs.h"
#include "lib/base/conf.h"
#include "lib/base/log.h"

#include <signal.h>
#include <stdio.h>

struct verb {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
};

static const struct verb verbs[] = {
    {"up", "start a cluster on this machine: API server, controller, router, agent", up_main},
    {"down", "end it; no process is left", down_main},
    {"run", "ask a question: from nothing to a streamed answer", run_main},
    {"status", "a live view of deployments, roles, queues, KV and tokens/s", status_main},
    {"rollout", "status, history, undo, pause, resume of a deployment's roll-out", rollout_main},
    {"drain", "take a worker pod or a node's workers out of service, without an error", drain_main},
    {"explain", "why each role has as many groups as it has; replays recorded decisions",
     explain_main},
    {"plan", "capacity and layout on paper, each number with its formula", cmd_plan},
    {"score", "log-probabilities of given tokens, by the serving kernels", score_main},
};
#define N_VERBS (sizeof verbs / sizeof *verbs)

static const char *called = "baton"; /* or "kubectl baton", by the name it was started as */

static void help(FILE *to)
{
    fprintf(to,
            "baton: serves large language models on Kubernetes, prefill and decode apart.\n\n"
            "usage: %s VERB [options]      %s VERB --help tells more\n\n",
            called, called);
    for (size_t i = 0; i < N_VERBS; i++)
        fprintf(to, "  %-8s %s\n", verbs[i].name, verbs[i].summary);
    fprintf(to, "\nThe shortest way to an answer:  baton run \"What is the capital of France?\"\n");
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "--help";
    const char *slash = argc ? strrchr(argv[0], '/') : NULL, *self = slash ? slash + 1 : argv[0];
    if (strncmp(self, "kubectl-", 8) == 0) {
        called = "kubectl baton";
        target_as_plugin();
    }
    signal(SIGPIPE, SIG_IGN);
    log_init("baton", "text", LOG_WARN);
    if (strcmp(name, "--version") == 0) {
        printf("baton %s\n", baton_version);
        return 0;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        help(stdout);
        return 0;
    }
    for (size_t i = 0; i < N_VERBS; i++) {
        if (strcmp(name, verbs[i].name) == 0)
            return verbs[i].run(argc - 1, argv + 1);
    }
    fprintf(stderr, "baton: unknown verb %s\n\n", name);
    help(stderr);
    return 2;
}
