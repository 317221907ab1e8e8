#include "kernels/cpu/cpu.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/scalar.h"
#include "kernels/cpu/simd.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool always(void)
{
    return true;
}

#if defined(__x86_64__)
static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma");
}

static bool has_amx(void)
{
    return has_avx512() && amx_there();
}

static bool has_avx2(void)
{
    uint32_t a, b, c = 0, d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

static const struct {
    const struct kernel_ops *ops;
    bool (*has)(void);
} backends[] = {
#if defined(__x86_64__)
    {&amx_ops, has_amx},
    {&avx512_ops, has_avx512},
    {&avx2_ops, has_avx2},
#endif
    {&scalar_ops, always},
};
#define N_BACKENDS (sizeof backends / sizeof *backends)

int cpu_ops(const char *isa, const struct kernel_ops **out, struct err *e)
{
    if (!isa || !*isa)
        isa = getenv("BATON_ISA");
    bool any = !isa || !*isa;
    for (size_t i = 0; i < N_BACKENDS; i++) {
        bool named = any || strcmp(isa, backends[i].ops->name) == 0;
        if (named && backends[i].has()) {
            *out = backends[i].ops;
            return 0;
        }
        if (named && !any)
            return err_set(e, EINVAL, "this machine lacks the instructions of ISA \"%s\"", isa);
    }
    return err_set(e, EINVAL, "unknown ISA \"%s\": scalar, avx2, avx512 or amx", isa);
}

const char *const *cpu_isas(void)
{
    static const char *names[N_BACKENDS + 1];
    size_t n = 0;
    for (size_t i = 0; i < N_BACKENDS; i++)
        if (backends[i].has())
            names[n++] = backends[i].ops->name;
    return names;
}
