// Matrix products on tensor cores: plain (used where cuBLASLt is missing) and grouped by expert.
#include "kernels/cuda/device.h"

#define K_STEP 32u
#define LD     (K_STEP + 8u)

// One 64 x 64 tile of a b^T, or with `turned` of a b, whose rows are ldb apart. Row i of the tile
// is a_row(i) (NULL: zeros), of b it has b_rows rows, or columns; store(row, column, value) takes
// the results. Four warps of 16 rows; two steps of 32 columns in flight.
template <bool TURNED, class Rows, class Store>
DEVICE void gemm_tile(Rows a_row, const uint16_t *b, unsigned b_rows, Store store, unsigned k,
                      uint16_t *shared, unsigned ldb = 0)
{
    constexpr unsigned B_LD = GEMM_TILE + 8; // of 32 rows of b
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum[8][4];
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[j][i] = 0;
    auto load = [&](unsigned stage, unsigned k0) {
        for (unsigned i = threadIdx.x; i < 2 * GEMM_TILE * K_STEP / 8; i += 128) {
            unsigned matrix = i / (GEMM_TILE * K_STEP / 8), r = i / (K_STEP / 8) % GEMM_TILE,
                     col = i % (K_STEP / 8) * 8;
            if (TURNED && matrix) {
                unsigned i_b = i - GEMM_TILE * K_STEP / 8, row = i_b / (GEMM_TILE / 8),
                         n = i_b % (GEMM_TILE / 8) * 8;
                bool ok = k0 + row < k && n < b_rows;
                copy_async16(shared + (stage * 2 + 1) * GEMM_TILE * LD + row * B_LD + n,
                             ok ? b + (size_t)(k0 + row) * ldb + n : b, ok);
                continue;
            }
            const uint16_t *from = matrix ? (r < b_rows ? b + (size_t)r * k : nullptr) : a_row(r);
            bool ok = from && k0 + col < k;
            copy_async16(shared + ((stage * 2 + matrix) * GEMM_TILE + r) * LD + col,
                         ok ? from + k0 + col : b, ok);
        }
        copy_commit();
    };
    load(0, 0);
    for (unsigned k0 = 0, stage = 0; k0 < k; k0 += K_STEP, stage ^= 1) {
        if (k0 + K_STEP < k) {
            load(stage ^ 1, k0 + K_STEP);
            copy_wait<1>();
        } else {
            copy_wait<0>();
        }
        __syncthreads();
        const uint16_t *sa = shared + stage * 2 * GEMM_TILE * LD, *sb = sa + GEMM_TILE * LD;
#pragma unroll
        for (unsigned d = 0; d < K_STEP; d += 16) {
            uint32_t x[4], y[4];
            ldmatrix(x, sa + (warp * 16 + lane % 16) * LD + d + lane / 16 * 8);
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
                if constexpr (TURNED)
                    ldmatrix_transposed(y, sb + (d + lane % 16) * B_LD + j * 8 + lane / 16 * 8);
                else
                    ldmatrix(y,
                             sb + (j * 8 + lane % 8 + lane / 16 * 8) * LD + d + lane / 8 % 2 * 8);
                mma_bf16(sum[j], x, y);
                mma_bf16(sum[j + 1], x, y + 2);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            unsigned r = warp * 16 + lane / 4 + i / 2 * 8, n = j * 8 + lane % 4 * 2 + i % 2;
            if (n < b_rows)
                store(r, n, sum[j][i]);
        }
}

KERNEL(gemm_k, struct gemm_args, 128)
{
    SHARED(uint16_t, shared); // [2][2][64][LD]
    unsigned m0 = blockIdx.y * GEMM_TILE, n0 = blockIdx.x * GEMM_TILE;
    unsigned rows = min(GEMM_TILE, a.m - m0);
    auto a_row = [&](unsigned r) { return r < rows ? a.a + (size_t)(m0 + r) * a.k : nullptr; };
    auto store = [&](unsigned r, unsigned n, float v) {
        if (r < rows)
            a.c[(size_t)(m0 + r) * a.n + n0 + n] = v;
    };
    gemm_tile<false>(a_row, a.b + (size_t)n0 * a.k, min(GEMM_TILE, a.n - n0), store, a.k, shared);
}

template <bool TURNED> DEVICE void head_gemm(const struct head_gemm_args &a, uint16_t *shared)
{
    unsigned m0 = blockIdx.y * GEMM_TILE, n0 = blockIdx.x * GEMM_TILE, head = blockIdx.z;
    unsigned rows = min(GEMM_TILE, a.m - m0);
    const uint16_t *b = a.b + (size_t)head * a.n * a.k + (TURNED ? n0 : (size_t)n0 * a.k);
    auto a_row = [&](unsigned r) {
        return r < rows ? a.a + (size_t)(m0 + r) * a.lda + head * a.a_head : nullptr;
    };
    auto store = [&](unsigned r, unsigned n, float v) {
        if (r < rows)
            a.out[(size_t)(m0 + r) * a.ldo + head * a.o_head + n0 + n] =
                a.f16 ? f16_bits(v * a.scale) : bf16_bits(v * a.scale);
    };
    gemm_tile<TURNED>(a_row, b, min(GEMM_TILE, a.n - n0), store, a.k, shared, a.n);
}

KERNEL(head_gemm_k, struct head_gemm_args, 128)
{
    SHARED(uint16_t, shared);
    head_gemm<false>(a, shared);
}

KERNEL(head_gemm_turned_k, struct head_gemm_args, 128)
{
    SHARED(uint16_t, shared);
    head_gemm<true>(a, shared);
}

KERNEL(grouped_gemm_k, struct grouped_gemm_args, 128)
{
    SHARED(uint16_t, shared);
    unsigned p0 = blockIdx.y * GEMM_TILE, n0 = blockIdx.x * GEMM_TILE;
    uint32_t expert = a.expert_of[blockIdx.y];
    if (expert == UINT32_MAX)
        return;
    auto a_row = [&](unsigned r) {
        uint32_t row = a.row_of ? a.row_of[p0 + r] : p0 + r;
        return row == UINT32_MAX ? nullptr : a.a + (size_t)row * a.k;
    };
    auto store = [&](unsigned r, unsigned n, float v) { a.c[(size_t)(p0 + r) * a.n + n0 + n] = v; };
    gemm_tile<false>(a_row, a.b + ((size_t)expert * a.n + n0) * a.k, min(GEMM_TILE, a.n - n0),
                     store, a.k, shared);
}
