/* AVX-512 with the tile registers of AMX for matrix products. The kernel of the system gives a
 * process these registers when it asks for them. */
#include "kernels/cpu/amx.h"

#include <cpuid.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

const struct kernel_ops amx_ops = {
    .name = "amx",
    .rms_norm = avx512_rms_norm,
    .quantize = avx512_quantize,
    .matmul = amx_matmul,
    .swiglu = avx512_swiglu,
    .geglu = avx512_geglu,
    .add = avx512_add,
    .scale = avx512_scale,
    .attention = avx512_attention,
    .to_f16 = avx512_to_f16,
    .max = avx512_max,
    .sum_exp = avx512_sum_exp,
};

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA  18

static bool allowed;

static void ask(void)
{
    allowed = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

bool amx_there(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const uint32_t bf16 = 1u << 22, tile = 1u << 24, int8 = 1u << 25, needed = bf16 | tile | int8;
    uint32_t a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & needed) != needed)
        return false;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & 1u << 5)) /* AVX512_BF16 */
        return false;
    pthread_once(&once, ask);
    return allowed;
}
