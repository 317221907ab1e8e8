/* A stand-in for NVIDIA's libcublasLt.so.13, for tests only: the functions of lt_abi.h over plain
 * loops, put on the stand-in driver's streams. It reads its operands as the real one does, in
 * columns, through the layouts that it was given: what gemm.c tells it is what is checked. */
#include "kernels/cuda/lt_abi.h"

#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <functional>
#include <type_traits>

struct lt_context {
    int unused;
};
struct lt_desc {
    int compute, scale, transposed_a;
};
struct lt_layout_ {
    int type;
    uint64_t rows, cols;
    int64_t ld;
};
struct lt_preference_ {
    size_t workspace;
};

namespace
{

enum { INVALID = 7, NOT_SUPPORTED = 15 };
int alive, asked; /* layouts; heuristics */

float bf16(const void *p, uint64_t i)
{
    uint16_t v;
    memcpy(&v, static_cast<const char *>(p) + 2 * i, 2);
    uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

bool fits(const lt_desc *d, lt_layout a, lt_layout b, lt_layout c)
{
    return d->compute == LT_COMPUTE_32F && d->scale == LT_R_32F && d->transposed_a == LT_OP_T &&
           a->type == LT_R_16BF && b->type == LT_R_16BF && c->type == LT_R_32F &&
           a->rows == b->rows && a->cols == c->rows && b->cols == c->cols &&
           a->ld >= (int64_t)a->rows && b->ld >= (int64_t)b->rows && c->ld >= (int64_t)c->rows;
}

} // namespace

extern "C" {

int emu_lt_layouts(void)
{
    return alive;
}

int emu_lt_heuristics(void)
{
    return asked;
}

int cublasLtCreate(lt_handle *h)
{
    *h = new lt_context{};
    return 0;
}

int cublasLtDestroy(lt_handle h)
{
    delete h;
    return 0;
}

int cublasLtMatmulDescCreate(lt_matmul_desc *d, int compute, int scale)
{
    *d = new lt_desc{compute, scale, 0};
    return 0;
}

int cublasLtMatmulDescSetAttribute(lt_matmul_desc d, int what, const void *v, size_t n)
{
    if (what != LT_DESC_TRANSA || n != sizeof(int))
        return INVALID;
    memcpy(&d->transposed_a, v, n);
    return 0;
}

int cublasLtMatmulDescDestroy(lt_matmul_desc d)
{
    delete d;
    return 0;
}

int cublasLtMatrixLayoutCreate(lt_layout *l, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
    *l = new lt_layout_{type, rows, cols, ld};
    alive++;
    return 0;
}

int cublasLtMatrixLayoutDestroy(lt_layout l)
{
    alive--;
    delete l;
    return 0;
}

int cublasLtMatmulPreferenceCreate(lt_preference *p)
{
    *p = new lt_preference_{};
    return 0;
}

int cublasLtMatmulPreferenceSetAttribute(lt_preference p, int what, const void *v, size_t n)
{
    if (what != LT_PREF_WORKSPACE || n != sizeof p->workspace)
        return INVALID;
    memcpy(&p->workspace, v, n);
    return 0;
}

int cublasLtMatmulPreferenceDestroy(lt_preference p)
{
    delete p;
    return 0;
}

/* None for products of one column, as it may be: the caller has its own kernel. */
int cublasLtMatmulAlgoGetHeuristic(lt_handle, lt_matmul_desc d, lt_layout a, lt_layout b,
                                   lt_layout c, lt_layout out, lt_preference p, int most,
                                   struct lt_heuristic *found, int *n)
{
    asked++;
    if (c != out || most < 1 || !p->workspace || !fits(d, a, b, c))
        return INVALID;
    *n = b->cols > 1;
    found->algo.data[0] = a->rows ^ a->cols << 20 ^ b->cols << 40;
    return *n ? 0 : NOT_SUPPORTED;
}

int cublasLtMatmul(lt_handle, lt_matmul_desc d, const void *alpha, const void *a, lt_layout la,
                   const void *b, lt_layout lb, const void *beta, const void *, lt_layout lc,
                   void *c, lt_layout, const struct lt_algo *algo, void *, size_t, void *stream)
{
    typedef int (*host_func)(void *, void (*)(void *), void *);
    host_func launch = (host_func)dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchHostFunc");
    if (!launch || !fits(d, la, lb, lc) || *(const float *)alpha != 1 || *(const float *)beta != 0 ||
        algo->data[0] != (la->rows ^ la->cols << 20 ^ lb->cols << 40))
        return INVALID;
    lt_layout_ x = *la, y = *lb, z = *lc;
    auto *work = new std::function<void()>([=] {
        for (uint64_t i = 0; i < z.rows; i++)
            for (uint64_t j = 0; j < z.cols; j++) {
                float sum = 0;
                for (uint64_t k = 0; k < x.rows; k++)
                    sum += bf16(a, k + i * (uint64_t)x.ld) * bf16(b, k + j * (uint64_t)y.ld);
                static_cast<float *>(c)[i + j * (uint64_t)z.ld] = sum;
            }
    });
    return launch(stream, [](void *p) { (*static_cast<std::function<void()> *>(p))(); }, work);
}

} // extern "C"

#define SAME(name, symbol, args)                                                                   \
    static_assert(std::is_same<decltype(&symbol), int(*) args>::value, #symbol);
LT_FUNCTIONS(SAME)
