/* cpu.h: the CPU backends of kernels/ops.h and the choice between them at run time. Thread-safe;
 * the tables are constant. */
#pragma once
#include "kernels/ops.h"
#include "lib/base/err.h"

/* `isa`: "scalar", "avx2", "avx512" or "amx"; NULL or "": $BATON_ISA, else the best that this
 * machine has. -EINVAL for a name that is not known or an ISA that the machine lacks. */
int cpu_ops(const char *isa, const struct kernel_ops **out, struct err *e) MUST_CHECK;
/* Names of the backends that this machine can run, best first, NULL-terminated. */
const char *const *cpu_isas(void);
