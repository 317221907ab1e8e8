# CUDA: kernels (*.cu), their host code, and the driver by dlopen. Device code is embedded when there is a toolchain
# (`make cuda` fetches one); the tests execute the same kernels on the CPU, compiled as C++ against emu.h.
MODULES += kernels/cuda
kernels/cuda_DEPS := lib/base

CUDA_HOME ?= $(firstword $(wildcard $(or $(BATON_CACHE),$(HOME)/.cache/baton)/cuda/lib/python3*/site-packages/nvidia/cu13))
NVCC := $(or $(wildcard $(CUDA_HOME)/bin/nvcc),$(shell command -v nvcc 2>/dev/null))
CUDA_KERNELS := $(sort $(wildcard kernels/cuda/*.cu))
CUDA_ARCHS := -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90]
NVCC_FLAGS := -std=c++17 -O3 -I. -Werror all-warnings
FATBINS := $(if $(NVCC),$(CUDA_KERNELS:%.cu=$(BUILD)/%.fatbin))

$(BUILD)/kernels/cuda/%.fatbin: kernels/cuda/%.cu kernels/cuda/device.h kernels/cuda/kernels.h
	@mkdir -p $(@D); echo "  NVCC  $<"
	@$(NVCC) $(NVCC_FLAGS) $(CUDA_ARCHS) -fatbin -o $@ $<

# One assembly file with every fat binary; it changes when a toolchain comes or goes.
BLOB := $(BUILD)/kernels/cuda/blob.s
$(shell mkdir -p $(BUILD)/kernels/cuda; echo "$(FATBINS)" | cmp -s - $(BUILD)/kernels/cuda/fatbins || echo "$(FATBINS)" >$(BUILD)/kernels/cuda/fatbins)
$(BLOB): $(FATBINS) $(BUILD)/kernels/cuda/fatbins
	@{ echo '.section .rodata'; \
	  n=0; for f in $(FATBINS); do echo ".balign 64"; echo "fatbin_$$n: .incbin \"$$f\""; n=$$((n + 1)); done; \
	  echo '.globl blob_count'; echo '.balign 4'; echo "blob_count: .long $$n"; \
	  echo '.section .data.rel.ro, "aw"'; echo '.globl blobs'; echo '.balign 8'; echo 'blobs:'; \
	  i=0; while [ $$i -lt $$n ]; do echo ".quad fatbin_$$i"; i=$$((i + 1)); done; echo '.quad 0'; \
	  echo '.section .note.GNU-stack, "", @progbits'; } >$@
$(BUILD)/kernels/cuda/blob.o: $(BLOB)
	@$(CC) -c -o $@ $<
kernels/cuda_MORE_OBJS := $(BUILD)/kernels/cuda/blob.o

# The kernels for the CPU, with the device that runs them, for C tests.
EMU_OBJS := $(CUDA_KERNELS:%.cu=$(BUILD)/tests/%.emu.o) $(BUILD)/tests/kernels/cuda/emu_device.o
EMU_FLAGS := -std=c++17 -g -O2 -I. -Wall -Wextra -Wno-unknown-pragmas -Werror $(SAN_$(SAN)) $(if $(SAN),-Wno-error)
$(BUILD)/tests/kernels/cuda/%.emu.o: kernels/cuda/%.cu
	@mkdir -p $(@D); echo "  EMU   $<"
	@$(CXX) $(EMU_FLAGS) -MMD -MP -x c++ -c -o $@ $<
$(BUILD)/tests/kernels/cuda/emu_device.o: tests/kernels/cuda/emu_device.cc
	@mkdir -p $(@D); echo "  CXX   $<"
	@$(CXX) $(EMU_FLAGS) -MMD -MP -c -o $@ $<
-include $(EMU_OBJS:.o=.d)
kernels/cuda_TEST_OBJS := $(EMU_OBJS)
kernels/cuda_TEST_LIBS := -lstdc++
