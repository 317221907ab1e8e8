#include "lib/xfer/copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx2"))) static void stream_avx2(uint8_t *to, const uint8_t *from, size_t n)
{
    for (; n >= 64; n -= 64, to += 64, from += 64) {
        __m256i a = _mm256_loadu_si256((const __m256i *)from);
        __m256i b = _mm256_loadu_si256((const __m256i *)(from + 32));
        _mm256_stream_si256((__m256i *)to, a);
        _mm256_stream_si256((__m256i *)(to + 32), b);
    }
    _mm_sfence(); /* before done is sent: these stores are not ordered by themselves */
    if (n)
        memcpy(to, from, n);
}
#endif

void copy_bytes(void *restrict to, const void *restrict from, size_t n, bool stream)
{
#if defined(__x86_64__)
    if (stream && ((uintptr_t)to & 31) == 0 && __builtin_cpu_supports("avx2")) {
        stream_avx2(to, from, n);
        return;
    }
#endif
    (void)stream;
    memcpy(to, from, n);
}
