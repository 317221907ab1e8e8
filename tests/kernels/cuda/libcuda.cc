/* A stand-in for NVIDIA's libcuda.so.1, for tests only: the functions of driver_abi.h over the
 * emulation (emu.h), so that the product's own code, driver.c and all that is above it, runs where
 * there is no GPU. It is no driver: memory is the heap's, kernels run on this CPU.
 *
 * Work put on a stream is kept and carried out as late as a device may (at a synchronisation, or
 * when an event is waited for), so that host code that forgets to wait reads what was there before.
 * Host memory that was registered is read and written when a copy runs, other host memory is read
 * when it is asked for, as CUDA does. Device memory that is not backed is poisoned.
 *
 * EMU_DEVICES (8) and EMU_SMS (2) say what the machine has; EMU_BROKEN=gemm-2 takes kernels from
 * the source without its second barrier (race.cc). Threads: one, as the engine's is. */
#include "kernels/cuda/driver_abi.h"
#include "kernels/cuda/emu.h"
#include "tests/kernels/cuda/emu_device.h"

#include <deque>
#include <functional>
#include <memory>
#include <type_traits>

typedef std::function<void()> Work;

struct cu_stream_ {
    std::deque<Work> queue;
    uint64_t done, put;
    cu_graph capture;
};
struct cu_event_ {
    cu_stream stream;
    uint64_t at; /* works of the stream that must be over */
};
struct cu_graph_ {
    std::vector<Work> work;
};
struct cu_graph_exec_ {
    std::vector<Work> work;
};
struct cu_library_ {
    int unused;
};
struct cu_kernel_ {
    int unused;
};
struct cu_context_ {
    int unused;
};

/* race.cc follows what memory the device has. */
extern "C" __attribute__((weak)) void emu_race_memory(const void *p, size_t bytes, bool live)
{
    (void)p, (void)bytes, (void)live;
}

namespace
{

enum { SUCCESS = 0, INVALID = 1, NO_DEVICE = 100, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700 };
const size_t GRANULARITY = 128;
const uint64_t MEMORY = 1ull << 34;

struct Range {
    uint64_t bytes, backed; /* backed: from the start */
};
std::map<uint64_t, Range> reserved;        /* by address */
std::map<const char *, size_t> registered; /* host memory */
std::map<cu_mem_handle, size_t> handles;
std::vector<cu_stream> streams;
cu_mem_handle last_handle;
cu_context_ the_context;
cu_library_ the_library;
struct emu_counts counts;

unsigned number(const char *name, unsigned otherwise)
{
    const char *v = getenv(name);
    return v && *v ? (unsigned)strtoul(v, nullptr, 10) : otherwise;
}

void poison(uint64_t at, uint64_t bytes, bool on)
{
#if defined(__SANITIZE_ADDRESS__)
    if (on)
        __asan_poison_memory_region((void *)at, bytes);
    else
        __asan_unpoison_memory_region((void *)at, bytes);
#endif
    (void)at, (void)bytes, (void)on;
}

void run_until(cu_stream s, uint64_t at)
{
    while (s->done < at && !s->queue.empty()) {
        Work w = std::move(s->queue.front());
        s->queue.pop_front();
        w();
        s->done++;
    }
}

void run_all()
{
    for (cu_stream s : streams)
        run_until(s, UINT64_MAX);
}

cu_result put(cu_stream s, Work w)
{
    if (s->capture) {
        s->capture->work.push_back(std::move(w));
        counts.captured++;
        return SUCCESS;
    }
    s->queue.push_back(std::move(w));
    s->put++;
    return SUCCESS;
}

bool backed(cu_ptr p, size_t bytes)
{
    auto it = reserved.upper_bound(p);
    if (it == reserved.begin())
        return false;
    --it;
    return p + bytes <= it->first + it->second.backed;
}

bool is_registered(const void *p, size_t bytes)
{
    auto it = registered.upper_bound((const char *)p);
    if (it == registered.begin())
        return false;
    --it;
    return (const char *)p + bytes <= it->first + it->second;
}

} // namespace

extern "C" {

struct emu_counts emu_device_counts(void)
{
    return counts;
}

/* ---- the device ---- */

cu_result cuInit(unsigned)
{
    return SUCCESS;
}

cu_result cuDriverGetVersion(int *v)
{
    *v = 13000;
    return SUCCESS;
}

cu_result cuDeviceGetCount(int *n)
{
    *n = (int)number("EMU_DEVICES", 8);
    return SUCCESS;
}

cu_result cuDeviceGet(cu_device *d, int i)
{
    *d = i;
    return i >= 0 && i < (int)number("EMU_DEVICES", 8) ? SUCCESS : NO_DEVICE;
}

cu_result cuDeviceGetName(char *name, int n, cu_device)
{
    snprintf(name, (size_t)n, "emulation");
    return SUCCESS;
}

cu_result cuDeviceGetAttribute(int *v, int which, cu_device)
{
    *v = which == CU_ATTR_SM_COUNT       ? (int)number("EMU_SMS", 2)
         : which == CU_ATTR_MAJOR        ? 9
         : which == CU_ATTR_MINOR        ? 0
         : which == CU_ATTR_SHARED_OPTIN ? (int)emu::SHARED_MAX
                                         : which == CU_ATTR_VMM;
    return SUCCESS;
}

cu_result cuDeviceTotalMem_v2(size_t *n, cu_device)
{
    *n = MEMORY;
    return SUCCESS;
}

cu_result cuMemGetInfo_v2(size_t *left, size_t *total)
{
    *left = *total = MEMORY;
    for (auto &h : handles)
        *left -= h.second;
    return SUCCESS;
}

cu_result cuDevicePrimaryCtxRetain(cu_context *c, cu_device)
{
    *c = &the_context;
    return SUCCESS;
}

cu_result cuDevicePrimaryCtxRelease_v2(cu_device)
{
    return SUCCESS;
}

cu_result cuCtxSetCurrent(cu_context)
{
    return SUCCESS;
}

cu_result cuGetErrorString(cu_result r, const char **text)
{
    *text = r == ILLEGAL_ADDRESS ? "an address outside the device's memory" : "an error";
    return SUCCESS;
}

/* ---- memory ---- */

cu_result cuMemGetAllocationGranularity(size_t *n, const struct cu_mem_prop *, int)
{
    *n = GRANULARITY;
    return SUCCESS;
}

cu_result cuMemAddressReserve(cu_ptr *p, size_t bytes, size_t, cu_ptr, unsigned long long)
{
    void *at = bytes % GRANULARITY ? nullptr : aligned_alloc(GRANULARITY, bytes);
    if (!at)
        return CU_OUT_OF_MEMORY;
    *p = (cu_ptr)at;
    reserved[*p] = {bytes, 0};
    poison(*p, bytes, true);
    return SUCCESS;
}

cu_result cuMemAddressFree(cu_ptr p, size_t bytes)
{
    if (!reserved.count(p) || reserved[p].bytes != bytes || reserved[p].backed)
        emu::die("an address range is freed that is not reserved so, or still backed");
    reserved.erase(p);
    poison(p, bytes, false);
    free((void *)p);
    return SUCCESS;
}

cu_result cuMemCreate(cu_mem_handle *h, size_t bytes, const struct cu_mem_prop *prop,
                      unsigned long long)
{
    size_t left, total;
    (void)cuMemGetInfo_v2(&left, &total);
    if (prop->type != CU_MEM_PINNED || prop->location.type != CU_MEM_DEVICE || bytes % GRANULARITY)
        return INVALID;
    if (bytes > left)
        return CU_OUT_OF_MEMORY;
    handles[*h = ++last_handle] = bytes;
    return SUCCESS;
}

cu_result cuMemRelease(cu_mem_handle h)
{
    return handles.erase(h) ? SUCCESS : INVALID;
}

cu_result cuMemMap(cu_ptr p, size_t bytes, size_t, cu_mem_handle h, unsigned long long)
{
    if (!reserved.count(p) || reserved[p].bytes != bytes || !handles.count(h) ||
        handles[h] != bytes)
        return INVALID;
    poison(p, bytes, false);
    memset((void *)p, 0xff, bytes); /* what it held before is gone */
    return SUCCESS;
}

cu_result cuMemSetAccess(cu_ptr p, size_t bytes, const struct cu_mem_access *access, size_t n)
{
    if (!reserved.count(p) || n != 1 || access->flags != CU_MEM_READ_WRITE)
        return INVALID;
    reserved[p].backed = bytes;
    emu_race_memory((void *)p, bytes, true);
    return SUCCESS;
}

cu_result cuMemUnmap(cu_ptr p, size_t bytes)
{
    if (!reserved.count(p) || reserved[p].backed != bytes)
        return INVALID;
    run_all();
    reserved[p].backed = 0;
    emu_race_memory((void *)p, bytes, false);
    poison(p, bytes, true);
    return SUCCESS;
}

cu_result cuMemHostRegister_v2(void *p, size_t bytes, unsigned)
{
    registered[(const char *)p] = bytes;
    return SUCCESS;
}

cu_result cuMemHostUnregister(void *p)
{
    run_all();
    return registered.erase((const char *)p) ? SUCCESS : INVALID;
}

cu_result cuMemcpyHtoDAsync_v2(cu_ptr to, const void *from, size_t bytes, cu_stream s)
{
    if (!backed(to, bytes))
        return ILLEGAL_ADDRESS;
    auto held = std::make_shared<std::vector<char>>();
    if (!is_registered(from, bytes))
        held->assign((const char *)from, (const char *)from + bytes);
    return put(s, [=] {
        memcpy((void *)to, held->empty() ? from : held->data(), bytes);
        counts.copies++;
    });
}

cu_result cuMemcpyDtoHAsync_v2(void *to, cu_ptr from, size_t bytes, cu_stream s)
{
    if (!backed(from, bytes))
        return ILLEGAL_ADDRESS;
    return put(s, [=] {
        memcpy(to, (const void *)from, bytes);
        counts.copies++;
    });
}

cu_result cuMemcpyDtoDAsync_v2(cu_ptr to, cu_ptr from, size_t bytes, cu_stream s)
{
    if (!backed(from, bytes) || !backed(to, bytes))
        return ILLEGAL_ADDRESS;
    return put(s, [=] { memmove((void *)to, (const void *)from, bytes); });
}

cu_result cuMemsetD8Async(cu_ptr p, unsigned char v, size_t bytes, cu_stream s)
{
    if (!backed(p, bytes))
        return ILLEGAL_ADDRESS;
    return put(s, [=] { memset((void *)p, v, bytes); });
}

/* ---- kernels ---- */

cu_result cuLibraryLoadData(cu_library *l, const void *, void *, void **, unsigned, void *, void **,
                            unsigned)
{
    *l = &the_library;
    return SUCCESS;
}

cu_result cuLibraryUnload(cu_library)
{
    return SUCCESS;
}

cu_result cuLibraryGetKernel(cu_kernel *k, cu_library, const char *name)
{
    const char *variant = getenv("EMU_BROKEN");
    auto it = variant ? emu::registry().find(std::string(variant) + ":" + name)
                      : emu::registry().end();
    if (it == emu::registry().end())
        it = emu::registry().find(name);
    if (it == emu::registry().end())
        return NOT_FOUND;
    *k = reinterpret_cast<cu_kernel>(&it->second);
    return SUCCESS;
}

cu_result cuKernelSetAttribute(int, int bytes, cu_kernel, cu_device)
{
    return bytes <= emu::SHARED_MAX ? SUCCESS : INVALID;
}

cu_result cuLaunchKernel(cu_kernel kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                         unsigned by, unsigned bz, unsigned shared, cu_stream s, void **args,
                         void **)
{
    const emu::Kernel *k = reinterpret_cast<const emu::Kernel *>(kernel);
    const char *from = (const char *)args[0];
    auto held = std::make_shared<std::vector<char>>(from, from + k->args_bytes);
    dim3 grid = {gx, gy, gz}, block = {bx, by, bz};
    return put(s, [=] {
        emu::launch(*k, held->data(), grid, block, shared);
        counts.launches++;
    });
}

/* For libraries that put work of their own on a stream. */
cu_result cuLaunchHostFunc(cu_stream s, void (*f)(void *), void *data)
{
    return put(s, [=] { f(data); });
}

/* ---- order ---- */

cu_result cuStreamCreate(cu_stream *s, unsigned)
{
    *s = new cu_stream_{};
    streams.push_back(*s);
    return SUCCESS;
}

cu_result cuStreamDestroy_v2(cu_stream s)
{
    run_until(s, UINT64_MAX);
    streams.erase(std::find(streams.begin(), streams.end(), s));
    delete s;
    return SUCCESS;
}

cu_result cuStreamSynchronize(cu_stream s)
{
    run_until(s, UINT64_MAX);
    return SUCCESS;
}

cu_result cuStreamWaitEvent(cu_stream s, cu_event ev, unsigned)
{
    cu_event_ seen = *ev; /* what was recorded so far, not what will be */
    return put(s, [=] {
        if (seen.stream)
            run_until(seen.stream, seen.at);
    });
}

cu_result cuEventCreate(cu_event *ev, unsigned)
{
    *ev = new cu_event_{nullptr, 0};
    return SUCCESS;
}

cu_result cuEventDestroy_v2(cu_event ev)
{
    delete ev;
    return SUCCESS;
}

cu_result cuEventRecord(cu_event ev, cu_stream s)
{
    *ev = {s, s->put};
    return SUCCESS;
}

cu_result cuEventQuery(cu_event ev)
{
    if (!ev->stream || ev->stream->done >= ev->at)
        return SUCCESS;
    run_until(ev->stream, ev->stream->done + 1); /* time passes: one more piece of work */
    return CU_NOT_READY;
}

cu_result cuStreamBeginCapture_v2(cu_stream s, int)
{
    if (s->capture)
        return INVALID;
    s->capture = new cu_graph_{};
    return SUCCESS;
}

cu_result cuStreamEndCapture(cu_stream s, cu_graph *g)
{
    *g = s->capture;
    s->capture = nullptr;
    return *g ? SUCCESS : INVALID;
}

cu_result cuGraphInstantiateWithFlags(cu_graph_exec *x, cu_graph g, unsigned long long)
{
    *x = new cu_graph_exec_{g->work};
    return SUCCESS;
}

cu_result cuGraphLaunch(cu_graph_exec x, cu_stream s)
{
    counts.graphs++;
    for (const Work &w : x->work)
        (void)put(s, w);
    return SUCCESS;
}

cu_result cuGraphDestroy(cu_graph g)
{
    delete g;
    return SUCCESS;
}

cu_result cuGraphExecDestroy(cu_graph_exec x)
{
    run_all();
    delete x;
    return SUCCESS;
}

} // extern "C"

#define SAME(name, symbol, args)                                                                   \
    static_assert(std::is_same<decltype(&symbol), cu_result(*) args>::value, #symbol);
DRIVER_FUNCTIONS(SAME)
