/* What the product writes down of NVIDIA's interfaces (driver_abi.h, lt_abi.h, nccl_abi.h) is what
 * their headers say: sizes, offsets, values, and the arguments of every function. Compiled by
 * `make cuda-test` against the headers that the machine has: cuda.h comes with the toolchain (`make
 * cuda`), cublasLt.h and nccl.h with `tools/setup cuda-headers`. Prints which were compared. */
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cuda.h>
#include <type_traits>
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define HAS_LT 1
#endif
#if __has_include(<nccl.h>)
#include <nccl.h>
#define HAS_NCCL 1
#endif

namespace ours /* for names that both have */
{
#include "kernels/cuda/driver_abi.h"
#include "kernels/cuda/lt_abi.h"
#include "worker/comm/nccl_abi.h"
} // namespace ours
using namespace ours;

/* The same register, read the same way: pointers for pointers, integers (enumerations too) of the
 * same size, structures of the same size and alignment. */
template <class A, class B> constexpr bool alike()
{
    constexpr bool number_a = std::is_integral<A>::value || std::is_enum<A>::value,
                   number_b = std::is_integral<B>::value || std::is_enum<B>::value;
    return std::is_pointer<A>::value == std::is_pointer<B>::value && number_a == number_b &&
           sizeof(A) == sizeof(B) && alignof(A) == alignof(B);
}

template <class Ours, class Theirs> struct same {
    static constexpr bool value = false;
};
template <class R, class... A, class S, class... B> struct same<R (*)(A...), S (*)(B...)> {
    template <class... X> struct list {
    };
    template <class L, class M> struct each {
        static constexpr bool value = false;
    };
    template <class... X, class... Y> struct each<list<X...>, list<Y...>> {
        static constexpr bool value = (true && ... && alike<X, Y>());
    };
    static constexpr bool count = sizeof...(A) == sizeof...(B);
    template <bool ok, class D> struct if_count {
        static constexpr bool value = false;
    };
    template <class D> struct if_count<true, D> {
        static constexpr bool value = each<list<A...>, list<B...>>::value;
    };
    static constexpr bool value = alike<R, S>() && if_count<count, void>::value;
};

#define FUNCTION(name, symbol, args)                                                               \
    static_assert(same<cu_result(*) args, decltype(&symbol)>::value, #symbol);
#define VALUE(ours, theirs) static_assert((long long)(ours) == (long long)(theirs), #ours)
#define FIELD(ours, a, theirs, b)                                                                  \
    static_assert(offsetof(ours, a) == offsetof(theirs, b) &&                                      \
                      sizeof(((ours *)0)->a) == sizeof(((theirs *)0)->b),                          \
                  #ours "." #a)
#define SIZE(ours, theirs)                                                                         \
    static_assert(sizeof(ours) == sizeof(theirs) && alignof(ours) == alignof(theirs), #ours)

/* ---- cuda.h ---- */
DRIVER_FUNCTIONS(FUNCTION)
SIZE(cu_result, CUresult);
SIZE(cu_device, CUdevice);
SIZE(cu_ptr, CUdeviceptr);
SIZE(cu_mem_handle, CUmemGenericAllocationHandle);
SIZE(struct cu_location, CUmemLocation);
FIELD(struct cu_location, type, CUmemLocation, type);
FIELD(struct cu_location, id, CUmemLocation, id);
SIZE(struct cu_mem_prop, CUmemAllocationProp);
FIELD(struct cu_mem_prop, type, CUmemAllocationProp, type);
FIELD(struct cu_mem_prop, handle_types, CUmemAllocationProp, requestedHandleTypes);
FIELD(struct cu_mem_prop, location, CUmemAllocationProp, location);
FIELD(struct cu_mem_prop, windows, CUmemAllocationProp, win32HandleMetaData);
FIELD(struct cu_mem_prop, flags, CUmemAllocationProp, allocFlags);
FIELD(struct cu_mem_prop, flags.compression, CUmemAllocationProp, allocFlags.compressionType);
FIELD(struct cu_mem_prop, flags.gpu_direct_rdma, CUmemAllocationProp,
      allocFlags.gpuDirectRDMACapable);
FIELD(struct cu_mem_prop, flags.usage, CUmemAllocationProp, allocFlags.usage);
SIZE(struct cu_mem_access, CUmemAccessDesc);
FIELD(struct cu_mem_access, location, CUmemAccessDesc, location);
FIELD(struct cu_mem_access, flags, CUmemAccessDesc, flags);
VALUE(CU_NOT_READY, CUDA_ERROR_NOT_READY);
VALUE(CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
VALUE(CU_NO_BINARY, CUDA_ERROR_NO_BINARY_FOR_GPU);
VALUE(CU_ATTR_SM_COUNT, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
VALUE(CU_ATTR_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
VALUE(CU_ATTR_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
VALUE(CU_ATTR_SHARED_OPTIN, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
VALUE(CU_ATTR_VMM, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
VALUE(CU_FUNC_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
VALUE(ours::CU_STREAM_NON_BLOCKING, ::CU_STREAM_NON_BLOCKING);
VALUE(CU_EVENT_NO_TIMING, CU_EVENT_DISABLE_TIMING);
VALUE(CU_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
VALUE(CU_MEM_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
VALUE(CU_MEM_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
VALUE(CU_MEM_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
VALUE(CU_MEM_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
VALUE(CU_MEM_HANDLE_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

#if defined(HAS_LT)
LT_FUNCTIONS(FUNCTION)
SIZE(struct lt_algo, cublasLtMatmulAlgo_t);
SIZE(struct lt_heuristic, cublasLtMatmulHeuristicResult_t);
FIELD(struct lt_heuristic, algo, cublasLtMatmulHeuristicResult_t, algo);
FIELD(struct lt_heuristic, workspace, cublasLtMatmulHeuristicResult_t, workspaceSize);
FIELD(struct lt_heuristic, state, cublasLtMatmulHeuristicResult_t, state);
FIELD(struct lt_heuristic, waves, cublasLtMatmulHeuristicResult_t, wavesCount);
FIELD(struct lt_heuristic, reserved, cublasLtMatmulHeuristicResult_t, reserved);
VALUE(LT_COMPUTE_32F, CUBLAS_COMPUTE_32F);
VALUE(LT_R_32F, CUDA_R_32F);
VALUE(LT_R_16BF, CUDA_R_16BF);
VALUE(LT_OP_T, CUBLAS_OP_T);
VALUE(LT_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA);
VALUE(LT_PREF_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
#endif

#if defined(HAS_NCCL)
NCCL_FUNCTIONS(FUNCTION)
SIZE(struct nccl_id, ncclUniqueId);
SIZE(nccl_comm, ncclComm_t);
FIELD(struct nccl_config, size, ncclConfig_t, size);
FIELD(struct nccl_config, magic, ncclConfig_t, magic);
FIELD(struct nccl_config, version, ncclConfig_t, version);
FIELD(struct nccl_config, blocking, ncclConfig_t, blocking);
FIELD(struct nccl_config, cluster, ncclConfig_t, cgaClusterSize);
constexpr ncclConfig_t nccl_defaults = NCCL_CONFIG_INITIALIZER;
VALUE(NCCL_CONFIG_MAGIC, nccl_defaults.magic);
VALUE(NCCL_CONFIG_NONE, nccl_defaults.cgaClusterSize);
static_assert(NCCL_CONFIG_VERSION == NCCL_VERSION(2, 14, 0) &&
                  sizeof(struct nccl_config) <= sizeof(ncclConfig_t),
              "the config of NCCL 2.14");
VALUE(NCCL_SUCCESS, ncclSuccess);
VALUE(NCCL_IN_PROGRESS, ncclInProgress);
VALUE(NCCL_SUM, ncclSum);
VALUE(NCCL_UINT8, ncclUint8);
VALUE(NCCL_FLOAT32, ncclFloat32);
VALUE(NCCL_ID_BYTES, NCCL_UNIQUE_ID_BYTES);
#endif

int main()
{
    printf("cuda.h %d", CUDA_VERSION);
#if defined(HAS_LT)
    printf(", cublasLt.h %d.%d", CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR);
#endif
#if defined(HAS_NCCL)
    printf(", nccl.h %d.%d", NCCL_MAJOR, NCCL_MINOR);
#endif
    printf(": what is written down of them is right\n");
    return 0;
}
