/* nccl_abi.h: the part of NCCL's interface that nccl.c calls, written down as driver_abi.h is.
 * tests/kernels/cuda/abi.cc compares it with nccl.h where there is one. Source: NCCL 2 user guide,
 * "Communicator Creation", "Collective Communication Functions", "Point To Point". */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct nccl_comm_ *nccl_comm;
enum {
    NCCL_SUCCESS = 0,
    NCCL_IN_PROGRESS = 7,
    NCCL_SUM = 0,
    NCCL_UINT8 = 1,
    NCCL_FLOAT32 = 7,
    NCCL_ID_BYTES = 128,
};
struct nccl_id {
    char bytes[NCCL_ID_BYTES];
};

/* The beginning of ncclConfig_t that NCCL 2.14 had; libraries take the rest of a smaller one, or of
 * an older version, as not given. */
#define NCCL_CONFIG_MAGIC   0xcafebeefu
#define NCCL_CONFIG_VERSION 21400u
#define NCCL_CONFIG_NONE    INT32_MIN
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking; /* 0: calls return at once, perhaps with NCCL_IN_PROGRESS */
    int cluster;  /* NCCL_CONFIG_NONE */
};

/* name, the function in libnccl.so.2, arguments; all return a result, 0: success. Streams are the
 * driver's. */
#define NCCL_FUNCTIONS(F)                                                                          \
    F(get_version, ncclGetVersion, (int *))                                                        \
    F(get_id, ncclGetUniqueId, (struct nccl_id *))                                                 \
    F(init_rank, ncclCommInitRankConfig,                                                           \
      (nccl_comm *, int, struct nccl_id, int, struct nccl_config *))                               \
    F(destroy, ncclCommDestroy, (nccl_comm))                                                       \
    F(abort, ncclCommAbort, (nccl_comm))                                                           \
    F(async_error, ncclCommGetAsyncError, (nccl_comm, int *))                                      \
    F(all_reduce, ncclAllReduce, (const void *, void *, size_t, int, int, nccl_comm, void *))      \
    F(all_gather, ncclAllGather, (const void *, void *, size_t, int, nccl_comm, void *))           \
    F(send, ncclSend, (const void *, size_t, int, int, nccl_comm, void *))                         \
    F(recv, ncclRecv, (void *, size_t, int, int, nccl_comm, void *))                               \
    F(group_start, ncclGroupStart, (void))                                                         \
    F(group_end, ncclGroupEnd, (void))
