#include "lib/wire/crc32c.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

#define POLY      0x82f63b78u /* reflected: bit 31 is x^0 */
#define LANES_MIN 1024

static uint32_t table[256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++)
            c = c & 1 ? (c >> 1) ^ POLY : c >> 1;
        table[i] = c;
    }
}

uint32_t crc32c_portable(uint32_t crc, const void *data, size_t n)
{
    const uint8_t *p = data;
    pthread_once(&once, make_table);
    uint32_t c = ~crc;
    while (n--)
        c = table[(c ^ *p++) & 0xff] ^ (c >> 8);
    return ~c;
}

#if defined(__x86_64__)
/* a * b mod POLY. */
static uint32_t gf_mul(uint32_t a, uint32_t b)
{
    uint32_t p = 0;
    for (uint32_t m = 1u << 31; m; m >>= 1) {
        if (a & m)
            p ^= b;
        b = b & 1 ? (b >> 1) ^ POLY : b >> 1;
    }
    return p;
}

/* x^(8n) mod POLY: what a register is multiplied by when n zero bytes pass. */
static uint32_t gf_shift(size_t n)
{
    uint32_t r = 1u << 31, sq = 1u << 23;
    for (; n; n >>= 1) {
        if (n & 1)
            r = gf_mul(r, sq);
        sq = gf_mul(sq, sq);
    }
    return r;
}

__attribute__((target("sse4.2"))) static uint64_t lane(uint64_t c, const uint8_t *p, size_t n)
{
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        c = _mm_crc32_u64(c, w);
    }
    for (; n; n--, p++)
        c = _mm_crc32_u8((uint32_t)c, *p);
    return c;
}

/* One instruction has a latency of three cycles and a throughput of one, so three independent lanes
 * fill the unit; the registers are joined by the linearity of the CRC. */
__attribute__((target("sse4.2"))) static uint32_t crc_hw(uint32_t c0, const uint8_t *p, size_t n)
{
    static _Thread_local size_t known_len;
    static _Thread_local uint32_t known_shift;
    uint64_t a = c0;
    if (n >= LANES_MIN) {
        size_t len = n / 24 * 8;
        uint64_t b = 0, c = 0;
        for (size_t i = 0; i < len; i += 8) {
            uint64_t w[3];
            memcpy(&w[0], p + i, 8);
            memcpy(&w[1], p + len + i, 8);
            memcpy(&w[2], p + 2 * len + i, 8);
            a = _mm_crc32_u64(a, w[0]);
            b = _mm_crc32_u64(b, w[1]);
            c = _mm_crc32_u64(c, w[2]);
        }
        if (known_len != len) {
            known_len = len;
            known_shift = gf_shift(len);
        }
        a = gf_mul((uint32_t)a, known_shift) ^ (uint32_t)b;
        a = gf_mul((uint32_t)a, known_shift) ^ (uint32_t)c;
        p += 3 * len;
        n -= 3 * len;
    }
    return (uint32_t)lane(a, p, n);
}
#endif

uint32_t crc32c(uint32_t crc, const void *data, size_t n)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return ~crc_hw(~crc, data, n);
#endif
    return crc32c_portable(crc, data, n);
}
