#include "worker/modes.h"

#include "worker/digest.h"
#include "worker/model/shard.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The image has one form for all instruction sets; what the kernels read of it, and of which part
 * of the model, is named for the agent's key. */
#define IMAGE_LAYOUT "rows16"

static struct model_shard shard_of(const struct options *o, uint32_t rank)
{
    struct model_layout l = options_layout(o);
    return model_layout_shard(&l, rank);
}

static void print_layout(const struct model_shard *s)
{
    printf("\"" IMAGE_LAYOUT);
    if (s->tensor > 1)
        printf("-tp%uof%u", s->tensor_rank, s->tensor);
    if (s->pipeline > 1)
        printf("-pp%uof%u", s->stage, s->pipeline);
    if (s->expert > 1)
        printf("-ep%uof%u", s->expert_rank, s->expert);
    printf("\"");
}

/* Ranks of this rank's pod, each with its image. */
static int print_ranks(const struct options *o, const char *path, uint64_t *sum, struct err *e)
{
    struct model_layout l = options_layout(o);
    uint32_t n = model_layout_ranks(&l) / (uint32_t)o->pods, first = (uint32_t)o->rank / n * n;
    *sum = 0;
    printf("{\"ranks\":[");
    for (uint32_t r = first; r < first + n; r++) {
        struct model_shard s = shard_of(o, r);
        uint64_t bytes;
        int rc = model_shard_bytes(path, o->isa, &s, &bytes, e);
        if (rc)
            return rc;
        printf("%s{\"rank\":%u,\"weights_bytes\":%llu,\"layout\":", r > first ? "," : "", r,
               (unsigned long long)bytes);
        print_layout(&s);
        printf("}");
        *sum += bytes;
    }
    printf("],");
    return 0;
}

static void print_plan(const struct options *o, const struct model_config *c,
                       const struct budget *b, uint64_t weights)
{
    struct model_shard s = shard_of(o, (uint32_t)o->rank);
    char waste[160];
    printf("\"weights_bytes\":%llu,\"kv_bytes\":%llu,\"other_bytes\":%llu,\"isa\":\"x86\","
           "\"layout\":",
           (unsigned long long)weights, (unsigned long long)b->kv_bytes,
           (unsigned long long)b->other_bytes);
    print_layout(&s);
    if (model_shard_wastes(c, &s, waste, sizeof waste))
        printf(",\"warning\":\"%s\"", waste);
    printf(",\"kv_block_bytes\":%llu,\"block_tokens\":%u,\"context_tokens\":%u,\"layers\":%u,"
           "\"kv_heads\":%u,\"head_dim\":%u,\"vocab\":%u,\"parameters\":%llu}\n",
           (unsigned long long)b->pod_block_bytes, b->kv.block_tokens, b->context, c->n_layers,
           c->n_kv_heads, c->head_dim, c->vocab, (unsigned long long)c->n_params);
}

/* Copies of experts at the pod's ranks: what the whole model has more than a rank are the others'
 * experts. */
static int copies_bytes(const struct options *o, const char *path, const struct model_config *c,
                        uint64_t *out, struct err *e)
{
    struct model_layout l = options_layout(o);
    struct model_shard part = shard_of(o, (uint32_t)o->rank), whole = part;
    struct model_part p;
    uint64_t some, all;
    *out = 0;
    int rc = model_layout_check(c, &l, e);
    if (rc || !options_has_copies(o, c))
        return rc;
    whole.expert = 1;
    whole.expert_rank = 0;
    model_part_of(c, &part, &p);
    rc = model_shard_bytes(path, o->isa, &part, &some, e);
    rc = rc ? rc : model_shard_bytes(path, o->isa, &whole, &all, e);
    if (!rc && all > some)
        *out = (all - some) / (c->moe.experts - (p.expert1 - p.expert0)) * o->redundant *
               (model_layout_ranks(&l) / o->pods);
    return rc;
}

int mode_plan(const struct options *given, struct err *e)
{
    CLEANUP(free_charp) char *path = NULL;
    struct options with = *given, *o = &with;
    struct model_config c;
    struct budget b;
    uint64_t weights;
    int rc = options_model_path(o, &path, e);
    rc = rc ? rc : model_config_read(path, &c, e);
    rc = rc ? rc : copies_bytes(o, path, &c, &with.copies_bytes, e);
    rc = rc ? rc : options_budget(o, &c, true, &b, e);
    rc = rc ? rc : print_ranks(o, path, &weights, e);
    if (!rc)
        print_plan(o, &c, &b, weights);
    return rc;
}

static int fill_fd(const char *path, const struct options *o, struct err *e)
{
    int fd = (int)o->weights_fd;
    uint64_t bytes;
    struct stat st;
    struct model_shard s = shard_of(o, (uint32_t)o->rank);
    int rc = model_shard_bytes(path, o->isa, &s, &bytes, e);
    if (rc)
        return rc;
    if (fstat(fd, &st))
        return err_set(e, errno, "can't use the weights' fd %d: %s", fd, strerror(errno));
    if ((uint64_t)st.st_size < bytes)
        return err_set(e, ENOSPC, "the weights need %llu bytes, their shared memory has %lld",
                       (unsigned long long)bytes, (long long)st.st_size);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return err_set(e, errno, "can't map the weights' shared memory: %s", strerror(errno));
    rc = model_shard_fill(path, o->isa, &s, p, bytes, e);
    if (!rc)
        printf("{\"checksum\":\"%016llx\"}\n", (unsigned long long)model_image_checksum(p));
    munmap(p, bytes);
    return rc;
}

int mode_fill(const struct options *o, struct err *e)
{
    CLEANUP(free_charp) char *path = NULL;
    if (!o->weights_fd)
        return err_set(e, EINVAL, "--fill needs the fd of the shared memory in BATON_WEIGHTS_FD");
    int rc = options_model_path(o, &path, e);
    rc = rc ? rc : digest_check(path, o->sha256, e);
    return rc ? rc : fill_fd(path, o, e);
}
