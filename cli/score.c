#include "cli/common.h"
#include "cli/verbs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char help[] =
    "baton score: log-probabilities of given tokens, computed by the serving kernels.\n\n"
    "usage: baton score --model PATH --ids 1,2,3 [--tp N] [--pp N] [--ep N] [--dp N]\n"
    "                   [--backend cpu|cuda|auto] [--stats]\n\n"
    "  --model PATH   GGUF file, or folder of a Hugging Face model\n"
    "  --ids LIST     token ids separated by commas\n"
    "  --tp N         tensor-parallel ranks, each a process\n"
    "  --pp N         pipeline stages\n"
    "  --ep N         ranks that experts are dealt over (1, as --tp, or with --dp a divisor of "
    "tp x dp)\n"
    "  --dp N         data-parallel ranks of attention\n"
    "  --backend NAME what computes: cpu, cuda, or auto: a GPU where there is one\n"
    "  --dispatch WAY, --dispatch-type TYPE\n"
    "                 how rows go to experts at other ranks (auto, latency, throughput), as f32 or "
    "fp8\n"
    "  --stats        also ranks: pids, weight bytes, collectives\n\n"
    "Prints JSON: entry i has id = ids[i], logprob = log P(ids[i] | ids[0..i-1]) (null at 0) and "
    "top = the best 5 at i as\n"
    "[[id, logprob], …]. It equals /v1/completions with echo, max_tokens 0 and logprobs 5, bit for "
    "bit.\n";

/* The worker's own score mode, so that there is one way to compute them. */
int score_main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(help, stdout);
            return 0;
        }
    }
    if (argc == 1) {
        fputs(help, stderr);
        return 2;
    }
    CLEANUP(free_charp) char *program = cli_program("baton-worker");
    char **args = xcalloc((size_t)argc + 2, sizeof *args);
    args[0] = xstrdup("baton-worker");
    args[1] = xstrdup("--score");
    for (int i = 1; i < argc; i++)
        args[i + 1] = argv[i];
    execv(program, args);
    struct err e;
    err_set(&e, errno, "can't run %s: %s", program, strerror(errno));
    return cli_fail("score", &e);
}
