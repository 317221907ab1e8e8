/* le.h: little-endian loads and stores at any alignment, and bounded cursors over them. A cursor
 * that ran past its end stays failed, so a decoder checks once at the end. */
#pragma once
#include "lib/base/str.h"

#include <string.h>

static inline void le_put16(void *p, uint16_t v)
{
    memcpy(p, &v, 2);
}
static inline void le_put32(void *p, uint32_t v)
{
    memcpy(p, &v, 4);
}
static inline void le_put64(void *p, uint64_t v)
{
    memcpy(p, &v, 8);
}
static inline uint16_t le_get16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}
static inline uint32_t le_get32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}
static inline uint64_t le_get64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}
static inline float le_getf32(const void *p)
{
    float v;
    memcpy(&v, p, 4);
    return v;
}
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "Baton's wire is little-endian");

struct le_reader {
    const unsigned char *p, *end;
    bool failed;
};
static inline struct le_reader le_reader(const void *p, size_t n)
{
    return (struct le_reader){p, (const unsigned char *)p + n, false};
}
/* The next n bytes, or NULL (and failed) when fewer remain. */
static inline const void *le_take(struct le_reader *r, size_t n)
{
    if (r->failed || (size_t)(r->end - r->p) < n) {
        r->failed = true;
        return NULL;
    }
    const void *p = r->p;
    r->p += n;
    return p;
}
static inline uint8_t le_u8(struct le_reader *r)
{
    const void *p = le_take(r, 1);
    return p ? *(const uint8_t *)p : 0;
}
static inline uint16_t le_u16(struct le_reader *r)
{
    const void *p = le_take(r, 2);
    return p ? le_get16(p) : 0;
}
static inline uint32_t le_u32(struct le_reader *r)
{
    const void *p = le_take(r, 4);
    return p ? le_get32(p) : 0;
}
static inline uint64_t le_u64(struct le_reader *r)
{
    const void *p = le_take(r, 8);
    return p ? le_get64(p) : 0;
}
static inline float le_f32(struct le_reader *r)
{
    const void *p = le_take(r, 4);
    return p ? le_getf32(p) : 0;
}
