/* emu.h: runs CUDA kernels on the CPU. device.h includes it in place of the CUDA headers when the
 * compiler is not nvcc, so that every kernel source is executed by the tests as it is, without an
 * #ifdef inside a kernel.
 *
 * A block runs on one OS thread; each of its CUDA threads is a fiber. A fiber runs until it reaches
 * a barrier or a warp operation; a warp operation happens when every lane of its mask waits at it,
 * a block barrier when every thread of the block waits at it. What real hardware leaves undefined
 * is made visible: lanes that wait at different warp operations, a barrier that some threads pass
 * by, a shuffle from a lane outside the mask, shared memory that nobody wrote (it starts as NaN),
 * an asynchronous copy that is read before it was waited for (it lands at the wait), a misaligned
 * copy: each ends the program with a sentence.
 *
 * Order: $EMU_ORDER = forward | reverse | random:<seed> chooses in which order lanes and warps run;
 * a kernel whose result depends on it lacks a barrier. AddressSanitizer sees each fiber's stack.
 * $EMU_THREADS: OS threads (blocks in flight); default: as many as there are CPUs.
 *
 * Missing barriers: compiled with -fsanitize=thread, every access of a kernel calls a function, and
 * tests/kernels/cuda/race.cc stands in for ThreadSanitizer's: two accesses of which one writes and
 * that no __syncthreads or __syncwarp orders end the program. An asynchronous copy writes from the
 * moment it is asked for. One OS thread then.
 *
 * Only for x86-64 (one 20-line switch in assembly). Not for speed: about 20 ns a switch. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

/* The emulator itself is not checked for races, only what kernels do. */
#define EMU_RUNTIME __attribute__((no_sanitize_thread)) inline

#define __device__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))

struct dim3 {
    unsigned x, y, z;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};

#if defined(__SANITIZE_THREAD__)
extern "C" void emu_race_read(const void *p, size_t bytes);
extern "C" void emu_race_write(const void *p, size_t bytes);
#define EMU_READS(p, n)  emu_race_read(p, n)
#define EMU_WRITES(p, n) emu_race_write(p, n)
#define EMU_ONE_THREAD   true
#else
#define EMU_READS(p, n)  ((void)0)
#define EMU_WRITES(p, n) ((void)0)
#define EMU_ONE_THREAD   false
#endif

namespace emu
{

enum State { READY, AT_BARRIER, AT_WARP, ENDED };
enum { STACK_BYTES = 48 << 10, COPIES_MAX = 256, BLOCK_MAX = 1024, SHARED_MAX = 227 << 10 };

struct Copy { /* an asynchronous copy in flight */
    void *to;
    const void *from;
    unsigned bytes; /* the rest of 16 is zeroed */
    int group;
};

struct Lane { /* one CUDA thread */
    void *sp;
    char *stack;
    State state;
    unsigned mask; /* of the warp operation it waits at */
    int site;
    uint64_t value;
    dim3 tid;
    unsigned linear;
    unsigned barriers, warp_syncs; /* passed: of the block; of its warp since the last of those */
    Copy copies[COPIES_MAX];
    int n_copies, groups;
#if defined(__SANITIZE_ADDRESS__)
    void *fake_stack;
#endif
};

typedef void (*Body)(const void *args);

struct Kernel {
    const char *name;
    Body body;
    size_t args_bytes;
};

struct Block { /* the block that this OS thread runs */
    Lane *lanes;
    Lane *now;
    void *scheduler_sp;
    unsigned n;
    dim3 grid, block, at;
    char *shared;
    size_t shared_bytes;
    const Kernel *kernel;
    const void *args;
    uint64_t serial, launch;      /* a number of its own; that of the launch's first block */
    uint64_t *seen;               /* [n]: values of the last warp operation */
    unsigned lane_order[32];      /* within a warp */
    std::vector<unsigned> *warps; /* order of warps */
    uint64_t switches;
#if defined(__SANITIZE_ADDRESS__)
    const void *os_stack;
    size_t os_stack_bytes;
    void *os_fake_stack;
#endif
};
#if defined(__clang__)
[[clang::require_constant_initialization]]
#else
__constinit
#endif
inline thread_local Block block_now{};

[[noreturn]] inline void die(const char *what)
{
    const Block &b = block_now;
    fprintf(stderr, "emulated kernel %s, block (%u,%u,%u): %s\n", b.kernel ? b.kernel->name : "-",
            b.at.x, b.at.y, b.at.z, what);
    for (unsigned i = 0; b.lanes && i < b.n; i++)
        if (i == 0 || b.lanes[i].state != b.lanes[i - 1].state ||
            b.lanes[i].site != b.lanes[i - 1].site)
            fprintf(stderr, "  from thread %u: state %d, line %d, mask %08x\n", i, b.lanes[i].state,
                    b.lanes[i].site, b.lanes[i].mask);
    abort();
}

/* Saves the callee-saved registers on the stack in use, keeps its pointer in *save and goes on with
 * that of `to`. */
extern "C" void emu_switch(void **save, void *to);
asm(".text\n"
    ".weak emu_switch\n"
    ".type emu_switch, @function\n"
    "emu_switch:\n"
    "  push %rbp\n  push %rbx\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
    "  mov %rsp, (%rdi)\n"
    "  mov %rsi, %rsp\n"
    "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  pop %rbp\n"
    "  ret\n");

/* From a lane to the scheduler of its OS thread. */
EMU_RUNTIME void yield(bool for_ever)
{
    Lane *l = block_now.now;
    (void)for_ever;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(for_ever ? nullptr : &l->fake_stack, block_now.os_stack,
                                   block_now.os_stack_bytes);
#endif
    emu_switch(&l->sp, block_now.scheduler_sp);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(l->fake_stack, &block_now.os_stack, &block_now.os_stack_bytes);
#endif
}

EMU_RUNTIME void resume(Lane *l)
{
    block_now.now = l;
    block_now.switches++;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&block_now.os_fake_stack, l->stack, STACK_BYTES);
#endif
    emu_switch(&block_now.scheduler_sp, l->sp);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(block_now.os_fake_stack, nullptr, nullptr);
#endif
}

/* Where a lane starts. */
EMU_RUNTIME void lane_main()
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &block_now.os_stack, &block_now.os_stack_bytes);
#endif
    block_now.kernel->body(block_now.args);
    if (block_now.now->n_copies)
        die("a thread ended with asynchronous copies that nobody waited for");
    block_now.now->state = ENDED;
    yield(true);
    abort();
}

EMU_RUNTIME void barrier(int site)
{
    Lane *l = block_now.now;
    l->state = AT_BARRIER;
    l->site = site;
    yield(false);
    l->barriers++;
    l->warp_syncs = 0;
}

/* Every lane of `mask` gives a value and sees those of all: the base of shuffles, votes and matrix
 * products. The result is indexed by lane and valid until the next warp operation. */
EMU_RUNTIME const uint64_t *exchange(unsigned mask, uint64_t value, int site)
{
    Lane *l = block_now.now;
    if (!(mask >> (l->linear % 32) & 1))
        die("a lane takes part in a warp operation whose mask leaves it out");
    l->state = AT_WARP;
    l->mask = mask;
    l->site = site;
    l->value = value;
    yield(false);
    return block_now.seen + l->linear / 32 * 32;
}

/* Of the warp operations the only one that orders memory. */
EMU_RUNTIME void sync_warp(int site)
{
    (void)exchange(0xffffffffu, 0, site);
    block_now.now->warp_syncs++;
}

/* ---- the scheduler of a block ---- */

EMU_RUNTIME bool all_wait(const Lane *warp, unsigned lanes, const Lane *l)
{
    for (unsigned j = 0; j < 32; j++) {
        if (!(l->mask >> j & 1))
            continue;
        if (j >= lanes) {
            if (l->mask != 0xffffffffu)
                die("a mask names lanes that do not exist");
            continue;
        }
        if (warp[j].state == ENDED || warp[j].state == AT_BARRIER)
            die("warp operation: a lane of the mask has ended or waits at a barrier");
        if (warp[j].state != AT_WARP || warp[j].mask != l->mask || warp[j].site != l->site)
            return false;
    }
    return true;
}

EMU_RUNTIME bool release_warp_ops(Lane *warp, unsigned lanes, bool *waiting)
{
    bool released = false;
    for (unsigned i = 0; i < lanes; i++) {
        if (warp[i].state != AT_WARP)
            continue;
        *waiting = true;
        if (!all_wait(warp, lanes, &warp[i]))
            continue;
        unsigned mask = warp[i].mask;
        for (unsigned j = 0; j < lanes; j++) {
            if (!(mask >> j & 1))
                continue;
            block_now.seen[warp[j].linear] = warp[j].value;
            warp[j].state = READY;
        }
        released = true;
    }
    return released;
}

/* Until every lane of the warp has ended or waits at the block's barrier. */
EMU_RUNTIME void run_warp(unsigned w)
{
    Lane *warp = block_now.lanes + w * 32;
    unsigned lanes = std::min(32u, block_now.n - w * 32);
    for (;;) {
        bool ran = false, waiting = false;
        for (unsigned k = 0; k < 32; k++) {
            unsigned i = block_now.lane_order[k];
            if (i < lanes && warp[i].state == READY) {
                resume(&warp[i]);
                ran = true;
            }
        }
        bool released = release_warp_ops(warp, lanes, &waiting);
        if (!waiting)
            return;
        if (!released && !ran)
            die("deadlock: lanes of a warp wait at different operations");
    }
}

EMU_RUNTIME void start_lanes()
{
    Block &b = block_now;
    for (unsigned i = 0; i < b.n; i++) {
        Lane &l = b.lanes[i];
        l.linear = i;
        l.tid = {i % b.block.x, i / b.block.x % b.block.y, i / (b.block.x * b.block.y)};
        l.state = READY;
        l.site = 0;
        l.n_copies = l.groups = 0;
        l.barriers = l.warp_syncs = 0;
#if defined(__SANITIZE_ADDRESS__)
        __asan_unpoison_memory_region(l.stack, STACK_BYTES);
#endif
        /* Staggered, so that the lanes' frames do not all fall on the same cache sets. */
        void **sp = (void **)(l.stack + STACK_BYTES - (i % 64) * 192);
        *--sp = nullptr;
        *--sp = (void *)lane_main;
        for (int r = 0; r < 6; r++)
            *--sp = nullptr;
        l.sp = sp;
    }
}

EMU_RUNTIME void check_barrier(unsigned *ended)
{
    int site = 0;
    *ended = 0;
    for (unsigned i = 0; i < block_now.n; i++) {
        const Lane &l = block_now.lanes[i];
        if (l.state == ENDED)
            ++*ended;
        else if (!site)
            site = l.site;
        else if (site != l.site)
            die("threads of a block wait at different barriers");
    }
    if (*ended && *ended < block_now.n)
        die("a barrier that some threads of the block will never reach");
}

EMU_RUNTIME void run_block()
{
    Block &b = block_now;
    start_lanes();
    if (b.shared_bytes)
        memset(b.shared, 0xff, b.shared_bytes); /* NaN, whatever the type */
    for (;;) {
        unsigned ended;
        for (unsigned w : *b.warps)
            run_warp(w);
        check_barrier(&ended);
        if (ended == b.n)
            break;
        for (unsigned i = 0; i < b.n; i++)
            b.lanes[i].state = READY;
    }
}

/* ---- launches ---- */

struct Random {
    uint64_t s;
    unsigned below(unsigned n)
    {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        return (unsigned)(s % n);
    }
};

inline void choose_order(uint64_t block)
{
    Block &b = block_now;
    const char *order = getenv("EMU_ORDER");
    unsigned n_warps = (b.n + 31) / 32;
    b.warps->resize(n_warps);
    for (unsigned i = 0; i < 32; i++)
        b.lane_order[i] = i;
    for (unsigned i = 0; i < n_warps; i++)
        (*b.warps)[i] = i;
    if (order && strcmp(order, "reverse") == 0) {
        std::reverse(b.lane_order, b.lane_order + 32);
        std::reverse(b.warps->begin(), b.warps->end());
    } else if (order && strncmp(order, "random:", 7) == 0) {
        Random r = {strtoull(order + 7, nullptr, 10) * 0x9e3779b97f4a7c15ull + block * 2654435761u +
                    1};
        for (unsigned i = 31; i > 0; i--)
            std::swap(b.lane_order[i], b.lane_order[r.below(i + 1)]);
        for (unsigned i = n_warps - 1; i > 0 && i < n_warps; i--)
            std::swap((*b.warps)[i], (*b.warps)[r.below(i + 1)]);
    }
}

struct Launch {
    const Kernel *kernel;
    const void *args;
    dim3 grid, block;
    size_t shared_bytes;
    uint64_t serial; /* of its first block */
    std::atomic<uint64_t> next;
};

EMU_RUNTIME void place_block(uint64_t i)
{
    Block &b = block_now;
    b.serial = b.launch + i;
    b.at = {(unsigned)(i % b.grid.x), (unsigned)(i / b.grid.x % b.grid.y),
            (unsigned)(i / b.grid.x / b.grid.y)};
}

inline void launch_thread(Launch *launch)
{
    unsigned n = launch->block.x * launch->block.y * launch->block.z;
    std::vector<Lane> lanes(n);
    std::vector<uint64_t> seen((n + 31) / 32 * 32);
    std::vector<unsigned> warps;
    size_t stacks = (size_t)STACK_BYTES * n;
    char *stack = (char *)mmap(nullptr, stacks, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED)
        die("no memory for the threads' stacks");
    Block &b = block_now;
    b = Block{};
    b.lanes = lanes.data();
    b.seen = seen.data();
    b.warps = &warps;
    b.n = n;
    b.grid = launch->grid;
    b.block = launch->block;
    b.kernel = launch->kernel;
    b.launch = launch->serial;
    b.args = launch->args;
    b.shared_bytes = launch->shared_bytes;
    if (b.shared_bytes)
        b.shared = (char *)aligned_alloc(128, (b.shared_bytes + 127) / 128 * 128);
    for (unsigned i = 0; i < n; i++)
        lanes[i].stack = stack + (size_t)STACK_BYTES * i;
    uint64_t blocks = (uint64_t)b.grid.x * b.grid.y * b.grid.z;
    for (uint64_t i; (i = launch->next.fetch_add(1, std::memory_order_relaxed)) < blocks;) {
        place_block(i);
        choose_order(i);
        run_block();
    }
    free(b.shared);
    munmap(stack, stacks);
    b = Block{};
}

inline void launch(const Kernel &k, const void *args, dim3 grid, dim3 block, size_t shared_bytes)
{
    static std::atomic<uint64_t> blocks_so_far{1};
    unsigned n = block.x * block.y * block.z;
    if (n < 1 || n > BLOCK_MAX || shared_bytes > SHARED_MAX)
        die("a block is larger than the device allows");
    const char *env = getenv("EMU_THREADS");
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    uint64_t threads = EMU_ONE_THREAD ? 1
                       : env          ? strtoull(env, nullptr, 10)
                                      : std::thread::hardware_concurrency();
    threads = std::min(std::max<uint64_t>(threads, 1), std::max<uint64_t>(blocks, 1));
    Launch l = {&k, args, grid, block, shared_bytes, blocks_so_far.fetch_add(blocks), {0}};
    std::vector<std::thread> others;
    for (uint64_t i = 1; i < threads; i++)
        others.emplace_back(launch_thread, &l);
    launch_thread(&l);
    for (std::thread &t : others)
        t.join();
}

/* Kernels by name. */
inline std::map<std::string, Kernel> &registry()
{
    static std::map<std::string, Kernel> kernels;
    return kernels;
}
struct Register {
    Register(const char *name, Body body, size_t args_bytes)
    {
        registry()[name] = {name, body, args_bytes};
    }
};

/* ---- warp operations ---- */

template <class T> inline uint64_t to_bits(T v)
{
    static_assert(sizeof(T) <= 8, "warp operations carry at most 8 bytes");
    uint64_t u = 0;
    memcpy(&u, &v, sizeof v);
    return u;
}
template <class T> inline T from_bits(uint64_t u)
{
    T v;
    memcpy(&v, &u, sizeof v);
    return v;
}
inline unsigned lane_id()
{
    return block_now.now->linear % 32;
}
template <class T> inline T shuffle(int site, unsigned mask, T v, unsigned from)
{
    const uint64_t *seen = exchange(mask, to_bits(v), site);
    if (from > 31 || !(mask >> from & 1))
        die("a shuffle reads a lane outside its mask");
    return from_bits<T>(seen[from]);
}
inline unsigned vote(int site, unsigned mask, bool p)
{
    const uint64_t *seen = exchange(mask, p, site);
    unsigned r = 0;
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1)
            r |= (unsigned)seen[i] << i;
    return r;
}

/* D += A B, A 16x16 row-major, B 16x8 column-major, in the fragments of the PTX ISA's mma.m16n8k16;
 * `value` reads a 16-bit element. Products are summed in f32 in order of k. */
inline void mma_16816(int site, float c[4], const uint32_t a[4], const uint32_t b[2],
                      float (*value)(uint16_t))
{
    unsigned lane = lane_id(), g = lane / 4, t = lane % 4;
    uint32_t all_a[32][4], all_b[32][2];
    const uint64_t *s = exchange(0xffffffffu, a[0] | (uint64_t)a[1] << 32, site);
    for (int l = 0; l < 32; l++)
        memcpy(&all_a[l][0], &s[l], 8);
    s = exchange(0xffffffffu, a[2] | (uint64_t)a[3] << 32, site);
    for (int l = 0; l < 32; l++)
        memcpy(&all_a[l][2], &s[l], 8);
    s = exchange(0xffffffffu, b[0] | (uint64_t)b[1] << 32, site);
    for (int l = 0; l < 32; l++)
        memcpy(&all_b[l][0], &s[l], 8);
    for (unsigned half = 0; half < 2; half++) {
        for (unsigned q = 0; q < 2; q++) {
            unsigned row = g + 8 * half, col = 2 * t + q;
            float sum = c[2 * half + q];
            for (unsigned k = 0; k < 16; k++) {
                uint32_t wa = all_a[row % 8 * 4 + k % 8 / 2][row / 8 + 2 * (k / 8)];
                uint32_t wb = all_b[col * 4 + k % 8 / 2][k / 8];
                sum += value((uint16_t)(wa >> k % 2 * 16)) * value((uint16_t)(wb >> k % 2 * 16));
            }
            c[2 * half + q] = sum;
        }
    }
}

inline void load_matrices(int site, uint32_t r[4], const uint16_t *row, bool transposed)
{
    if ((uintptr_t)row % 16)
        die("ldmatrix: a row that is not aligned to 16 bytes");
    unsigned lane = lane_id();
    const uint64_t *rows = exchange(0xffffffffu, (uint64_t)(uintptr_t)row, site);
    for (unsigned i = 0; i < 4; i++) {
        uint16_t v[2];
        for (unsigned k = 0; k < 2; k++) {
            unsigned y = transposed ? 2 * (lane % 4) + k : lane / 4,
                     x = transposed ? lane / 4 : 2 * (lane % 4) + k;
            v[k] = ((const uint16_t *)(uintptr_t)rows[8 * i + y])[x];
        }
        r[i] = v[0] | (uint32_t)v[1] << 16;
    }
}

/* ---- asynchronous copies ---- */

EMU_RUNTIME void copy_async(void *shared, const void *global, bool ok)
{
    Lane *l = block_now.now;
    if (((uintptr_t)shared | (ok ? (uintptr_t)global : 0)) % 16)
        die("an asynchronous copy that is not aligned to 16 bytes");
    if (l->n_copies == COPIES_MAX)
        die("too many asynchronous copies in flight in one thread");
    EMU_WRITES(shared, 16);
    l->copies[l->n_copies++] = {shared, global, ok ? 16u : 0u, l->groups};
}
EMU_RUNTIME void copy_land(char *to, const char *from, unsigned bytes)
{
    EMU_READS(from, bytes);
    EMU_WRITES(to, 16);
    for (unsigned i = 0; i < 16; i++)
        to[i] = i < bytes ? from[i] : 0;
}
EMU_RUNTIME void copy_commit()
{
    block_now.now->groups++;
}
EMU_RUNTIME void copy_wait(int left)
{
    Lane *l = block_now.now;
    int k = 0;
    for (; k < l->n_copies && l->copies[k].group < l->groups - left; k++)
        copy_land((char *)l->copies[k].to, (const char *)l->copies[k].from, l->copies[k].bytes);
    std::copy(l->copies + k, l->copies + l->n_copies, l->copies);
    l->n_copies -= k;
}

template <class T, class F> EMU_RUNTIME T read_modify_write(T *p, F f)
{
    T old, now;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do
        now = f(old);
    while (!__atomic_compare_exchange(p, &old, &now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

} // namespace emu

#define threadIdx                  (emu::block_now.now->tid)
#define blockIdx                   (emu::block_now.at)
#define blockDim                   (emu::block_now.block)
#define gridDim                    (emu::block_now.grid)

#define __syncthreads()            emu::barrier(__LINE__)
#define __syncwarp()               emu::sync_warp(__LINE__)
#define __shfl_sync(mask, v, from) emu::shuffle(__LINE__, mask, v, (unsigned)(from))
#define __shfl_xor_sync(mask, v, with)                                                             \
    emu::shuffle(__LINE__, mask, v, emu::lane_id() ^ (unsigned)(with))
#define __shfl_up_sync(mask, v, by)                                                                \
    emu::shuffle(__LINE__, mask, v,                                                                \
                 emu::lane_id() >= (unsigned)(by) ? emu::lane_id() - (unsigned)(by)                \
                                                  : emu::lane_id())
#define __ballot_sync(mask, p) emu::vote(__LINE__, mask, p)
#define __any_sync(mask, p)    (emu::vote(__LINE__, mask, p) != 0)

template <class T> inline T atomicAdd(T *p, T v)
{
    return emu::read_modify_write(p, [=](T old) { return (T)(old + v); });
}
template <class T> inline T atomicMax(T *p, T v)
{
    return emu::read_modify_write(p, [=](T old) { return old > v ? old : v; });
}
inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __ffs(unsigned x)
{
    return __builtin_ffs((int)x);
}
inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
using std::max;
using std::min;
