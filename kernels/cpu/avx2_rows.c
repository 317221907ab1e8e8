#include "kernels/cpu/v16_avx2.h"

#include "kernels/cpu/simd_rows.h"
