/* Finds missing barriers in emulated kernels. Linked in ThreadSanitizer's place: code compiled with
 * -fsanitize=thread calls these functions at every access. Two accesses to the same bytes, one of
 * them a write, must be ordered: in shared memory by a barrier of the block, or by one of the warp
 * when both are of it; in device memory likewise, and between blocks of a launch nothing orders.
 *
 * Exact for what runs: a time is (run of a block, barriers passed, warp, __syncwarps passed since,
 * lane), kept of the last write and of the reads since for every two bytes. Not followed: atomic
 * operations, and what launches of different streams do to each other. */
#include "kernels/cuda/emu.h"

#include <dlfcn.h>

namespace
{

enum : uint64_t { MANY_BLOCKS = 1, MANY_WARPS = 2, MANY_LANES = 4 }; /* of reads */

struct Time {
    uint64_t serial, barriers, warp, syncs, lane, many;
};

uint64_t pack(const Time &t)
{
    return t.serial << 40 | t.barriers << 24 | t.syncs << 13 | t.warp << 8 | t.lane << 3 | t.many;
}
Time unpack(uint64_t v)
{
    return {v >> 40, v >> 24 & 0xffff, v >> 8 & 31, v >> 13 & 0x7ff, v >> 3 & 31, v & 7};
}

struct Cell { /* of two bytes; 0: none yet */
    uint64_t write, reads;
};

struct Region {
    uintptr_t from, to;
    Cell *cells;
};
std::vector<Region> memory; /* the device's */
Cell shared_cells[emu::SHARED_MAX / 2];
size_t last;

Time now()
{
    const emu::Lane &l = *emu::block_now.now;
    Time t = {emu::block_now.serial, l.barriers, l.linear / 32, l.warp_syncs, l.linear % 32, 0};
    if (t.serial >> 24 || t.barriers >> 16 || t.syncs >> 11)
        emu::die("race.cc: too many blocks or barriers to count");
    return t;
}

/* Whether nothing orders `t` after `old`. */
bool unordered(const Time &old, const Time &t, bool shared)
{
    if (old.serial != t.serial)
        return !shared && old.serial >= emu::block_now.launch;
    if (!shared && old.many & MANY_BLOCKS)
        return true;
    if (old.barriers != t.barriers)
        return false;
    if (old.warp != t.warp || old.many & MANY_WARPS)
        return true;
    return old.syncs == t.syncs && (old.lane != t.lane || old.many & MANY_LANES);
}

[[noreturn]] void race(const char *how, const Time &a, const Time &b, uintptr_t at, bool shared,
                       void *pc)
{
    char text[320];
    Dl_info info = {};
    (void)dladdr(pc, &info);
    snprintf(text, sizeof text,
             "a race: thread %u %s %s memory at %s%#zx, and no barrier orders it with thread %u "
             "(code at %#zx)",
             (unsigned)(b.warp * 32 + b.lane), how, shared ? "shared" : "device",
             shared ? "+" : "", (size_t)at, (unsigned)(a.warp * 32 + a.lane),
             (size_t)((char *)pc - (char *)info.dli_fbase));
    emu::die(text);
}

void read_cell(Cell *c, const Time &t, uintptr_t at, bool shared, void *pc)
{
    Time old = unpack(c->reads), next = t;
    if (c->write && unordered(unpack(c->write), t, shared))
        race("reads what was written in", unpack(c->write), t, at, shared, pc);
    if (c->reads && old.serial != t.serial && old.serial >= emu::block_now.launch)
        next.many |= MANY_BLOCKS;
    else if (c->reads && old.serial == t.serial)
        next.many |= old.many & MANY_BLOCKS;
    if (c->reads && old.serial == t.serial && old.barriers == t.barriers) {
        next.many |= old.many & MANY_WARPS;
        if (old.warp != t.warp)
            next.many |= MANY_WARPS;
        else if (old.syncs == t.syncs)
            next.many |= old.lane != t.lane ? (uint64_t)MANY_LANES : old.many & MANY_LANES;
    }
    c->reads = pack(next);
}

void write_cell(Cell *c, const Time &t, uintptr_t at, bool shared, void *pc)
{
    if (c->write && unordered(unpack(c->write), t, shared))
        race("writes what was written in", unpack(c->write), t, at, shared, pc);
    if (c->reads && unordered(unpack(c->reads), t, shared))
        race("writes what is read in", unpack(c->reads), t, at, shared, pc);
    c->write = pack(t);
    c->reads = 0;
}

void range(const void *p, size_t bytes, bool write, void *pc)
{
    const emu::Block &b = emu::block_now;
    if (!b.now || !bytes)
        return;
    uintptr_t from = (uintptr_t)p, at;
    bool shared = b.shared && from >= (uintptr_t)b.shared &&
                  from < (uintptr_t)b.shared + b.shared_bytes;
    Cell *cells = shared_cells;
    if (shared) {
        at = from - (uintptr_t)b.shared;
    } else {
        if (last >= memory.size() || from < memory[last].from || from >= memory[last].to)
            for (last = 0; last < memory.size(); last++)
                if (from >= memory[last].from && from < memory[last].to)
                    break;
        if (last >= memory.size())
            return; /* the thread's own stack, arguments */
        at = from - memory[last].from;
        cells = memory[last].cells;
    }
    Time t = now();
    for (uintptr_t i = at / 2; i <= (at + bytes - 1) / 2; i++)
        (write ? write_cell : read_cell)(&cells[i], t, i * 2, shared, pc);
}

} // namespace

extern "C" {

void emu_race_memory(const void *p, size_t bytes, bool live)
{
    uintptr_t from = (uintptr_t)p;
    if (live) {
        memory.push_back({from, from + bytes, (Cell *)calloc(bytes / 2 + 1, sizeof(Cell))});
        return;
    }
    for (size_t i = 0; i < memory.size(); i++)
        if (memory[i].from == from) {
            free(memory[i].cells);
            memory.erase(memory.begin() + (long)i);
            return;
        }
}

void emu_race_read(const void *p, size_t bytes)
{
    range(p, bytes, false, __builtin_return_address(0));
}
void emu_race_write(const void *p, size_t bytes)
{
    range(p, bytes, true, __builtin_return_address(0));
}

void __tsan_init(void)
{
}
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit(void)
{
}
void __tsan_vptr_update(void *, void *)
{
}
void __tsan_read_range(const void *p, size_t n)
{
    range(p, n, false, __builtin_return_address(0));
}
void __tsan_write_range(const void *p, size_t n)
{
    range(p, n, true, __builtin_return_address(0));
}
#define ACCESS(n, suffix)                                                                          \
    void __tsan_##suffix##read##n(const void *p)                                                   \
    {                                                                                              \
        range(p, n, false, __builtin_return_address(0));                                           \
    }                                                                                              \
    void __tsan_##suffix##write##n(const void *p)                                                  \
    {                                                                                              \
        range(p, n, true, __builtin_return_address(0));                                            \
    }
ACCESS(1, )
ACCESS(2, )
ACCESS(4, )
ACCESS(8, )
ACCESS(16, )
ACCESS(2, unaligned_)
ACCESS(4, unaligned_)
ACCESS(8, unaligned_)
ACCESS(16, unaligned_)

/* Of the emulator's own variables, not of kernels: their atomic operations are not instrumented. */
uint8_t __tsan_atomic8_load(const volatile uint8_t *p, int)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
uint32_t __tsan_atomic32_fetch_add(volatile uint32_t *p, uint32_t v, int)
{
    return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
}
uint64_t __tsan_atomic64_fetch_add(volatile uint64_t *p, uint64_t v, int)
{
    return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
}

} // extern "C"
