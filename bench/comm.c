/* All-reduce and all-to-all between rank processes of this host, by size and number of ranks,
 * beside the CPU time that copying the same bytes once takes. More ranks than cores take turns:
 * then what is measured is switching between them. CPU time a call is rank 0's own, waiting asleep
 * left out.
 *
 * Columns: us a call, median and best; GB/s a rank moves (all-reduce: 2 (n-1)/n of the
 * bytes, all-to-all: (n-1)/n), CPU us, CPU us of a memcpy of the same bytes. */
#include "lib/base/clock.h"
#include "worker/layout/local.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALLS       100u
#define CALLS_LEAST 5u
#define MOVED       (64u << 20)

static const size_t sizes[] = {1u << 10, 4u << 10, 16u << 10, 64u << 10, 256u << 10,
                               1u << 20, 4u << 20, 16u << 20, 64u << 20};
#define SIZES (sizeof sizes / sizeof *sizes)

enum kind { ALL_REDUCE, ALL_TO_ALL };
struct job {
    enum kind kind;
    uint32_t ranks;
};

static int order(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static double copy_us(size_t bytes)
{
    char *from = malloc(bytes), *to = malloc(bytes);
    uint64_t best = UINT64_MAX;
    memset(from, 1, bytes);
    memset(to, 2, bytes);
    for (int i = 0; i < 20; i++) {
        uint64_t t = clock_thread_cpu_ns();
        memcpy(to, from, bytes);
        __asm__ volatile("" ::"r"(to) : "memory");
        t = clock_thread_cpu_ns() - t;
        best = t < best ? t : best;
    }
    free(from);
    free(to);
    return (double)best / 1e3;
}

static int call(struct comm *c, enum kind kind, float *x, float *y, size_t bytes, struct err *e)
{
    uint32_t n = comm_ranks(c);
    size_t each[COMM_RANKS_MAX];
    if (kind == ALL_REDUCE)
        return comm_all_reduce(c, x, bytes / sizeof *x, e);
    for (uint32_t r = 0; r < n; r++)
        each[r] = bytes / n / 64 * 64;
    return comm_all_to_all(c, x, each, y, each, e);
}

/* About as many bytes in all, a few at least. */
static uint32_t calls_of(size_t bytes)
{
    size_t n = MOVED / bytes;
    return n > CALLS ? CALLS : n < CALLS_LEAST ? CALLS_LEAST : (uint32_t)n;
}

static int run_size(struct comm *c, enum kind kind, size_t bytes, struct err *e)
{
    uint32_t n = comm_ranks(c), calls = calls_of(bytes);
    uint64_t ns[CALLS], cpu;
    float *x = calloc(1, bytes), *y = calloc(1, bytes);
    int rc = x && y ? comm_barrier(c, e) : err_set(e, 12, "no memory");
    rc = rc ? rc : call(c, kind, x, y, bytes, e); /* memory is touched */
    cpu = clock_thread_cpu_ns();
    for (uint32_t i = 0; i < calls && !rc; i++) {
        uint64_t t = clock_mono_ns();
        rc = call(c, kind, x, y, bytes, e);
        ns[i] = clock_mono_ns() - t;
    }
    cpu = clock_thread_cpu_ns() - cpu;
    free(x);
    free(y);
    if (rc || comm_rank(c))
        return rc;
    qsort(ns, calls, sizeof *ns, order);
    double us = (double)ns[calls / 2] / 1e3, moved = (double)bytes * (n - 1) / n;
    printf("| %-10s | %u | %8zu | %9.1f | %9.1f | %7.2f | %8.1f | %8.1f |\n",
           kind == ALL_REDUCE ? "all-reduce" : "all-to-all", n, bytes, us, (double)ns[0] / 1e3,
           moved * (kind == ALL_REDUCE ? 2 : 1) / us / 1e3, (double)cpu / calls / 1e3,
           copy_us(bytes));
    fflush(stdout);
    return 0;
}

static int rank(struct comm *world, void *ctx, struct err *e)
{
    const struct job *j = ctx;
    int rc = 0;
    for (size_t i = 0; i < SIZES && !rc; i++)
        rc = run_size(world, j->kind, sizes[i], e);
    return rc;
}

int main(void)
{
    printf(
        "| collective | ranks | bytes | us, median | us, best | GB/s | CPU us | memcpy, CPU us |\n"
        "|---|---|---|---|---|---|---|---|\n");
    for (enum kind k = ALL_REDUCE; k <= ALL_TO_ALL; k++)
        for (uint32_t n = 2; n <= 8; n *= 2) {
            struct job j = {k, n};
            struct err e = {0};
            if (local_run(n, rank, &j, &e)) {
                fprintf(stderr, "comm: %s\n", e.msg);
                return 1;
            }
        }
    return 0;
}
