/* driver_abi.h: the part of the CUDA driver's interface that driver.c calls, written down here so
 * that a machine without the toolkit builds the same program. tests/kernels/cuda/abi.cc compares it
 * with the toolkit's cuda.h where there is one. Source: CUDA driver API reference, version 13.0. */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef int cu_result; /* 0: success */
typedef int cu_device;
typedef struct cu_context_ *cu_context;
typedef struct cu_library_ *cu_library;
typedef struct cu_kernel_ *cu_kernel;
typedef struct cu_stream_ *cu_stream;
typedef struct cu_event_ *cu_event;
typedef struct cu_graph_ *cu_graph;
typedef struct cu_graph_exec_ *cu_graph_exec;
typedef uint64_t cu_ptr;
typedef uint64_t cu_mem_handle;

enum {
    CU_NOT_READY = 600,
    CU_OUT_OF_MEMORY = 2,
    CU_NO_BINARY = 209,
    CU_ATTR_SM_COUNT = 16,
    CU_ATTR_MAJOR = 75,
    CU_ATTR_MINOR = 76,
    CU_ATTR_SHARED_OPTIN = 97,
    CU_ATTR_VMM = 102,
    CU_FUNC_SHARED = 8, /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_NO_TIMING = 2,
    CU_CAPTURE_THREAD_LOCAL = 1,
    CU_MEM_PINNED = 1,
    CU_MEM_DEVICE = 1,
    CU_MEM_READ_WRITE = 3,
    CU_MEM_GRANULARITY_MINIMUM = 0,
    CU_MEM_HANDLE_FD = 1,
};

struct cu_location {
    int type, id;
};
struct cu_mem_prop {
    int type, handle_types;
    struct cu_location location;
    void *windows;
    struct {
        unsigned char compression, gpu_direct_rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};
struct cu_mem_access {
    struct cu_location location;
    int flags;
};

/* name, the function in libcuda.so.1, arguments */
#define DRIVER_FUNCTIONS(F)                                                                        \
    F(init, cuInit, (unsigned))                                                                    \
    F(driver_version, cuDriverGetVersion, (int *))                                                 \
    F(device_count, cuDeviceGetCount, (int *))                                                     \
    F(device_get, cuDeviceGet, (cu_device *, int))                                                 \
    F(device_name, cuDeviceGetName, (char *, int, cu_device))                                      \
    F(device_attribute, cuDeviceGetAttribute, (int *, int, cu_device))                             \
    F(device_memory, cuDeviceTotalMem_v2, (size_t *, cu_device))                                   \
    F(context_retain, cuDevicePrimaryCtxRetain, (cu_context *, cu_device))                         \
    F(context_release, cuDevicePrimaryCtxRelease_v2, (cu_device))                                  \
    F(context_set, cuCtxSetCurrent, (cu_context))                                                  \
    F(memory_info, cuMemGetInfo_v2, (size_t *, size_t *))                                          \
    F(error_string, cuGetErrorString, (cu_result, const char **))                                  \
    F(library_load, cuLibraryLoadData,                                                             \
      (cu_library *, const void *, void *, void **, unsigned, void *, void **, unsigned))          \
    F(library_unload, cuLibraryUnload, (cu_library))                                               \
    F(library_kernel, cuLibraryGetKernel, (cu_kernel *, cu_library, const char *))                 \
    F(kernel_set, cuKernelSetAttribute, (int, int, cu_kernel, cu_device))                          \
    F(launch, cuLaunchKernel,                                                                      \
      (cu_kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cu_stream, \
       void **, void **))                                                                          \
    F(stream_new, cuStreamCreate, (cu_stream *, unsigned))                                         \
    F(stream_free, cuStreamDestroy_v2, (cu_stream))                                                \
    F(stream_sync, cuStreamSynchronize, (cu_stream))                                               \
    F(stream_wait, cuStreamWaitEvent, (cu_stream, cu_event, unsigned))                             \
    F(event_new, cuEventCreate, (cu_event *, unsigned))                                            \
    F(event_free, cuEventDestroy_v2, (cu_event))                                                   \
    F(event_record, cuEventRecord, (cu_event, cu_stream))                                          \
    F(event_query, cuEventQuery, (cu_event))                                                       \
    F(copy_in, cuMemcpyHtoDAsync_v2, (cu_ptr, const void *, size_t, cu_stream))                    \
    F(copy_out, cuMemcpyDtoHAsync_v2, (void *, cu_ptr, size_t, cu_stream))                         \
    F(copy, cuMemcpyDtoDAsync_v2, (cu_ptr, cu_ptr, size_t, cu_stream))                             \
    F(host_register, cuMemHostRegister_v2, (void *, size_t, unsigned))                             \
    F(host_unregister, cuMemHostUnregister, (void *))                                              \
    F(set_bytes, cuMemsetD8Async, (cu_ptr, unsigned char, size_t, cu_stream))                      \
    F(capture_begin, cuStreamBeginCapture_v2, (cu_stream, int))                                    \
    F(capture_end, cuStreamEndCapture, (cu_stream, cu_graph *))                                    \
    F(graph_new, cuGraphInstantiateWithFlags, (cu_graph_exec *, cu_graph, unsigned long long))     \
    F(graph_run, cuGraphLaunch, (cu_graph_exec, cu_stream))                                        \
    F(graph_free, cuGraphDestroy, (cu_graph))                                                      \
    F(graph_exec_free, cuGraphExecDestroy, (cu_graph_exec))                                        \
    F(granularity, cuMemGetAllocationGranularity, (size_t *, const struct cu_mem_prop *, int))     \
    F(reserve, cuMemAddressReserve, (cu_ptr *, size_t, size_t, cu_ptr, unsigned long long))        \
    F(unreserve, cuMemAddressFree, (cu_ptr, size_t))                                               \
    F(create, cuMemCreate,                                                                         \
      (cu_mem_handle *, size_t, const struct cu_mem_prop *, unsigned long long))                   \
    F(release, cuMemRelease, (cu_mem_handle))                                                      \
    F(map, cuMemMap, (cu_ptr, size_t, size_t, cu_mem_handle, unsigned long long))                  \
    F(unmap, cuMemUnmap, (cu_ptr, size_t))                                                         \
    F(access, cuMemSetAccess, (cu_ptr, size_t, const struct cu_mem_access *, size_t))
