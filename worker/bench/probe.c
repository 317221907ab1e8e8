#include "worker/bench/probe.h"

#include "lib/base/clock.h"

#include <errno.h>
#include <immintrin.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define THREADS_MAX 64u
#define MULTIPLY    16000000u /* turns of the loop: a tenth of a second */
#define READ_LEAST  (1ull << 30)
#define CHAINS      12 /* independent, to cover the latency of an instruction */
#define UNROLL      _Pragma("GCC unroll 12") /* every loop over sums: they stay in registers */

struct job {
    const uint8_t *from; /* NULL: multiply */
    uint64_t bytes, passes;
    double units;
    uint64_t cpu_ns;
    pthread_t thread;
};

/* Four streams at once, as the engine's products of one row read four groups of rows. */
static void read_all(const uint8_t *p, uint64_t bytes)
{
    uint64_t quarter = bytes / 4;
    for (int s = 0; s < 4; s++)
        __builtin_prefetch(p + quarter * (unsigned)s);
    __m128i a[4] = {_mm_setzero_si128()};
    for (uint64_t i = 0; i + 64 <= quarter; i += 64)
        UNROLL
    for (int s = 0; s < 4; s++) {
        const __m128i *q = (const __m128i *)(const void *)(p + quarter * (unsigned)s + i);
        for (int k = 0; k < 4; k++)
            a[s] = _mm_add_epi32(a[s], _mm_load_si128(q + k));
    }
    UNROLL
    for (int s = 0; s < 4; s++)
        __asm__ volatile("" ::"x"(a[s]));
}

__attribute__((target("avx512f"))) static void read_all_512(const uint8_t *p, uint64_t bytes)
{
    uint64_t quarter = bytes / 4;
    __m512i a[4] = {_mm512_setzero_si512()};
    for (uint64_t i = 0; i + 64 <= quarter; i += 64)
        UNROLL
    for (int s = 0; s < 4; s++)
        a[s] = _mm512_add_epi32(a[s],
                                _mm512_load_si512((const void *)(p + quarter * (unsigned)s + i)));
    UNROLL
    for (int s = 0; s < 4; s++)
        __asm__ volatile("" ::"v"(a[s]));
}

__attribute__((target("avx512f,avx512vnni"))) static double multiply_512(void)
{
    __m512i a[CHAINS], x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(5);
    UNROLL
    for (int i = 0; i < CHAINS; i++)
        a[i] = _mm512_set1_epi32(i);
    for (uint32_t n = 0; n < MULTIPLY; n++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++)
            a[i] = _mm512_dpbusd_epi32(a[i], x, y);
        __asm__ volatile("" : "+v"(a[0]));
    }
    UNROLL
    for (int i = 0; i < CHAINS; i++)
        __asm__ volatile("" ::"v"(a[i]));
    return (double)MULTIPLY * CHAINS * 64 * 2;
}

__attribute__((target("avx2"))) static double multiply_256(void)
{
    __m256i a[CHAINS], x = _mm256_set1_epi8(3), y = _mm256_set1_epi8(5);
    const __m256i one = _mm256_set1_epi16(1);
    UNROLL
    for (int i = 0; i < CHAINS; i++)
        a[i] = _mm256_set1_epi32(i);
    for (uint32_t n = 0; n < MULTIPLY; n++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++) {
            __asm__ volatile("" : "+x"(x)); /* the product is not moved out of the loop */
            a[i] = _mm256_add_epi32(a[i], _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), one));
        }
    }
    UNROLL
    for (int i = 0; i < CHAINS; i++)
        __asm__ volatile("" ::"x"(a[i]));
    return (double)MULTIPLY * CHAINS * 32 * 2;
}

static void *run_job(void *arg)
{
    struct job *j = arg;
    bool wide = __builtin_cpu_supports("avx512f");
    uint64_t cpu = clock_thread_cpu_ns();
    for (uint64_t i = 0; j->from && i < j->passes; i++)
        (wide ? read_all_512 : read_all)(j->from, j->bytes);
    if (j->from)
        j->units = (double)j->bytes * (double)j->passes;
    else if (__builtin_cpu_supports("avx512vnni"))
        j->units = multiply_512();
    else if (__builtin_cpu_supports("avx2"))
        j->units = multiply_256();
    j->cpu_ns = clock_thread_cpu_ns() - cpu;
    return NULL;
}

static int run_all(struct job *jobs, uint32_t n, struct probe_rate *out, struct err *e)
{
    uint64_t wall = clock_mono_ns(), cpu = 0;
    double units = 0;
    uint32_t started = 1;
    int rc = 0;
    for (; started < n && !rc; started += !rc)
        rc = pthread_create(&jobs[started].thread, NULL, run_job, &jobs[started]);
    if (!rc)
        run_job(&jobs[0]);
    for (uint32_t i = 1; i < started; i++)
        pthread_join(jobs[i].thread, NULL);
    if (rc)
        return err_set(e, rc, "can't start a thread: %s", strerror(rc));
    wall = clock_mono_ns() - wall;
    for (uint32_t i = 0; i < n; i++) {
        units += jobs[i].units;
        cpu += jobs[i].cpu_ns;
    }
    *out = (struct probe_rate){units * 1e9 / (double)wall, units * 1e9 / (double)(cpu + !cpu)};
    return 0;
}

int probe_read(uint64_t bytes, uint32_t threads, struct probe_rate *out, struct err *e)
{
    struct job jobs[THREADS_MAX] = {{0}};
    uint64_t part = bytes / threads / 256 * 256;
    if (threads < 1 || threads > THREADS_MAX || !part)
        return err_set(e, EINVAL, "%u threads can't read %llu bytes", threads,
                       (unsigned long long)bytes);
    uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return err_set(e, ENOMEM, "no memory to read");
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 1, bytes);
    for (uint32_t i = 0; i < threads; i++)
        jobs[i] = (struct job){
            .from = p + i * part, .bytes = part, .passes = (READ_LEAST + bytes - 1) / bytes};
    int rc = run_all(jobs, threads, out, e);
    munmap(p, bytes);
    return rc;
}

int probe_int8(uint32_t threads, struct probe_rate *out, struct err *e)
{
    struct job jobs[THREADS_MAX] = {{0}};
    if (threads < 1 || threads > THREADS_MAX)
        return err_set(e, EINVAL, "%u threads", threads);
    return run_all(jobs, threads, out, e);
}
