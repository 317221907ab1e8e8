/* device.h: what every kernel source includes. Under nvcc the CUDA headers; under a host compiler
 * the emulation (emu.h). Above either: one spelling for the few things that differ, so that kernels
 * have no #ifdef.
 *
 * A kernel takes one structure of arguments by value (kernels.h), the same for the driver, the
 * emulation and the C code that fills it: KERNEL(name, struct name_args, most threads a block) {
 * ... a.x ... }. Shared memory is dynamic: SHARED(type, name); of a source file either in kernels
 * or in functions, whose linkage differs. 16-bit and 8-bit floats are stored as integers and
 * converted by the functions here (nearest even; FP8 is E4M3, saturating). */
#pragma once
#include "kernels/cuda/kernels.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#define KERNEL(name, args_t, threads)                                                              \
    extern "C" __global__ void __launch_bounds__(threads, 1) name(const __grid_constant__ args_t a)
#define SHARED(type, name)                                                                         \
    extern __shared__ __align__(128) unsigned char shared_bytes_[];                                \
    type *name = reinterpret_cast<type *>(shared_bytes_)
#define DEVICE        static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__

DEVICE float bf16_value(uint16_t v)
{
    return __uint_as_float((unsigned)v << 16);
}
DEVICE uint16_t bf16_bits(float f)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(f));
}
DEVICE float f16_value(uint16_t v)
{
    return __half2float(__ushort_as_half(v));
}
DEVICE uint16_t f16_bits(float f)
{
    return __half_as_ushort(__float2half_rn(f));
}
DEVICE float fp8_value(uint8_t v)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(v, __NV_E4M3)));
}
DEVICE uint8_t fp8_bits(float f)
{
    return __nv_cvt_float_to_fp8(f, __NV_SATFINITE, __NV_E4M3);
}
DEVICE float fast_exp(float x)
{
    return __expf(x);
}
DEVICE void copy_async16(void *shared, const void *global, bool ok)
{
    unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    int bytes = ok ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
                 : "memory");
}
DEVICE void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LEFT> DEVICE void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
/* c [16x8] += a [16x16] b [16x8], fragments as in the PTX ISA for mma.m16n8k16. */
DEVICE void mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE void mma_f16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8 (16
 * bytes, aligned). r[i]: elements (l / 4, 2 (l % 4)) and the next of matrix i; transposed: (2 (l %
 * 4), l / 4) and the one below. */
DEVICE void ldmatrix(uint32_t r[4], const uint16_t *row)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
DEVICE void ldmatrix_transposed(uint32_t r[4], const uint16_t *row)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

#else
#include "kernels/cuda/emu.h"
#ifndef EMU_PREFIX
#define EMU_PREFIX ""
#endif
#define KERNEL(name, args_t, threads)                                                              \
    static void name(const args_t &a);                                                             \
    static emu::Register name##_register(                                                          \
        EMU_PREFIX #name, [](const void *p) { name(*static_cast<const args_t *>(p)); },            \
        sizeof(args_t));                                                                           \
    static void name(const args_t &a)
#define SHARED(type, name) type *name = reinterpret_cast<type *>(emu::block_now.shared)
#define DEVICE             static inline __attribute__((unused))
#define DEVICE_MEMBER

DEVICE float bf16_value(uint16_t v)
{
    return emu::from_bits<float>((uint64_t)v << 16);
}
DEVICE uint16_t bf16_bits(float f)
{
    uint32_t u = (uint32_t)emu::to_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff;
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}
DEVICE float f16_value(uint16_t v)
{
    float magnitude = (v & 0x7c00) == 0x7c00
                          ? ((v & 0x3ff) ? NAN : INFINITY)
                          : ((v & 0x7c00) ? ldexpf((float)(1024 + (v & 0x3ff)), (v >> 10 & 31) - 25)
                                          : ldexpf((float)(v & 0x3ff), -24));
    return v & 0x8000 ? -magnitude : magnitude;
}
DEVICE uint16_t f16_bits(float f)
{
    uint16_t sign = std::signbit(f) ? 0x8000 : 0;
    float m = fabsf(f);
    if (!(m == m))
        return 0x7fff;
    if (m >= 65520.0f)
        return (uint16_t)(sign | 0x7c00);
    int e;
    (void)frexpf(m, &e); /* m = x 2^e, x in [0.5, 1) */
    int step = m < 0x1p-14f ? -24 : e - 11;
    uint32_t q =
        (uint32_t)lrintf(ldexpf(m, -step)); /* nearest even; 1024..2048, or less when subnormal */
    if (step == -24 && q < 1024)
        return (uint16_t)(sign | q);
    return (uint16_t)(sign | (uint32_t)((step + 25) * 1024 + (int)q - 1024));
}
DEVICE float fp8_value(uint8_t v)
{
    int e = v >> 3 & 15, m = v & 7;
    float magnitude = (v & 0x7f) == 0x7f ? NAN
                      : e                ? ldexpf((float)(8 + m), e - 10)
                                         : ldexpf((float)m, -9);
    return v & 0x80 ? -magnitude : magnitude;
}
DEVICE uint8_t fp8_bits(float f)
{
    uint8_t sign = std::signbit(f) ? 0x80 : 0;
    float m = fabsf(f);
    if (!(m == m))
        return 0x7f;
    if (m >= 448.0f)
        return (uint8_t)(sign | 0x7e);
    int e;
    (void)frexpf(m, &e);
    int step = m < 0x1p-6f ? -9 : e - 4;
    uint32_t q = (uint32_t)lrintf(ldexpf(m, -step)); /* 8..16, or less when subnormal */
    uint32_t code = step == -9 && q < 8 ? q : (uint32_t)((step + 10) * 8 + (int)q - 8);
    return (uint8_t)(sign | (code > 0x7e ? 0x7e : code));
}
DEVICE float fast_exp(float x)
{
    return expf(x);
}
DEVICE void copy_async16(void *shared, const void *global, bool ok)
{
    emu::copy_async(shared, global, ok);
}
DEVICE void copy_commit()
{
    emu::copy_commit();
}
template <int LEFT> DEVICE void copy_wait()
{
    emu::copy_wait(LEFT);
}
#define ldmatrix(r, row)            emu::load_matrices(__LINE__, r, row, false)
#define ldmatrix_transposed(r, row) emu::load_matrices(__LINE__, r, row, true)
#define mma_bf16(c, a, b)           emu::mma_16816(__LINE__, c, a, b, bf16_value)
#define mma_f16(c, a, b)            emu::mma_16816(__LINE__, c, a, b, f16_value)
#endif

#define ALL_LANES 0xffffffffu

template <class T> DEVICE T warp_sum(T v)
{
    for (int o = 16; o > 0; o >>= 1)
        v += __shfl_xor_sync(ALL_LANES, v, o);
    return v;
}
DEVICE float warp_max(float v)
{
    for (int o = 16; o > 0; o >>= 1)
        v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, o));
    return v;
}
/* Sum over the block, the same in every thread; `part`: 32 floats of shared memory. */
DEVICE float block_sum(float v, float *part)
{
    unsigned lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
    v = warp_sum(v);
    __syncthreads();
    if (lane == 0)
        part[threadIdx.x / 32] = v;
    __syncthreads();
    return warp_sum(lane < warps ? part[lane] : 0.0f);
}
/* Eight 16-bit floats of one 16-byte word. */
DEVICE void unpack_bf16(uint4 u, float f[8])
{
    const uint32_t w[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f[2 * i] = bf16_value((uint16_t)w[i]);
        f[2 * i + 1] = bf16_value((uint16_t)(w[i] >> 16));
    }
}
DEVICE void unpack_f16(uint4 u, float f[8])
{
    const uint32_t w[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f[2 * i] = f16_value((uint16_t)w[i]);
        f[2 * i + 1] = f16_value((uint16_t)(w[i] >> 16));
    }
}
DEVICE uint32_t pack_bf16(float lo, float hi)
{
    return bf16_bits(lo) | (uint32_t)bf16_bits(hi) << 16;
}
DEVICE uint32_t pack_f16(float lo, float hi)
{
    return f16_bits(lo) | (uint32_t)f16_bits(hi) << 16;
}
