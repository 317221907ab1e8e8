#include "kernels/cuda/emu.h"
#include "tests/kernels/cuda/emu_device.h"

#include <cerrno>
#include <deque>
#include <functional>
#include <memory>

namespace
{

struct Allocation {
    char *at;
    uint64_t bytes;
    bool kept;
    std::vector<char> saved;
};

typedef std::function<void()> Work;

struct Device;

} // namespace

struct gpu_event {
    Device *device;
    gpu_stream stream;
    uint64_t at; /* works of the stream that must be over */
};

struct gpu_graph {
    std::vector<Work> work;
};

namespace
{

struct Device {
    struct gpu gpu;
    std::deque<Work> queues[GPU_STREAMS];
    uint64_t done[GPU_STREAMS], put[GPU_STREAMS];
    std::vector<Allocation> allocations;
    std::vector<std::unique_ptr<gpu_event>> events;
    bool capturing, asleep;
    std::vector<Work> captured;
    emu_counts counts;
};

Device *of(struct gpu *g)
{
    return reinterpret_cast<Device *>(g);
}

void run_until(Device *d, int stream, uint64_t at)
{
    while (d->done[stream] < at && !d->queues[stream].empty()) {
        Work w = std::move(d->queues[stream].front());
        d->queues[stream].pop_front();
        w();
        d->done[stream]++;
    }
}

int put(Device *d, gpu_stream s, Work w)
{
    if (d->capturing && s == GPU_COMPUTE) {
        d->captured.push_back(std::move(w));
        d->counts.captured++;
        return 0;
    }
    d->queues[s].push_back(std::move(w));
    d->put[s]++;
    return 0;
}

bool known(Device *d, uint64_t p, uint64_t bytes)
{
    for (const Allocation &a : d->allocations)
        if (p >= (uint64_t)(uintptr_t)a.at && p + bytes <= (uint64_t)(uintptr_t)a.at + a.bytes)
            return true;
    return false;
}

void close(struct gpu *g)
{
    Device *d = of(g);
    for (int s = 0; s < GPU_STREAMS; s++)
        run_until(d, s, UINT64_MAX);
    for (Allocation &a : d->allocations)
        free(a.at);
    delete d;
}

int alloc(struct gpu *g, uint64_t bytes, bool kept, gpu_ptr *out, struct err *e)
{
    Device *d = of(g);
    char *p = bytes && bytes < (1ull << 34) ? (char *)aligned_alloc(128, (bytes + 127) / 128 * 128) : nullptr;
    if (!p)
        return err_set(e, ENOMEM, "no memory");
    memset(p, 0, bytes);
    d->allocations.push_back({p, bytes, kept, {}});
    *out = (gpu_ptr)(uintptr_t)p;
    return 0;
}

void release(struct gpu *g, gpu_ptr p)
{
    Device *d = of(g);
    for (int s = 0; s < GPU_STREAMS; s++)
        run_until(d, s, UINT64_MAX);
    for (size_t i = 0; i < d->allocations.size(); i++)
        if ((gpu_ptr)(uintptr_t)d->allocations[i].at == p) {
            free(d->allocations[i].at);
            d->allocations.erase(d->allocations.begin() + (long)i);
            return;
        }
    emu::die("a release of what was not allocated");
}

int to_device(struct gpu *g, gpu_stream s, gpu_ptr to, const void *from, uint64_t bytes, struct err *e)
{
    Device *d = of(g);
    if (!known(d, to, bytes))
        return err_set(e, EIO, "a copy to outside the device's memory");
    std::shared_ptr<std::vector<char>> data = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
    return put(d, s, [=] {
        memcpy((void *)(uintptr_t)to, data->data(), bytes);
        d->counts.copies++;
    });
}

int to_host(struct gpu *g, gpu_stream s, void *to, gpu_ptr from, uint64_t bytes, struct err *e)
{
    Device *d = of(g);
    if (!known(d, from, bytes))
        return err_set(e, EIO, "a copy from outside the device's memory");
    return put(d, s, [=] {
        memcpy(to, (const void *)(uintptr_t)from, bytes);
        d->counts.copies++;
    });
}

int zero(struct gpu *g, gpu_stream s, gpu_ptr p, uint64_t bytes, struct err *e)
{
    if (!known(of(g), p, bytes))
        return err_set(e, EIO, "memory outside the device's");
    return put(of(g), s, [=] { memset((void *)(uintptr_t)p, 0, bytes); });
}

int launch(struct gpu *g, gpu_stream s, const struct gpu_launch *l, struct err *e)
{
    Device *d = of(g);
    auto k = emu::registry().find(l->kernel);
    if (k == emu::registry().end())
        return err_set(e, ENOENT, "no kernel %s", l->kernel);
    emu::Body body = k->second;
    std::shared_ptr<std::vector<char>> args =
        std::make_shared<std::vector<char>>((const char *)l->args, (const char *)l->args + l->args_bytes);
    dim3 grid = {l->grid[0], l->grid[1], l->grid[2]}, block = {l->block[0], l->block[1], l->block[2]};
    size_t shared = l->shared_bytes;
    return put(d, s, [=] {
        emu::launch(body, args->data(), grid, block, shared);
        d->counts.launches++;
    });
}

int sync(struct gpu *g, gpu_stream s, struct err *)
{
    run_until(of(g), s, UINT64_MAX);
    return 0;
}

int event_new(struct gpu *g, struct gpu_event **out, struct err *)
{
    Device *d = of(g);
    d->events.push_back(std::unique_ptr<gpu_event>(new gpu_event{d, GPU_COMPUTE, 0}));
    *out = d->events.back().get();
    return 0;
}

int event_record(struct gpu *g, struct gpu_event *ev, gpu_stream s, struct err *)
{
    ev->stream = s;
    ev->at = of(g)->put[s];
    return 0;
}

int event_wait(struct gpu *g, struct gpu_event *ev, gpu_stream s, struct err *)
{
    gpu_event seen = *ev; /* what was recorded so far, not what will be */
    return put(of(g), s, [=] { run_until(seen.device, seen.stream, seen.at); });
}

int event_done(struct gpu *g, struct gpu_event *ev, struct err *)
{
    Device *d = of(g);
    if (d->done[ev->stream] < ev->at) { /* time passes: one more piece of work */
        run_until(d, ev->stream, d->done[ev->stream] + 1);
        return 0;
    }
    return 1;
}

int capture_begin(struct gpu *g, struct err *e)
{
    Device *d = of(g);
    if (d->capturing)
        return err_set(e, EINVAL, "a capture is going on");
    d->capturing = true;
    d->captured.clear();
    return 0;
}

int capture_end(struct gpu *g, struct gpu_graph **out, struct err *)
{
    Device *d = of(g);
    d->capturing = false;
    *out = new gpu_graph{std::move(d->captured)};
    return 0;
}

int graph_run(struct gpu *g, struct gpu_graph *graph, struct err *)
{
    Device *d = of(g);
    d->counts.graphs++;
    for (const Work &w : graph->work)
        put(d, GPU_COMPUTE, w);
    return 0;
}

void graph_free(struct gpu *g, struct gpu_graph *graph)
{
    run_until(of(g), GPU_COMPUTE, UINT64_MAX);
    delete graph;
}

int sleep(struct gpu *g, uint64_t *freed, struct err *)
{
    Device *d = of(g);
    *freed = 0;
    for (int s = 0; s < GPU_STREAMS; s++)
        run_until(d, s, UINT64_MAX);
    for (Allocation &a : d->allocations) {
        if (a.kept)
            a.saved.assign(a.at, a.at + a.bytes);
        memset(a.at, 0xff, a.bytes); /* the addresses stay, what was there is gone */
        *freed += a.bytes;
    }
    d->asleep = true;
    return 0;
}

int wake(struct gpu *g, struct err *)
{
    Device *d = of(g);
    for (Allocation &a : d->allocations) {
        if (a.kept)
            memcpy(a.at, a.saved.data(), a.bytes);
        else
            memset(a.at, 0, a.bytes);
        a.saved.clear();
    }
    d->asleep = false;
    return 0;
}

void *stream(struct gpu *, gpu_stream)
{
    return nullptr;
}

const struct gpu_ops ops = {close,      alloc,        release,    to_device,  to_host,       zero,        launch,
                            sync,       event_new,    event_record, event_wait, event_done,  capture_begin, capture_end,
                            graph_run,  graph_free,   sleep,      wake,       stream};

} // namespace

struct gpu *emu_device_new(uint32_t sm_count)
{
    Device *d = new Device();
    d->gpu.ops = &ops;
    snprintf(d->gpu.info.name, sizeof d->gpu.info.name, "emulation");
    d->gpu.info.sm_count = sm_count;
    d->gpu.info.compute = 90;
    d->gpu.info.memory_bytes = d->gpu.info.free_bytes = 1ull << 34;
    d->gpu.info.shared_block_bytes = emu::SHARED_MAX;
    return &d->gpu;
}

struct emu_counts emu_device_counts(const struct gpu *g)
{
    return reinterpret_cast<const Device *>(g)->counts;
}
