#include "kernels/cpu/v16_avx512.h"

#include "kernels/cpu/simd_rows.h"
