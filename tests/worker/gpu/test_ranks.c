/* GPUs of several ranks, each a process: the collectives of nccl.h and the forward pass split over
 * tensor ranks, on stand-ins for driver and NCCL (tests/kernels/cuda). */
#include "tests/kernels/cuda/emu_device.h"
#include "tests/worker/comm/ranks.h"
#include "tests/worker/model/family.h"
#include "worker/comm/nccl.h"
#include "worker/gpu/gpu_model.h"
#include "worker/model/shard.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

/* ---- collectives ---- */

#define TRY(step, call)                                                                            \
    do {                                                                                           \
        if ((call) < 0) {                                                                          \
            fprintf(stderr, "rank %u: %s\n", comm_rank(c), e.msg);                                 \
            return step;                                                                           \
        }                                                                                          \
    } while (0)

static int move_data(struct comm *c, struct ranks *r, void *arg)
{
    enum { N = 40000 };
    struct err e = {0};
    struct nccl *n = NULL;
    struct nccl_flow flows[16];
    uint32_t me = comm_rank(c), ranks = comm_ranks(c), n_flows = 0;
    struct gpu *g = emu_device_new(2);
    void *stream = g->ops->stream(g, GPU_COMPUTE);
    gpu_ptr x, all;
    float *host = malloc((size_t)ranks * N * 4);
    (void)r, (void)arg;
    TRY(1, nccl_new(c, &n, &e));
    TRY(2, g->ops->alloc(g, N * 4, false, &x, &e));
    TRY(3, g->ops->alloc(g, (uint64_t)ranks * N * 4, false, &all, &e));
    for (int i = 0; i < N; i++)
        host[i] = (float)(i % 100) + (float)me;
    TRY(4, g->ops->to_device(g, GPU_COMPUTE, x, host, N * 4, &e));
    TRY(5, nccl_all_gather(n, x, N * 4, all, stream, &e));
    TRY(6, nccl_all_reduce(n, x, N, stream, &e));
    TRY(7, g->ops->to_host(g, GPU_COMPUTE, host, all, (uint64_t)ranks * N * 4, &e));
    TRY(8, g->ops->sync(g, GPU_COMPUTE, &e));
    for (size_t i = 0; i < (size_t)ranks * N; i++)
        if (host[i] != (float)(i % N % 100) + (float)(i / N))
            return 9;
    TRY(10, g->ops->to_host(g, GPU_COMPUTE, host, x, N * 4, &e));
    TRY(11, g->ops->sync(g, GPU_COMPUTE, &e));
    for (size_t i = 0; i < N; i++)
        if (host[i] != (float)ranks * (float)(i % 100) + (float)(ranks * (ranks - 1) / 2))
            return 12;
    for (uint32_t p = 0; p < ranks; p++) /* an all-to-all: everybody's part of `all` goes round */
        if (p != me) {
            flows[n_flows++] = (struct nccl_flow){p, true, x, N * 4 - 4 * p};
            flows[n_flows++] =
                (struct nccl_flow){p, false, all + (uint64_t)p * N * 4, N * 4 - 4 * me};
        }
    TRY(13, g->ops->zero(g, GPU_COMPUTE, all, (uint64_t)ranks * N * 4, &e));
    TRY(14, nccl_exchange(n, flows, n_flows, true, stream, &e));
    TRY(15, g->ops->to_host(g, GPU_COMPUTE, host, all, (uint64_t)ranks * N * 4, &e));
    TRY(16, g->ops->sync(g, GPU_COMPUTE, &e));
    for (uint32_t p = 0; p < ranks; p++)
        for (size_t i = 0; p != me && i < N - me; i++)
            if (host[p * N + i] !=
                (float)ranks * (float)(i % 100) + (float)(ranks * (ranks - 1) / 2))
                return 17;
    nccl_free(n);
    gpu_close(g);
    free(host);
    return 0;
}

static void data_moves_between_devices_in_the_order_of_the_stream(void **state)
{
    static const uint32_t sizes[] = {2, 4};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct ranks r;
        ranks_init(&r, sizes[i], sizes[i], 0);
        ranks_start(&r, move_data, NULL);
        assert_int_equal(ranks_wait(&r, NULL), 0);
        ranks_fini(&r);
    }
}

static int without_library(struct comm *c, struct ranks *r, void *arg)
{
    struct err e = {0};
    struct nccl *n = NULL;
    (void)r, (void)arg;
    if (comm_rank(c) == 1) /* one rank is enough */
        setenv("BATON_NCCL", "libnot-there.so.2", 1);
    if (nccl_new(c, &n, &e) != -ENOTSUP)
        return 1;
    return strstr(e.msg, comm_rank(c) == 1 ? "need NCCL" : "rank 1 has no NCCL") ? 0 : 2;
}

static void without_the_library_every_rank_says_so(void **state)
{
    struct ranks r;
    (void)state;
    ranks_init(&r, 2, 2, 0);
    ranks_start(&r, without_library, NULL);
    assert_int_equal(ranks_wait(&r, NULL), 0);
    ranks_fini(&r);
}

/* ---- a rank that dies ---- */

static int wait_for_the_dead(struct comm *c, struct ranks *r, void *arg)
{
    struct err e = {0};
    struct nccl *n = NULL;
    struct gpu *g = emu_device_new(2);
    gpu_ptr x;
    (void)r, (void)arg;
    TRY(1, nccl_new(c, &n, &e));
    TRY(2, g->ops->alloc(g, 1024, false, &x, &e));
    if (comm_rank(c) == 1)
        raise(SIGKILL);
    TRY(3, nccl_all_reduce(n, x, 256, g->ops->stream(g, GPU_COMPUTE), &e));
    nccl_waiting(n, true);
    TRY(4, g->ops->sync(g, GPU_COMPUTE, &e)); /* ends, for the communicator is aborted */
    nccl_waiting(n, false);
    if (nccl_failed(n, &e) != -EPIPE || !strstr(e.msg, "rank 1"))
        return 5;
    return nccl_all_reduce(n, x, 256, g->ops->stream(g, GPU_COMPUTE), &e) == -EPIPE ? 0 : 6;
}

/* It has said that it comes, and does not. */
static int wait_to_meet_the_dead(struct comm *c, struct ranks *r, void *arg)
{
    struct err e = {0};
    struct nccl *n = NULL;
    int32_t mine = 0, all[RANKS_MAX];
    char id[128];
    (void)r, (void)arg;
    if (comm_rank(c) == 1) {
        TRY(1, comm_all_gather(c, &mine, sizeof mine, all, &e));
        TRY(2, comm_broadcast(c, 0, id, sizeof id, &e));
        raise(SIGKILL);
    }
    return nccl_new(c, &n, &e) == -EPIPE && strstr(e.msg, "rank 1") ? 0 : 3;
}

static void a_rank_that_dies_before_it_has_joined_ends_the_others_wait(void **state)
{
    struct ranks r;
    int codes[3];
    (void)state;
    ranks_init(&r, 3, 3, 0);
    ranks_start(&r, wait_to_meet_the_dead, NULL);
    (void)ranks_wait(&r, codes);
    assert_int_equal(codes[0], 0);
    assert_int_equal(codes[2], 0);
    ranks_fini(&r);
}

static void a_rank_that_dies_ends_what_waits_on_the_devices(void **state)
{
    struct ranks r;
    int codes[3];
    (void)state;
    ranks_init(&r, 3, 3, 0);
    ranks_start(&r, wait_for_the_dead, NULL);
    (void)ranks_wait(&r, codes);
    assert_int_equal(codes[0], 0);
    assert_int_equal(codes[1], 128 + SIGKILL);
    assert_int_equal(codes[2], 0);
    ranks_fini(&r);
}

/* ---- tensor parallelism ---- */

struct split {
    struct family f;
    uint32_t ranks, layers;
    float *whole; /* logits of one GPU */
};

static int forward(struct gpu *g, const struct family *f, const struct model_shard *shard,
                   struct comm *tensor, float *out, uint64_t *sums, struct err *e)
{
    uint32_t table[4] = {3, 1, 7, 0}, n = f->n_ids;
    struct gpu_model_options o = {
        .max_rows = 64, .max_sequences = 4, .pool_blocks = 8, .group.tensor = tensor};
    struct model *m = NULL;
    struct gpu_model *gm = NULL;
    int rc = model_shard_load(f->dir, "scalar", shard, &m, e);
    rc = rc ? rc : gpu_model_new(g, m, &o, &gm, e);
    for (uint32_t at = 0; rc == 0 && at < n; at += at < n - 3 ? n - 3 : 1) { /* the last: decoded */
        uint32_t k = at ? 1 : n - 3;
        struct model_segment s = {
            .tokens = f->ids + at, .n_tokens = k, .start = at, .blocks = table, .n_blocks = 4};
        struct model_batch b = {.segments = &s,
                                .n_segments = 1,
                                .logits = out ? out + (size_t)at * f->vocab : NULL,
                                .logits_rows = k};
        rc = gpu_model_forward(gm, &b, e);
    }
    struct comm_stats st = {0};
    if (tensor)
        comm_stats(tensor, &st);
    *sums = st.all_reduces;
    gpu_model_free(gm);
    model_free(m);
    return rc;
}

static double apart(const float *a, const float *b, size_t n)
{
    double diff = 0, mean = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        diff += (double)(a[i] - b[i]) * (a[i] - b[i]);
        mean += b[i];
        square += (double)b[i] * b[i];
    }
    return sqrt(diff / (double)n) / sqrt(square / (double)n - mean * mean / (double)n / (double)n);
}

static int be_tensor_rank(struct comm *c, struct ranks *r, void *arg)
{
    struct split *s = arg;
    struct err e = {0};
    struct model_shard shard = {.tensor = s->ranks, .tensor_rank = comm_rank(c)};
    struct gpu *g = emu_device_new(2);
    size_t n = (size_t)s->f.n_ids * s->f.vocab, far = 0;
    float *out = comm_rank(c) ? NULL : calloc(n, sizeof *out);
    uint64_t sums = 0;
    (void)r;
    TRY(1, forward(g, &s->f, &shard, c, out, &sums, &e));
    gpu_close(g);
    if (comm_rank(c))
        return 0;
    for (uint32_t i = 0; i < s->f.n_ids; i++)
        far += apart(out + (size_t)i * s->f.vocab, s->whole + (size_t)i * s->f.vocab, s->f.vocab) >
               0.03;
    printf(
        "over %u ranks: %.4f of the logits' spread from one GPU, %zu of %u rows far, %llu sums\n",
        s->ranks, apart(out, s->whole, n), far, s->f.n_ids, (unsigned long long)sums);
    fflush(stdout);
    free(out);
    /* two a layer and one for the embedding: of the chunk, of the first token and of the graph */
    return far > s->f.n_ids / 2 ? 2 : sums != 3 * (2ull * s->layers + 1) ? 3 : 0;
}

static void tensor_ranks_equal_one_gpu_within_bf16(void **state)
{
    static const char *const names[] = {"llama3", "gemma3", "mixtral", "deepseek-v3"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct split s = {0};
        struct err e = {0};
        uint64_t sums;
        family_open(&s.f, names[i]);
        s.whole = calloc((size_t)s.f.n_ids * s.f.vocab, sizeof *s.whole);
        struct gpu *g = emu_device_new(2);
        s.layers = (uint32_t)json_integer_value(
            json_object_get(json_object_get(s.f.golden, "config"), "num_hidden_layers"));
        if (forward(g, &s.f, NULL, NULL, s.whole, &sums, &e))
            fail_msg("%s: %s", names[i], e.msg);
        gpu_close(g);
        for (s.ranks = 2; s.ranks <= 4; s.ranks += 2) {
            struct ranks r;
            ranks_init(&r, s.ranks, s.ranks, 0);
            printf("%-12s ", names[i]);
            fflush(stdout);
            ranks_start(&r, be_tensor_rank, &s);
            assert_int_equal(ranks_wait(&r, NULL), 0);
            ranks_fini(&r);
        }
        free(s.whole);
        family_close(&s.f);
    }
}

int main(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    if (n <= 0)
        return 99;
    path[n] = 0;
    *strrchr(path, '/') = 0;
    strcat(path, "/../../kernels/cuda/libnccl.so.2");
    setenv("BATON_NCCL", path, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_moves_between_devices_in_the_order_of_the_stream),
        cmocka_unit_test(without_the_library_every_rank_says_so),
        cmocka_unit_test(a_rank_that_dies_ends_what_waits_on_the_devices),
        cmocka_unit_test(a_rank_that_dies_before_it_has_joined_ends_the_others_wait),
        cmocka_unit_test(tensor_ranks_equal_one_gpu_within_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
