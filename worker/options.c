#include "worker/options.h"

#include "lib/base/conf.h"
#include "lib/decide/speculate.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#define O(field) CONF(struct options, field)
static const struct conf_opt opts[] = {
    {"--plan", NULL, CONF_BOOL, O(plan), "false", 0, 0,
     "print what the model needs as JSON, load nothing", NULL},
    {"--fill", NULL, CONF_BOOL, O(fill), "false", 0, 0,
     "write the weight image into the inherited fd, print its checksum", NULL},
    {"--score", NULL, CONF_BOOL, O(score), "false", 0, 0,
     "print the log-probability of each of --ids as JSON", NULL},
    {"--model", NULL, CONF_STR, O(model), "", 0, 0,
     "GGUF file, or folder of a Hugging Face model (config.json, safetensors)", "PATH"},
    {"--ids", NULL, CONF_STR, O(ids), "", 0, 0, "token ids to score", "1,2,3"},
    {"--isa", "BATON_ISA", CONF_STR, O(isa), "", 0, 0,
     "scalar, avx2, avx512 or amx; the best there is", "ISA"},
    {"--backend", "BATON_BACKEND", CONF_STR, O(backend), "auto", 0, 0,
     "what computes: cpu, cuda, or auto: a GPU where there is one that can run the model",
     "BACKEND"},
    {"--role", NULL, CONF_STR, O(role), "unified", 0, 0, "role to start in (without a launcher)",
     "ROLE"},
    {"--host", "BATON_POD_IP", CONF_STR, O(host), "127.0.0.1", 0, 0, "numeric address to listen on",
     "IP"},
    {"--http-port", "BATON_HTTP_PORT", CONF_U64, O(http_port), "8000", 0, 65535, "API port; 0: any",
     "PORT"},
    {"--xfer-port", "BATON_XFER_PORT", CONF_U64, O(xfer_port), "8001", 0, 65535,
     "KV transfer port; 0: any", "PORT"},
    {"--secret-file", NULL, CONF_STR, O(secret_file), "", 0, 0,
     "file with the deployment's peer secret", "FILE"},
    {"--peer-dir", "BATON_PEER_DIR", CONF_STR, O(peer_dir), "", 0, 0,
     "folder with the file \"secret\"", "DIR"},
    {"--shm-dir", "BATON_AGENT_DIR", CONF_STR, O(shm_dir), "", 0, 0,
     "where workers of one host meet; empty: TCP only", "DIR"},
    {"--xfer", "BATON_XFER", CONF_STR, O(xfer), "auto", 0, 0,
     "KV transfer path: auto, shm, tcp or none", "PATH"},
    {"--threads", NULL, CONF_U64, O(threads), "0", 0, 64, "compute threads; 0: from the CPU limit",
     "N"},
    {"--kv-bytes", "BATON_KV_BYTES", CONF_BYTES, O(kv_bytes), "0", 0, 0,
     "size of the KV pool; 0: what the limit leaves", "BYTES"},
    {"--kv-dtype", "BATON_KV_DTYPE", CONF_STR, O(kv_dtype), "f16", 0, 0,
     "f16, bf16, f32, int8 or fp8", "TYPE"},
    {"--block-tokens", "BATON_KV_BLOCK_TOKENS", CONF_U64, O(block_tokens), "32", 32, 256,
     "tokens a KV block", "N"},
    {"--max-context", "BATON_MAX_CONTEXT", CONF_U64, O(max_context), "0", 0, 1 << 20,
     "tokens of one sequence; 0: the model's", "N"},
    {"--max-rows", "BATON_MAX_ROWS", CONF_U64, O(max_rows), "512", 16, 8192,
     "most tokens in one step", "N"},
    {"--max-running", "BATON_MAX_RUNNING", CONF_U64, O(max_running), "32", 1, 512,
     "most sequences in one step", "N"},
    {"--speculation", "BATON_SPECULATION", CONF_STR, O(speculation), "prompt-lookup", 0, 0,
     "prompt-lookup or off: several tokens a step where the text repeats itself; changes no bit",
     "METHOD"},
    {"--draft-tokens", "BATON_DRAFT_TOKENS", CONF_U64, O(draft_tokens), "10", 1, SPECULATE_MAX,
     "most tokens guessed for a sequence in a step", "N"},
    {"--max-queue", "BATON_MAX_QUEUE", CONF_U64, O(max_queue), "512", 1, 65536,
     "requests taken before 429", "N"},
    {"--drain-seconds", "BATON_DRAIN_SECONDS", CONF_U64, O(drain_s), "30", 1, 86400,
     "time that running requests get when draining", "S"},
    {"--incarnation", NULL, CONF_STR, O(incarnation), "", 0, 0,
     "16 hex digits (without a launcher); drawn when absent", "HEX"},
    {"--sha256", "BATON_MODEL_SHA256", CONF_STR, O(sha256), "", 0, 0,
     "digest that the model file must have; part of block names", "HEX"},
    {"--source", "BATON_MODEL_SOURCE", CONF_STR, O(source), "", 0, 0,
     "where the model comes from, file:// first", "URL"},
    {"--model-name", "BATON_MODEL_NAME", CONF_STR, O(model_name), "", 0, 0,
     "name that the model is served under", "NAME"},
    {"--pod-name", "BATON_POD_NAME", CONF_STR, O(pod_name), "", 0, 0,
     "name of this worker in logs and state", "NAME"},
    {"--cpu-limit-milli", "BATON_CPU_LIMIT_MILLI", CONF_U64, O(cpu_limit_milli), "0", 0, 1e9,
     "CPU limit in thousandths; 0: none", "N"},
    {"--memory-limit-bytes", "BATON_MEMORY_LIMIT_BYTES", CONF_U64, O(memory_limit_bytes), "0", 0, 0,
     "memory limit; 0: none", "N"},
    {"--tp", "BATON_TP", CONF_U64, O(tp), "1", 1, 64, "tensor-parallel ranks", "N"},
    {"--pp", "BATON_PP", CONF_U64, O(pp), "1", 1, 64, "pipeline stages", "N"},
    {"--ep", "BATON_EP", CONF_U64, O(ep), "1", 1, 64, "ranks that experts are dealt over", "N"},
    {"--dp", "BATON_DP", CONF_U64, O(dp), "1", 1, 64, "data-parallel ranks of attention", "N"},
    {"--dispatch", "BATON_DISPATCH", CONF_STR, O(dispatch), "auto", 0, 0,
     "how rows go to experts at other ranks: auto, latency or throughput", "WAY"},
    {"--dispatch-type", "BATON_DISPATCH_TYPE", CONF_STR, O(dispatch_type), "f32", 0, 0,
     "what they travel as: f32 or fp8", "TYPE"},
    {"--two-batch", "BATON_TWO_BATCH", CONF_STR, O(two_batch), "auto", 0, 0,
     "a step as two halves, one computed while the other's rows are on their way to experts at "
     "other ranks: auto (when steps are measured to be shorter), on or off",
     "WHEN"},
    {"--redundant-experts", "BATON_REDUNDANT_EXPERTS", CONF_U64, O(redundant), "0", 0, 64,
     "copies of other ranks' experts that a rank keeps of each layer", "N"},
    {"--balance-steps", "BATON_BALANCE_STEPS", CONF_U64, O(balance_steps), "1000", 1, 1 << 30,
     "steps after which they are chosen anew", "N"},
    {"--mask-ranks", "BATON_MASK_RANKS", CONF_STR, O(mask), "auto", 0, 0,
     "go on without a data rank that died, where others have its experts: auto (the first copies "
     "are one of every expert at another rank, if there is room for them) or off",
     "WHEN"},
    {"--masked-seconds", "BATON_MASKED_SECONDS", CONF_U64, O(masked_s), "600", 1, 86400,
     "time after which a group without one of its ranks drains and restarts; it restarts sooner "
     "when it has nothing to do",
     "S"},
    {"--pods", "BATON_PODS", CONF_U64, O(pods), "1", 1, 64, "pods of the group", "N"},
    {"--rank", "BATON_RANK", CONF_U64, O(rank), "0", 0, 63, "whose weights --plan and --fill mean",
     "N"},
    {"--stats", NULL, CONF_BOOL, O(stats), "false", 0, 0,
     "with --score: also ranks, their weights and collectives", NULL},
    {"--launcher-fd", "BATON_LAUNCHER_FD", CONF_U64, O(launcher_fd), "0", 0, 1 << 20,
     "socket to the launcher; 0: stand-alone", "FD"},
    {"--weights-fd", "BATON_WEIGHTS_FD", CONF_U64, O(weights_fd), "0", 0, 1 << 20,
     "shared memory for --fill", "FD"},
    {"--comm-fd", "BATON_COMM_FD", CONF_U64, O(comm_fd), "0", 0, 1 << 20,
     "memory that the ranks of this pod share; 0: one rank", "FD"},
    {"--comm-port", "BATON_COMM_PORT", CONF_U64, O(comm_port), "8010", 1, 65000,
     "first port of the ranks' collectives", "PORT"},
    {"--stuck-ms", "BATON_STUCK_MS", CONF_U64, O(stuck_ms), "30000", 100, 3600000,
     "a rank that others wait for so long in a step fails the group", "MS"},
    {"--log-level", "BATON_LOG_LEVEL", CONF_STR, O(log_level), "info", 0, 0,
     "error, warn, info or debug", "LEVEL"},
    {"--log-format", "BATON_LOG_FORMAT", CONF_STR, O(log_format), "json", 0, 0, "json or text",
     "FORMAT"},
    {0},
};

static const struct conf_prog prog = {"baton-worker",
                                      "computes a model: prefill, decode, and the hand-over of KV "
                                      "between workers. In a pod it is started by \"baton-agent "
                                      "launch\"; alone it needs --model and --secret-file",
                                      "--model FILE --secret-file FILE [options]", opts};

int options_parse(int argc, char **argv, struct options *o, struct err *e)
{
    int first = 0, rc = conf_parse(&prog, argc, argv, o, &first, e);
    if (rc)
        return rc;
    if (first < argc)
        return err_set(e, EINVAL, "unexpected argument \"%s\"; see baton-worker --help",
                       argv[first]);
    struct model_layout l = options_layout(o);
    if ((uint64_t)l.tensor * l.pipeline * l.data > MODEL_RANKS_MAX)
        return err_set(e, EINVAL, "a layout of %llu ranks: up to %u work",
                       (unsigned long long)l.tensor * l.pipeline * l.data, MODEL_RANKS_MAX);
    if (l.data == 1 && l.expert > 1 && l.expert != l.tensor)
        return err_set(e, ENOTSUP, "experts over %u ranks: over 1 or over all %u tensor ranks",
                       l.expert, l.tensor);
    struct model_group dispatch;
    enum group_halves halves;
    if ((rc = options_dispatch(o, &dispatch, e)) || (rc = options_halves(o, &halves, e)))
        return rc;
    if (model_layout_ranks(&l) % o->pods)
        return err_set(e, EINVAL, "%u ranks can't be spread over %llu pods", model_layout_ranks(&l),
                       (unsigned long long)o->pods);
    if (o->rank >= model_layout_ranks(&l))
        return err_set(e, EINVAL, "--rank %llu of %u ranks", (unsigned long long)o->rank,
                       model_layout_ranks(&l));
    if (strcmp(o->speculation, "off") != 0 && strcmp(o->speculation, "prompt-lookup") != 0)
        return err_set(e, EINVAL, "--speculation \"%s\": prompt-lookup or off", o->speculation);
    if (o->block_tokens % 32)
        return err_set(e, EINVAL, "--block-tokens must be a multiple of 32");
    return 0;
}

int options_halves(const struct options *o, enum group_halves *out, struct err *e)
{
    static const char *const names[] = {
        [GROUP_WHOLE] = "off", [GROUP_HALVES] = "on", [GROUP_HALVES_MEASURED] = "auto"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(o->two_batch, names[i]) == 0) {
            *out = (enum group_halves)i;
            return 0;
        }
    return err_set(e, EINVAL, "--two-batch \"%s\": auto, on or off", o->two_batch);
}

int options_dispatch(const struct options *o, struct model_group *out, struct err *e)
{
    static const char *const ways[] = {[MODEL_DISPATCH_AUTO] = "auto",
                                       [MODEL_DISPATCH_THROUGHPUT] = "throughput",
                                       [MODEL_DISPATCH_LATENCY] = "latency"};
    struct model_group g = {.dispatch_fp8 = strcmp(o->dispatch_type, "fp8") == 0,
                            .redundant = (uint32_t)o->redundant,
                            .balance_steps = (uint32_t)o->balance_steps,
                            .cover = strcmp(o->mask, "auto") == 0};
    if (!g.cover && strcmp(o->mask, "off") != 0)
        return err_set(e, EINVAL, "--mask-ranks \"%s\": auto or off", o->mask);
    if (!g.dispatch_fp8 && strcmp(o->dispatch_type, "f32") != 0)
        return err_set(e, EINVAL, "--dispatch-type \"%s\": f32 or fp8", o->dispatch_type);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (strcmp(o->dispatch, ways[i]) == 0) {
            g.dispatch = (enum model_dispatch)i;
            *out = g;
            return 0;
        }
    return err_set(e, EINVAL, "--dispatch \"%s\": auto, latency or throughput", o->dispatch);
}

bool options_has_copies(const struct options *o, const struct model_config *m)
{
    return o->redundant && o->dp > 1 && o->ep > 1 && m->moe.experts;
}

struct model_layout options_layout(const struct options *o)
{
    return (struct model_layout){(uint32_t)o->tp, (uint32_t)o->pp, (uint32_t)o->ep,
                                 (uint32_t)o->dp};
}

int options_model_path(const struct options *o, char **path, struct err *e)
{
    struct str first, rest = str_cut(str_c(o->source), ',', &first);
    (void)rest;
    first = str_trim(first);
    if (*o->model) {
        *path = xstrdup(o->model);
        return 0;
    }
    if (!first.n)
        return err_set(e, EINVAL, "no model: give --model FILE or BATON_MODEL_SOURCE");
    if (!str_starts(first, STR("file://")))
        return err_set(e, ENOTSUP,
                       "workers read models from file:///, not from " STR_FMT
                       ": put the file on the node",
                       STR_ARG(first));
    *path = str_dup((struct str){first.p + 7, first.n - 7});
    return 0;
}

int options_secret(const struct options *o, char **secret, struct err *e)
{
    CLEANUP(free_charp)
    char *path = *o->secret_file ? xstrdup(o->secret_file)
                 : *o->peer_dir  ? xasprintf("%s/secret", o->peer_dir)
                                 : NULL;
    char text[XFER_SECRET_MAX + 64];
    if (!path)
        return err_set(e, EINVAL, "no peer secret: give --secret-file FILE or BATON_PEER_DIR");
    FILE *f = fopen(path, "re");
    if (!f)
        return err_set(e, errno, "can't read the peer secret %s: %s", path, strerror(errno));
    size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    struct str s = str_trim((struct str){text, n});
    if (s.n < 16 || s.n > XFER_SECRET_MAX)
        return err_set(e, EINVAL, "the peer secret in %s must have 16 to %d characters", path,
                       XFER_SECRET_MAX);
    *secret = str_dup(s);
    return 0;
}

static double cgroup_cpus(void)
{
    long long quota, period;
    double cpus = 1e9;
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (!f)
        return cpus;
    if (fscanf(f, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0)
        cpus = (double)quota / (double)period;
    fclose(f);
    return cpus;
}

uint32_t options_threads(const struct options *o)
{
    cpu_set_t set;
    double n = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set), quota = cgroup_cpus();
    if (o->threads)
        return (uint32_t)o->threads;
    n = quota < n ? quota : n;
    if (o->cpu_limit_milli && (double)o->cpu_limit_milli / 1000 < n)
        n = (double)o->cpu_limit_milli / 1000;
    return n >= 64 ? 64 : n >= 1 ? (uint32_t)(n + .5) : 1;
}

int options_kv_dtype(const struct options *o, enum model_kv_dtype *out, struct err *e)
{
    static const char *const names[] = {[MODEL_KV_F16] = "f16",
                                        [MODEL_KV_F32] = "f32",
                                        [MODEL_KV_BF16] = "bf16",
                                        [MODEL_KV_I8] = "int8",
                                        [MODEL_KV_F8] = "fp8"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(o->kv_dtype, names[i]) == 0) {
            *out = (enum model_kv_dtype)i;
            return 0;
        }
    return err_set(e, EINVAL, "KV type \"%s\": f16, bf16, f32, int8 and fp8 are served",
                   o->kv_dtype);
}

/* Activations, logits, the sampler's rows and what the process itself takes. */
static uint64_t other_bytes(const struct options *o, const struct model_config *m,
                            uint32_t logit_rows)
{
    uint64_t row = 8ull * m->d_model + 4ull * m->d_ff +
                   2ull * m->head_dim * (m->n_heads + 2ull * m->n_kv_heads);
    if (m->moe.experts) /* a row at each of its experts: in and out, width, codes */
        row += m->moe.used * (2ull * m->d_model + 3ull * m->moe.d_expert) + m->moe.experts +
               4ull * m->moe.d_shared;
    if (m->mla.rank)
        row += (uint64_t)m->n_heads * (m->mla.nope + m->rope_dims + m->mla.v) + m->mla.q_rank +
               (uint64_t)o->threads * m->mla.rank;
    if (o->dp > 1 && o->ep > 1 && strcmp(o->two_batch, "off") != 0)
        row += row / 2 + 1; /* the second half's */
    return o->max_rows * row * sizeof(float) + (uint64_t)logit_rows * m->vocab * sizeof(float) +
           16ull * m->vocab + (48u << 20);
}

#define CONTEXTS_MAX                                                                               \
    4u /* pool that is taken when nothing is configured, in contexts of the model */

static int pool_bytes(const struct options *o, const struct budget *b, bool least, uint64_t *out,
                      struct err *e)
{
    uint64_t block = b->pod_block_bytes, bt = b->kv.block_tokens;
    uint64_t context = (b->context + bt - 1) / bt * block;
    uint64_t few = (b->context < 1024 ? b->context + bt - 1 : 1024) / bt * block;
    uint64_t limit = o->memory_limit_bytes / 10 * 9;
    *out = o->kv_bytes;
    if (!*out && least)
        *out = few;
    else if (!*out && !limit)
        *out = context < 512u << 20 ? context : 512u << 20;
    else if (!*out)
        *out = limit > b->other_bytes ? limit - b->other_bytes : 0;
    if (!o->kv_bytes && *out > CONTEXTS_MAX * context)
        *out = CONTEXTS_MAX * context;
    if (*out < block * 2)
        return err_set(
            e, ENOMEM,
            "the KV pool would have %.2f MiB, it needs %.2f at least (two blocks of %llu tokens): "
            "raise kvCache.size (BATON_KV_BYTES) or the memory limit",
            (double)*out / 0x1p20, (double)block / 0x1p19, (unsigned long long)bt);
    return 0;
}

/* Bytes of a block at all ranks of this rank's pod. */
static uint64_t pod_block_bytes(const struct options *o, const struct model_config *m,
                                const struct budget *b)
{
    struct model_layout l = options_layout(o);
    uint32_t n = model_layout_ranks(&l) / (uint32_t)o->pods, first = (uint32_t)o->rank / n * n;
    uint64_t sum = 0;
    for (uint32_t r = first; r < first + n; r++) {
        struct model_shard s = model_layout_shard(&l, r);
        struct model_part p;
        model_part_of(m, &s, &p);
        sum += (uint64_t)(p.layer1 - p.layer0) * (p.kv1 - p.kv0) * b->kv.halves * b->kv.head_bytes;
    }
    return sum ? sum : b->kv.block_bytes;
}

int options_budget(const struct options *o, const struct model_config *m, bool least,
                   struct budget *out, struct err *e)
{
    struct budget b = {.context = m->context_tokens};
    struct model_layout l = options_layout(o);
    struct model_shard s = model_layout_shard(&l, (uint32_t)o->rank);
    struct model_part p;
    if (o->max_context && o->max_context < b.context)
        b.context = (uint32_t)o->max_context;
    b.logit_rows = (uint32_t)o->max_running + 16;
    b.other_bytes = other_bytes(o, m, b.logit_rows) * (model_layout_ranks(&l) / o->pods);
    b.other_bytes += o->copies_bytes;
    int rc = model_layout_check(m, &l, e);
    rc = rc ? rc : options_kv_dtype(o, &b.dtype, e);
    rc = rc ? rc : model_kv_init(&b.kv, m, b.dtype, (uint32_t)o->block_tokens, e);
    rc = rc ? rc : model_shard_check(m, &s, e);
    if (rc)
        return rc;
    model_part_of(m, &s, &p);
    b.pod_block_bytes = pod_block_bytes(o, m, &b);
    rc = model_kv_part(&b.part, m, &p, b.dtype, (uint32_t)o->block_tokens, e);
    rc = rc ? rc : pool_bytes(o, &b, least, &b.kv_bytes, e);
    if (rc)
        return rc;
    uint64_t n = b.kv_bytes / b.pod_block_bytes;
    b.n_blocks = n < 1u << 24 ? (uint32_t)n : 1u << 24;
    b.kv_bytes = (uint64_t)b.n_blocks * b.pod_block_bytes;
    *out = b;
    return 0;
}
