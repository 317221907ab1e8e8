#include "worker/modes.h"

#include "worker/digest.h"
#include "worker/model/score.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The image has one form for all instruction sets; what the kernels read of it is named for the
 * agent's key. */
#define IMAGE_LAYOUT "rows16"

static void print_plan(const struct model_config *c, const struct budget *b, uint64_t weights)
{
    printf("{\"weights_bytes\":%llu,\"kv_bytes\":%llu,\"other_bytes\":%llu,\"isa\":\"x86\","
           "\"layout\":\"%s\","
           "\"kv_block_bytes\":%llu,\"block_tokens\":%u,\"context_tokens\":%u,\"layers\":%u,\"kv_"
           "heads\":%u,"
           "\"head_dim\":%u,\"vocab\":%u,\"parameters\":%llu}\n",
           (unsigned long long)weights, (unsigned long long)b->kv_bytes,
           (unsigned long long)b->other_bytes, IMAGE_LAYOUT, (unsigned long long)b->kv.block_bytes,
           b->kv.block_tokens, b->context, c->n_layers, c->n_kv_heads, c->head_dim, c->vocab,
           (unsigned long long)c->n_params);
}

int mode_plan(const struct options *o, struct err *e)
{
    CLEANUP(free_charp) char *path = NULL;
    struct model_config c;
    struct budget b;
    uint64_t weights;
    int rc = options_model_path(o, &path, e);
    rc = rc ? rc : model_config_read(path, &c, e);
    rc = rc ? rc : model_image_bytes(path, o->isa, &weights, e);
    rc = rc ? rc : options_budget(o, &c, true, &b, e);
    if (!rc)
        print_plan(&c, &b, weights);
    return rc;
}

static int fill_fd(const char *path, const struct options *o, struct err *e)
{
    int fd = (int)o->weights_fd;
    uint64_t bytes;
    struct stat st;
    int rc = model_image_bytes(path, o->isa, &bytes, e);
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
    rc = model_image_fill(path, o->isa, p, bytes, e);
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

static int parse_ids(const char *text, uint32_t **out, uint32_t *n_out, struct err *e)
{
    struct str head, rest = str_trim(str_c(text));
    uint32_t *ids = xmalloc((rest.n + 1) * sizeof *ids), n = 0;
    while (rest.n) {
        uint64_t v;
        rest = str_cut(rest, ',', &head);
        if (str_to_u64(str_trim(head), 0, UINT32_MAX, &v)) {
            free(ids);
            return err_set(e, EINVAL, "--ids takes token ids such as 1,2,3, not \"" STR_FMT "\"",
                           STR_ARG(head));
        }
        ids[n++] = (uint32_t)v;
    }
    if (!n) {
        free(ids);
        return err_set(e, EINVAL, "--score needs --ids 1,2,3");
    }
    *out = ids;
    *n_out = n;
    return 0;
}

static void print_scores(const struct score_entry *s, uint32_t n)
{
    printf("[");
    for (uint32_t i = 0; i < n; i++) {
        printf("%s\n{\"id\":%u,\"logprob\":", i ? "," : "", s[i].id);
        printf(i ? "%.9g" : "null", (double)s[i].logprob);
        printf(",\"top\":[");
        for (uint32_t k = 0; k < s[i].n_top; k++)
            printf("%s[%u,%.9g]", k ? "," : "", s[i].top[k].id, (double)s[i].top[k].logprob);
        printf("]}");
    }
    printf("\n]\n");
}

int mode_score(const struct options *o, struct err *e)
{
    CLEANUP(free_charp) char *path = NULL;
    uint32_t *ids = NULL, n = 0;
    struct model *m = NULL;
    struct score_entry *out = NULL;
    int rc = options_model_path(o, &path, e);
    rc = rc ? rc : digest_check(path, o->sha256, e);
    rc = rc ? rc : parse_ids(o->ids, &ids, &n, e);
    rc = rc ? rc : model_load(path, o->isa, &m, e);
    if (!rc) {
        out = xcalloc(n, sizeof *out);
        rc = score_ids(m, options_threads(o), ids, n, out, e);
    }
    if (!rc)
        print_scores(out, n);
    free(out);
    free(ids);
    model_free(m);
    return rc;
}
