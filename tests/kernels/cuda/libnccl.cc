/* A stand-in for NVIDIA's libnccl.so.2, for tests only: the functions of worker/comm/nccl_abi.h over
 * memory that the ranks' processes share. Its work goes onto the stand-in driver's streams
 * (cuLaunchHostFunc), so it happens in their order. The id names the shared memory. Sums are made in
 * the order of ranks. A wait ends when the communicator is aborted. Of a non-blocking communicator
 * every call is in progress until it was asked about, joining until all have come. */
#include "worker/comm/nccl_abi.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <fcntl.h>
#include <functional>
#include <sys/mman.h>
#include <type_traits>
#include <unistd.h>
#include <vector>

namespace
{

enum { RANKS_MAX = 8, INVALID = 4, SYSTEM = 2 };
const size_t SLOT = 64u << 10;

struct Box { /* from one rank to another */
    std::atomic<uint32_t> full;
    uint32_t bytes;
    char data[SLOT];
};

struct Shared {
    std::atomic<uint32_t> joined, arrived, round;
    char slots[RANKS_MAX][SLOT];
    Box boxes[RANKS_MAX][RANKS_MAX];
};

struct Flow {
    bool out;
    int peer;
    char *data;
    size_t bytes, done;
};

} // namespace

struct nccl_comm_ {
    Shared *shared;
    uint32_t ranks, rank;
    bool blocking;
    std::atomic<bool> aborted;
    char path[NCCL_ID_BYTES];
};

namespace
{

int depth; /* of groups */
std::vector<Flow> grouped;
nccl_comm group_comm;
void *group_stream;

void nap()
{
    struct timespec t = {0, 20000};
    nanosleep(&t, nullptr);
}

bool meet(nccl_comm c)
{
    Shared *s = c->shared;
    uint32_t round = s->round.load();
    if (s->arrived.fetch_add(1) + 1 == c->ranks) {
        s->arrived = 0;
        s->round.fetch_add(1);
        return true;
    }
    while (s->round.load() == round && !c->aborted)
        nap();
    return !c->aborted;
}

/* What is still on the streams of an aborted communicator does nothing: others, which hear of it a
 * little later, must not take it for what they wait for. */
bool over(nccl_comm c)
{
    return c->aborted;
}

void reduce(nccl_comm c, float *x, size_t n)
{
    for (size_t at = 0; at < n && !over(c); at += SLOT / 4) {
        size_t k = std::min(SLOT / 4, n - at);
        memcpy(c->shared->slots[c->rank], x + at, k * 4);
        if (!meet(c))
            return;
        for (size_t i = 0; i < k; i++) {
            float sum = 0;
            for (uint32_t r = 0; r < c->ranks; r++)
                sum += reinterpret_cast<float *>(c->shared->slots[r])[i];
            x[at + i] = sum;
        }
        if (!meet(c))
            return;
    }
}

void gather(nccl_comm c, const char *mine, char *all, size_t n)
{
    for (size_t at = 0; at < n && !over(c); at += SLOT) {
        size_t k = std::min(SLOT, n - at);
        memcpy(c->shared->slots[c->rank], mine + at, k);
        if (!meet(c))
            return;
        for (uint32_t r = 0; r < c->ranks; r++)
            memcpy(all + r * n + at, c->shared->slots[r], k);
        if (!meet(c))
            return;
    }
}

/* Those of one way go one after another: `before` are earlier ones. */
bool step(nccl_comm c, Flow *f, const std::vector<Flow> &before)
{
    uint32_t peer = (uint32_t)f->peer;
    for (const Flow *b = before.data(); b != f; b++)
        if (b->peer == f->peer && b->out == f->out && b->done < b->bytes)
            return false;
    Box *b = f->out ? &c->shared->boxes[c->rank][peer] : &c->shared->boxes[peer][c->rank];
    if (b->full.load(std::memory_order_acquire) == (f->out ? 1u : 0u))
        return false;
    uint32_t k = f->out ? (uint32_t)std::min(SLOT, f->bytes - f->done) : b->bytes;
    if (k > f->bytes - f->done)
        abort(); /* the two sides do not mean the same message */
    if (f->out) {
        memcpy(b->data, f->data + f->done, k);
        b->bytes = k;
    } else {
        memcpy(f->data + f->done, b->data, k);
    }
    f->done += k;
    b->full.store(f->out, std::memory_order_release);
    return true;
}

void exchange(nccl_comm c, std::vector<Flow> flows)
{
    while (!over(c)) {
        bool left = false, moved = false;
        for (Flow &f : flows)
            if (f.done < f.bytes) {
                left = true;
                moved = step(c, &f, flows) || moved;
            }
        if (!left)
            return;
        if (!moved)
            nap();
    }
}

/* Onto the stream, after what is there. */
int put(void *stream, std::function<void()> work)
{
    typedef int (*host_func)(void *, void (*)(void *), void *);
    static host_func launch =
        (host_func)dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchHostFunc");
    if (!launch)
        return SYSTEM;
    auto *held = new std::function<void()>(std::move(work)); /* a graph may run it again */
    return launch(stream, [](void *p) { (*static_cast<std::function<void()> *>(p))(); }, held);
}

int begun(nccl_comm c, int result)
{
    return result == NCCL_SUCCESS && !c->blocking ? NCCL_IN_PROGRESS : result;
}

int flow(bool out, void *data, size_t bytes, int type, int peer, nccl_comm c, void *stream)
{
    Flow f = {out, peer, static_cast<char *>(data), bytes, 0};
    if (type != NCCL_UINT8 || peer < 0 || (uint32_t)peer >= c->ranks || (uint32_t)peer == c->rank)
        return INVALID;
    if (!depth)
        return begun(c, put(stream, [=] { exchange(c, {f}); }));
    grouped.push_back(f);
    group_comm = c;
    group_stream = stream;
    return NCCL_SUCCESS;
}

} // namespace

extern "C" {

int ncclGetVersion(int *v)
{
    *v = 23200;
    return NCCL_SUCCESS;
}

int ncclGetUniqueId(struct nccl_id *id)
{
    char path[] = "/dev/shm/baton-nccl-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0 || ftruncate(fd, sizeof(Shared)))
        return SYSTEM;
    close(fd);
    snprintf(id->bytes, sizeof id->bytes, "%s", path);
    return NCCL_SUCCESS;
}

int ncclCommInitRankConfig(nccl_comm *out, int ranks, struct nccl_id id, int rank,
                           struct nccl_config *config)
{
    if (ranks < 1 || ranks > RANKS_MAX || config->size < sizeof *config ||
        config->magic != NCCL_CONFIG_MAGIC || config->version < NCCL_CONFIG_VERSION ||
        config->cluster != NCCL_CONFIG_NONE)
        return INVALID;
    int fd = open(id.bytes, O_RDWR | O_CLOEXEC);
    void *p = fd < 0 ? MAP_FAILED
                     : mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return SYSTEM;
    close(fd);
    nccl_comm c = new nccl_comm_{};
    c->shared = static_cast<Shared *>(p);
    c->ranks = (uint32_t)ranks;
    c->rank = (uint32_t)rank;
    c->blocking = config->blocking != 0;
    memcpy(c->path, id.bytes, sizeof c->path);
    c->shared->joined.fetch_add(1);
    *out = c;
    while (c->blocking && c->shared->joined.load() < c->ranks)
        nap();
    return begun(c, NCCL_SUCCESS);
}

int ncclCommDestroy(nccl_comm c)
{
    if (c->rank == 0)
        unlink(c->path);
    munmap(c->shared, sizeof(Shared));
    delete c;
    return NCCL_SUCCESS;
}

/* From another thread than the one that waits: what is shared stays until the process ends. */
int ncclCommAbort(nccl_comm c)
{
    c->aborted = true;
    if (c->rank == 0)
        unlink(c->path);
    return NCCL_SUCCESS;
}

int ncclCommGetAsyncError(nccl_comm c, int *error)
{
    bool all = c->shared->joined.load() >= c->ranks;
    *error = all ? NCCL_SUCCESS : NCCL_IN_PROGRESS;
    if (all && c->rank == 0 && c->path[0]) {
        unlink(c->path);
        c->path[0] = 0;
    }
    return NCCL_SUCCESS;
}

int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, nccl_comm c, void *stream)
{
    if (type != NCCL_FLOAT32 || op != NCCL_SUM || from != to)
        return INVALID;
    return begun(c, put(stream, [=] { reduce(c, static_cast<float *>(to), n); }));
}

int ncclAllGather(const void *from, void *to, size_t n, int type, nccl_comm c, void *stream)
{
    if (type != NCCL_UINT8)
        return INVALID;
    return begun(c, put(stream, [=] {
                     gather(c, static_cast<const char *>(from), static_cast<char *>(to), n);
                 }));
}

int ncclSend(const void *from, size_t n, int type, int peer, nccl_comm c, void *stream)
{
    return flow(true, const_cast<void *>(from), n, type, peer, c, stream);
}

int ncclRecv(void *to, size_t n, int type, int peer, nccl_comm c, void *stream)
{
    return flow(false, to, n, type, peer, c, stream);
}

int ncclGroupStart(void)
{
    depth++;
    return NCCL_SUCCESS;
}

int ncclGroupEnd(void)
{
    if (--depth || grouped.empty())
        return NCCL_SUCCESS;
    nccl_comm c = group_comm;
    std::vector<Flow> flows;
    flows.swap(grouped);
    return begun(c, put(group_stream, [=] { exchange(c, flows); }));
}

} // extern "C"

#define SAME(name, symbol, args)                                                                   \
    static_assert(std::is_same<decltype(&symbol), int(*) args>::value, #symbol);
NCCL_FUNCTIONS(SAME)
