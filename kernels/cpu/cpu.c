#include "kernels/cpu/cpu.h"
#include "kernels/cpu/scalar.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool always(void)
{
    return true;
}

static const struct {
    const struct kernel_ops *ops;
    bool (*has)(void);
} backends[] = {
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
    return err_set(e, EINVAL, "unknown ISA \"%s\": scalar, avx2 or avx512", isa);
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
