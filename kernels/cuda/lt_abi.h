/* lt_abi.h: the part of cuBLASLt's interface that gemm.c calls, written down as driver_abi.h is.
 * tests/kernels/cuda/abi.cc compares it with the toolkit's cublasLt.h where there is one. Source:
 * cuBLAS 13 reference, "Using the cuBLASLt API". */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct lt_context *lt_handle;
typedef struct lt_desc *lt_matmul_desc;
typedef struct lt_layout_ *lt_layout;
typedef struct lt_preference_ *lt_preference;
enum {
    LT_COMPUTE_32F = 68, /* CUBLAS_COMPUTE_32F */
    LT_R_32F = 0,        /* CUDA_R_32F */
    LT_R_16BF = 14,      /* CUDA_R_16BF */
    LT_OP_T = 1,
    LT_DESC_TRANSA = 3,
    LT_PREF_WORKSPACE = 1,
};
struct lt_algo {
    uint64_t data[8];
};
struct lt_heuristic {
    struct lt_algo algo;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

/* name, the function in libcublasLt.so, arguments; all return a status, 0: success */
#define LT_FUNCTIONS(F)                                                                            \
    F(create, cublasLtCreate, (lt_handle *))                                                       \
    F(destroy, cublasLtDestroy, (lt_handle))                                                       \
    F(desc_create, cublasLtMatmulDescCreate, (lt_matmul_desc *, int, int))                         \
    F(desc_set, cublasLtMatmulDescSetAttribute, (lt_matmul_desc, int, const void *, size_t))       \
    F(desc_destroy, cublasLtMatmulDescDestroy, (lt_matmul_desc))                                   \
    F(layout_create, cublasLtMatrixLayoutCreate, (lt_layout *, int, uint64_t, uint64_t, int64_t))  \
    F(layout_destroy, cublasLtMatrixLayoutDestroy, (lt_layout))                                    \
    F(pref_create, cublasLtMatmulPreferenceCreate, (lt_preference *))                              \
    F(pref_set, cublasLtMatmulPreferenceSetAttribute, (lt_preference, int, const void *, size_t))  \
    F(pref_destroy, cublasLtMatmulPreferenceDestroy, (lt_preference))                              \
    F(heuristic, cublasLtMatmulAlgoGetHeuristic,                                                   \
      (lt_handle, lt_matmul_desc, lt_layout, lt_layout, lt_layout, lt_layout, lt_preference, int,  \
       struct lt_heuristic *, int *))                                                              \
    F(matmul, cublasLtMatmul,                                                                      \
      (lt_handle, lt_matmul_desc, const void *, const void *, lt_layout, const void *, lt_layout,  \
       const void *, const void *, lt_layout, void *, lt_layout, const struct lt_algo *, void *,   \
       size_t, void *))
