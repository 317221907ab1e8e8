/* The driver behind gpu.h. Device code is embedded (blob.h): machine code for sm_80 and sm_90, and
 * PTX that newer devices translate. */
#include "kernels/cuda/blob.h"
#include "kernels/cuda/driver_abi.h"
#include "kernels/cuda/launch.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    void *library;
    char why[256]; /* there is none */
#define DECLARE(name, symbol, args) cu_result(*name) args;
    DRIVER_FUNCTIONS(DECLARE)
#undef DECLARE
} cu;

struct allocation {
    cu_ptr at;
    uint64_t bytes; /* a multiple of the granularity */
    cu_mem_handle handle;
    bool kept;
    void *saved; /* of a kept one that sleeps */
};

struct loaded_kernel {
    char name[64];
    cu_kernel kernel;
    uint32_t shared_bytes; /* asked for so far */
};

#define ALLOCATIONS_MAX 8192
#define KERNELS_MAX     128
#define EVENTS_MAX      4096

struct gpu_event {
    cu_event event;
};
struct gpu_graph {
    cu_graph_exec exec;
};

struct driver_gpu {
    struct gpu gpu;
    cu_device device;
    cu_context context;
    cu_stream streams[GPU_STREAMS];
    cu_library libraries[BLOBS_MAX];
    struct loaded_kernel kernels[KERNELS_MAX];
    struct allocation allocations[ALLOCATIONS_MAX];
    struct gpu_event *events[EVENTS_MAX];
    uint32_t n_libraries, n_kernels, n_allocations, n_events;
    struct cu_mem_prop prop;
    size_t granularity;
    bool asleep;
};

static struct driver_gpu *of(struct gpu *g)
{
    return (struct driver_gpu *)(void *)g;
}

static int failed(struct err *e, cu_result r, const char *what)
{
    const char *text = "unknown error";
    if (cu.error_string)
        (void)cu.error_string(r, &text);
    int code = r == CU_OUT_OF_MEMORY ? ENOMEM : EIO;
    return err_set(e, code, "GPU: %s failed: %s (CUDA error %d)", what, text, r);
}

/* ---- the driver ---- */

static void load_driver(void)
{
    cu.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!cu.library) {
        snprintf(cu.why, sizeof cu.why,
                 "no NVIDIA driver on this machine (libcuda.so.1 was not found)");
        return;
    }
#define LOAD(name, symbol, args)                                                                   \
    *(void **)(void *)&cu.name = dlsym(cu.library, #symbol);                                       \
    if (!cu.name)                                                                                  \
        snprintf(cu.why, sizeof cu.why, "the NVIDIA driver is too old: it has no %s", #symbol);
    DRIVER_FUNCTIONS(LOAD)
#undef LOAD
    cu_result r = cu.why[0] ? 0 : cu.init(0);
    if (r)
        snprintf(cu.why, sizeof cu.why, "the NVIDIA driver does not start (CUDA error %d)", r);
}

static bool driver_ready(struct err *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, load_driver);
    if (cu.why[0])
        (void)err_set(e, ENODEV, "%s", cu.why);
    return !cu.why[0];
}

uint32_t gpu_count(void)
{
    int n = 0;
    return driver_ready(NULL) && cu.device_count(&n) == 0 && n > 0 ? (uint32_t)n : 0;
}

/* ---- memory ---- */

static int back(struct driver_gpu *d, struct allocation *a, struct err *e)
{
    cu_result r = cu.create(&a->handle, a->bytes, &d->prop, 0);
    if (r)
        return failed(e, r, "cuMemCreate");
    struct cu_mem_access access = {{CU_MEM_DEVICE, d->device}, CU_MEM_READ_WRITE};
    r = cu.map(a->at, a->bytes, 0, a->handle, 0);
    if (r == 0) {
        r = cu.access(a->at, a->bytes, &access, 1);
        if (r)
            (void)cu.unmap(a->at, a->bytes);
    }
    if (r) {
        (void)cu.release(a->handle);
        return failed(e, r, "mapping memory");
    }
    return 0;
}

static void unback(struct allocation *a)
{
    (void)cu.unmap(a->at, a->bytes);
    (void)cu.release(a->handle);
}

static int driver_alloc(struct gpu *g, uint64_t bytes, bool kept, gpu_ptr *out, struct err *e)
{
    struct driver_gpu *d = of(g);
    if (bytes == 0 || bytes > g->info.memory_bytes)
        return err_set(e, ENOMEM, "GPU memory: %llu bytes asked for, the device has %llu",
                       (unsigned long long)bytes, (unsigned long long)g->info.memory_bytes);
    if (d->n_allocations == ALLOCATIONS_MAX || d->asleep)
        return err_set(e, ENOMEM, "GPU memory: %s",
                       d->asleep ? "the device sleeps" : "too many allocations");
    struct allocation a = {.kept = kept};
    a.bytes = (bytes + d->granularity - 1) / d->granularity * d->granularity;
    cu_result r = cu.reserve(&a.at, a.bytes, 0, 0, 0);
    if (r)
        return failed(e, r, "cuMemAddressReserve");
    int rc = back(d, &a, e);
    if (rc == 0) {
        r = cu.set_bytes(a.at, 0, a.bytes, d->streams[GPU_COMPUTE]);
        r = r ? r : cu.stream_sync(d->streams[GPU_COMPUTE]); /* other streams may use it at once */
        rc = r ? failed(e, r, "clearing memory") : 0;
        if (rc < 0)
            unback(&a);
    }
    if (rc < 0) {
        (void)cu.unreserve(a.at, a.bytes);
        return rc;
    }
    d->allocations[d->n_allocations++] = a;
    *out = a.at;
    return 0;
}

static void drop(struct driver_gpu *d, uint32_t i)
{
    struct allocation *a = &d->allocations[i];
    if (!d->asleep)
        unback(a);
    (void)cu.unreserve(a->at, a->bytes);
    free(a->saved);
    *a = d->allocations[--d->n_allocations];
}

static void driver_release(struct gpu *g, gpu_ptr p)
{
    struct driver_gpu *d = of(g);
    for (uint32_t i = 0; i < d->n_allocations; i++)
        if (d->allocations[i].at == p) {
            (void)cu.stream_sync(d->streams[GPU_COMPUTE]);
            (void)cu.stream_sync(d->streams[GPU_COPY]);
            drop(d, i);
            return;
        }
}

static int save(struct driver_gpu *d, struct allocation *a, struct err *e)
{
    a->saved = malloc(a->bytes);
    if (!a->saved)
        return err_set(e, ENOMEM, "no host memory to keep %llu bytes of a sleeping GPU",
                       (unsigned long long)a->bytes);
    cu_result r = cu.copy_out(a->saved, a->at, a->bytes, d->streams[GPU_COPY]);
    if (r == 0)
        r = cu.stream_sync(d->streams[GPU_COPY]);
    return r ? failed(e, r, "saving memory") : 0;
}

static uint64_t driver_room(struct gpu *g)
{
    size_t left = 0, total = 0;
    (void)g;
    return cu.memory_info(&left, &total) ? 0 : left;
}

static int driver_sleep(struct gpu *g, uint64_t *freed_bytes, struct err *e)
{
    struct driver_gpu *d = of(g);
    *freed_bytes = 0;
    if (d->asleep)
        return 0;
    int rc = g->ops->sync(g, GPU_COMPUTE, e);
    for (uint32_t i = 0; rc == 0 && i < d->n_allocations; i++)
        if (d->allocations[i].kept)
            rc = save(d, &d->allocations[i], e);
    for (uint32_t i = 0; i < d->n_allocations; i++) {
        struct allocation *a = &d->allocations[i];
        if (rc < 0) {
            free(a->saved);
            a->saved = NULL;
            continue;
        }
        unback(a);
        *freed_bytes += a->bytes;
    }
    d->asleep = rc == 0;
    return rc;
}

static int driver_wake(struct gpu *g, struct err *e)
{
    struct driver_gpu *d = of(g);
    uint32_t n = 0;
    int rc = 0;
    if (!d->asleep)
        return 0;
    while (rc == 0 && n < d->n_allocations) {
        rc = back(d, &d->allocations[n], e);
        n += rc == 0;
    }
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        struct allocation *a = &d->allocations[i];
        cu_result r = a->saved ? cu.copy_in(a->at, a->saved, a->bytes, d->streams[GPU_COPY])
                               : cu.set_bytes(a->at, 0, a->bytes, d->streams[GPU_COPY]);
        rc = r ? failed(e, r, "restoring memory") : 0;
    }
    if (rc == 0)
        rc = g->ops->sync(g, GPU_COPY, e);
    for (uint32_t i = 0; i < n; i++) {
        if (rc < 0) {
            unback(&d->allocations[i]);
            continue;
        }
        free(d->allocations[i].saved);
        d->allocations[i].saved = NULL;
    }
    d->asleep = rc < 0;
    return rc;
}

/* ---- work ---- */

static int driver_to_device(struct gpu *g, enum gpu_stream s, gpu_ptr to, const void *from,
                            uint64_t bytes, struct err *e)
{
    cu_result r = cu.copy_in(to, from, bytes, of(g)->streams[s]);
    return r ? failed(e, r, "a copy to the device") : 0;
}

static int driver_to_host(struct gpu *g, enum gpu_stream s, void *to, gpu_ptr from, uint64_t bytes,
                          struct err *e)
{
    cu_result r = cu.copy_out(to, from, bytes, of(g)->streams[s]);
    return r ? failed(e, r, "a copy from the device") : 0;
}

static int driver_copy(struct gpu *g, enum gpu_stream s, gpu_ptr to, gpu_ptr from, uint64_t bytes,
                       struct err *e)
{
    cu_result r = cu.copy(to, from, bytes, of(g)->streams[s]);
    return r ? failed(e, r, "a copy on the device") : 0;
}

static int driver_pin(struct gpu *g, void *p, uint64_t bytes, struct err *e)
{
    (void)g;
    cu_result r = cu.host_register(p, bytes, 0);
    return r ? failed(e, r, "pinning host memory") : 0;
}

static void driver_unpin(struct gpu *g, void *p)
{
    (void)g;
    (void)cu.host_unregister(p);
}

static int driver_zero(struct gpu *g, enum gpu_stream s, gpu_ptr p, uint64_t bytes, struct err *e)
{
    cu_result r = cu.set_bytes(p, 0, bytes, of(g)->streams[s]);
    return r ? failed(e, r, "clearing memory") : 0;
}

static int find_kernel(struct driver_gpu *d, const char *name, struct loaded_kernel **out,
                       struct err *e)
{
    for (uint32_t i = 0; i < d->n_kernels; i++)
        if (strcmp(d->kernels[i].name, name) == 0) {
            *out = &d->kernels[i];
            return 0;
        }
    cu_kernel k = NULL;
    for (uint32_t i = 0; i < d->n_libraries && !k; i++)
        if (cu.library_kernel(&k, d->libraries[i], name))
            k = NULL;
    if (!k || d->n_kernels == KERNELS_MAX)
        return err_set(e, ENOENT, "this build has no GPU kernel %s", name);
    *out = &d->kernels[d->n_kernels++];
    **out = (struct loaded_kernel){.kernel = k, .shared_bytes = 48u << 10};
    snprintf((*out)->name, sizeof(*out)->name, "%s", name);
    return 0;
}

static int driver_launch(struct gpu *g, enum gpu_stream s, const struct gpu_launch *l,
                         struct err *e)
{
    struct driver_gpu *d = of(g);
    struct loaded_kernel *k = NULL;
    int rc = find_kernel(d, l->kernel, &k, e);
    if (rc < 0)
        return rc;
    if (l->shared_bytes > k->shared_bytes) {
        cu_result r = cu.kernel_set(CU_FUNC_SHARED, (int)l->shared_bytes, k->kernel, d->device);
        if (r)
            return failed(e, r, l->kernel);
        k->shared_bytes = l->shared_bytes;
    }
    void *args[] = {(void *)(uintptr_t)l->args};
    cu_result r = cu.launch(k->kernel, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1],
                            l->block[2], l->shared_bytes, d->streams[s], args, NULL);
    return r ? failed(e, r, l->kernel) : 0;
}

static int driver_sync(struct gpu *g, enum gpu_stream s, struct err *e)
{
    cu_result r = cu.stream_sync(of(g)->streams[s]);
    return r ? failed(e, r, "work on the device") : 0;
}

static void *driver_stream(struct gpu *g, enum gpu_stream s)
{
    return of(g)->streams[s];
}

static int driver_event_new(struct gpu *g, struct gpu_event **out, struct err *e)
{
    struct driver_gpu *d = of(g);
    cu_event event;
    if (d->n_events == EVENTS_MAX)
        return err_set(e, ENOMEM, "GPU: too many events");
    cu_result r = cu.event_new(&event, CU_EVENT_NO_TIMING);
    if (r)
        return failed(e, r, "cuEventCreate");
    struct gpu_event *ev = xmalloc(sizeof *ev);
    ev->event = event;
    d->events[d->n_events++] = *out = ev;
    return 0;
}

static int driver_event_record(struct gpu *g, struct gpu_event *ev, enum gpu_stream s,
                               struct err *e)
{
    cu_result r = cu.event_record(ev->event, of(g)->streams[s]);
    return r ? failed(e, r, "cuEventRecord") : 0;
}

static int driver_event_wait(struct gpu *g, struct gpu_event *ev, enum gpu_stream s, struct err *e)
{
    cu_result r = cu.stream_wait(of(g)->streams[s], ev->event, 0);
    return r ? failed(e, r, "cuStreamWaitEvent") : 0;
}

static int driver_event_done(struct gpu *g, struct gpu_event *ev, struct err *e)
{
    (void)g;
    cu_result r = cu.event_query(ev->event);
    return r == CU_NOT_READY ? 0 : r ? failed(e, r, "work on the device") : 1;
}

static int driver_capture_begin(struct gpu *g, struct err *e)
{
    cu_result r = cu.capture_begin(of(g)->streams[GPU_COMPUTE], CU_CAPTURE_THREAD_LOCAL);
    return r ? failed(e, r, "cuStreamBeginCapture") : 0;
}

static int driver_capture_end(struct gpu *g, struct gpu_graph **out, struct err *e)
{
    cu_graph graph = NULL;
    cu_graph_exec exec;
    cu_result r = cu.capture_end(of(g)->streams[GPU_COMPUTE], &graph);
    if (r || !graph)
        return failed(e, r, "cuStreamEndCapture");
    r = cu.graph_new(&exec, graph, 0);
    (void)cu.graph_free(graph);
    if (r)
        return failed(e, r, "cuGraphInstantiate");
    *out = xmalloc(sizeof **out);
    (*out)->exec = exec;
    return 0;
}

static int driver_graph_run(struct gpu *g, struct gpu_graph *graph, struct err *e)
{
    cu_result r = cu.graph_run(graph->exec, of(g)->streams[GPU_COMPUTE]);
    return r ? failed(e, r, "cuGraphLaunch") : 0;
}

static void driver_graph_free(struct gpu *g, struct gpu_graph *graph)
{
    (void)g;
    if (graph)
        (void)cu.graph_exec_free(graph->exec);
    free(graph);
}

/* ---- start and end ---- */

static void driver_close(struct gpu *g)
{
    struct driver_gpu *d = of(g);
    for (int s = 0; s < GPU_STREAMS; s++)
        if (d->streams[s])
            (void)cu.stream_sync(d->streams[s]);
    while (d->n_allocations)
        drop(d, d->n_allocations - 1);
    for (uint32_t i = 0; i < d->n_events; i++) {
        (void)cu.event_free(d->events[i]->event);
        free(d->events[i]);
    }
    for (uint32_t i = 0; i < d->n_libraries; i++)
        (void)cu.library_unload(d->libraries[i]);
    for (int s = 0; s < GPU_STREAMS; s++)
        if (d->streams[s])
            (void)cu.stream_free(d->streams[s]);
    if (d->context)
        (void)cu.context_release(d->device);
    free(d);
}

static int driver_here(struct gpu *g, struct err *e)
{
    cu_result r = cu.context_set(of(g)->context);
    return r ? failed(e, r, "cuCtxSetCurrent") : 0;
}

static const struct gpu_ops driver_ops = {
    .close = driver_close,
    .here = driver_here,
    .alloc = driver_alloc,
    .release = driver_release,
    .to_device = driver_to_device,
    .to_host = driver_to_host,
    .copy = driver_copy,
    .pin = driver_pin,
    .unpin = driver_unpin,
    .zero = driver_zero,
    .launch = driver_launch,
    .sync = driver_sync,
    .event_new = driver_event_new,
    .event_record = driver_event_record,
    .event_wait = driver_event_wait,
    .event_done = driver_event_done,
    .capture_begin = driver_capture_begin,
    .capture_end = driver_capture_end,
    .graph_run = driver_graph_run,
    .graph_free = driver_graph_free,
    .room = driver_room,
    .sleep = driver_sleep,
    .wake = driver_wake,
    .stream = driver_stream,
};

static int attribute(const struct driver_gpu *d, int which)
{
    int v = 0;
    return cu.device_attribute(&v, which, d->device) ? 0 : v;
}

static int read_info(struct driver_gpu *d, struct err *e)
{
    struct gpu_info *i = &d->gpu.info;
    size_t total = 0, unused = 0;
    cu_result r = cu.device_name(i->name, (int)sizeof i->name, d->device);
    if (r == 0)
        r = cu.device_memory(&total, d->device);
    if (r)
        return failed(e, r, "reading the device's properties");
    (void)cu.memory_info(&unused, &total);
    i->memory_bytes = total;
    i->free_bytes = unused;
    i->sm_count = (uint32_t)attribute(d, CU_ATTR_SM_COUNT);
    i->compute = (uint32_t)(attribute(d, CU_ATTR_MAJOR) * 10 + attribute(d, CU_ATTR_MINOR));
    i->shared_block_bytes = (uint64_t)attribute(d, CU_ATTR_SHARED_OPTIN);
    if (i->compute < 80)
        return err_set(e, ENODEV, "%s has compute capability %u.%u; 8.0 or later is needed",
                       i->name, i->compute / 10, i->compute % 10);
    if (!attribute(d, CU_ATTR_VMM))
        return err_set(e, ENODEV, "%s does not offer virtual memory management", i->name);
    return 0;
}

static int load_kernels(struct driver_gpu *d, struct err *e)
{
    for (uint32_t i = 0; i < blob_count; i++) {
        cu_result r =
            cu.library_load(&d->libraries[i], blobs[i].from, NULL, NULL, 0, NULL, NULL, 0);
        if (r)
            return failed(e, r,
                          r == CU_NO_BINARY ? "loading kernels (none fits this device)"
                                            : "loading kernels");
        d->n_libraries++;
    }
    return 0;
}

static int start(struct driver_gpu *d, struct err *e)
{
    cu_result r = cu.context_retain(&d->context, d->device);
    if (r == 0)
        r = cu.context_set(d->context);
    for (int s = 0; s < GPU_STREAMS && r == 0; s++)
        r = cu.stream_new(&d->streams[s], CU_STREAM_NON_BLOCKING);
    if (r)
        return failed(e, r, "starting the device");
    int rc = read_info(d, e);
    if (rc < 0)
        return rc;
    d->prop = (struct cu_mem_prop){.type = CU_MEM_PINNED,
                                   .handle_types = CU_MEM_HANDLE_FD,
                                   .location = {CU_MEM_DEVICE, d->device}};
    r = cu.granularity(&d->granularity, &d->prop, CU_MEM_GRANULARITY_MINIMUM);
    if (r || !d->granularity)
        return failed(e, r, "cuMemGetAllocationGranularity");
    return load_kernels(d, e);
}

int gpu_open(uint32_t index, struct gpu **out, struct err *e)
{
    if (!driver_ready(e))
        return -ENODEV;
    if (!blob_count)
        return err_set(e, ENODEV,
                       "this build holds no GPU kernels: build it again after `make cuda`");
    struct driver_gpu *d = xcalloc(1, sizeof *d);
    d->gpu.ops = &driver_ops;
    cu_result r = cu.device_get(&d->device, (int)index);
    int rc = r ? err_set(e, ENODEV, "there is no GPU %u on this machine (there are %u)", index,
                         gpu_count())
               : start(d, e);
    if (rc < 0) {
        driver_close(&d->gpu);
        return rc;
    }
    *out = &d->gpu;
    return 0;
}

void gpu_close(struct gpu *g)
{
    if (!g)
        return;
    gpu_gemm_fini(g);
    g->ops->close(g);
}
