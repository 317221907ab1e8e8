MODULES += kernels/cpu
kernels/cpu_DEPS := kernels lib/base
# An fma happens where the source says so (kernels/ops.h), in every file of this folder.
$(foreach f,$(wildcard kernels/cpu/*.c),$(eval CFLAGS_$(f) := -ffp-contract=off))
$(foreach f,$(wildcard kernels/cpu/avx512*.c),$(eval CFLAGS_$(f) += -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c))
$(foreach f,$(wildcard kernels/cpu/amx*.c),$(eval CFLAGS_$(f) += -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512bf16 -mfma -mf16c -mamx-tile -mamx-int8 -mamx-bf16))
$(foreach f,$(wildcard kernels/cpu/avx2*.c),$(eval CFLAGS_$(f) += -mavx2 -mfma -mf16c))
# Tiles are unrolled into registers; under sanitizers that would take a compiler minutes and show nothing more.
$(foreach f,$(wildcard kernels/cpu/*.c),$(eval CFLAGS_$(f) += $(if $(SAN),-DKERNELS_ROLLED,-O3)))
