# CUDA: kernels (*.cu), their host code, and the driver by dlopen. Device code is embedded when there is a toolchain
# (`make cuda` fetches one); the tests execute the same kernels on the CPU, compiled as C++ against emu.h.
MODULES += kernels/cuda
kernels/cuda_DEPS := kernels lib/base

CUDA_HOME ?= $(firstword $(wildcard $(or $(BATON_CACHE),$(HOME)/.cache/baton)/cuda/lib/python3*/site-packages/nvidia/cu13))
NVCC := $(or $(wildcard $(CUDA_HOME)/bin/nvcc),$(shell command -v nvcc 2>/dev/null))
CUDA_KERNELS := $(sort $(wildcard kernels/cuda/*.cu))
CUDA_SHARED := $(addprefix kernels/cuda/,device.h kernels.h kv.h tile.h)
CUDA_ARCHS := -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90]
NVCC_FLAGS := -std=c++17 -O3 -I. -Werror all-warnings
# None in builds for tests of something else.
FATBINS := $(if $(NVCC),$(if $(SAN)$(BREAK),,$(CUDA_KERNELS:%.cu=$(BUILD)/%.fatbin)))

$(BUILD)/kernels/cuda/%.fatbin: kernels/cuda/%.cu $(CUDA_SHARED)
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

# The kernels for the CPU, as a stand-in for the driver's library, for tests (tests/kernels/cuda/libcuda.cc). Tests are linked
# with it, so that driver.c finds it loaded, and with a blob of no content.
CUDA_TESTS_DIR := $(BUILD)/tests/kernels/cuda
EMU_FLAGS := -std=c++17 -g -I. -fPIC -ftls-model=initial-exec -Wall -Wextra -Wno-unknown-pragmas -Werror
EMU_SAN := $(if $(filter-out tsan,$(SAN)),$(SAN_$(SAN)) -Wno-error)
EMU_OBJS := $(CUDA_KERNELS:%.cu=$(BUILD)/tests/%.emu.o) $(CUDA_TESTS_DIR)/libcuda.o
$(BUILD)/tests/kernels/cuda/%.emu.o: kernels/cuda/%.cu
	@mkdir -p $(@D); echo "  EMU   $<"
	@$(CXX) $(EMU_FLAGS) -O2 $(EMU_SAN) -MMD -MP -x c++ -c -o $@ $<
$(CUDA_TESTS_DIR)/libcuda.o: tests/kernels/cuda/libcuda.cc
	@mkdir -p $(@D); echo "  CXX   $<"
	@$(CXX) $(EMU_FLAGS) -O2 $(EMU_SAN) -MMD -MP -c -o $@ $<
$(CUDA_TESTS_DIR)/libcuda.so.1: $(EMU_OBJS)
	@echo "  LD    $@"; $(CXX) -shared $(EMU_SAN) -Wl,-soname,libcuda.so.1 -o $@ $^ -lpthread
$(CUDA_TESTS_DIR)/blob.o: tests/kernels/cuda/blob.c
$(CUDA_TESTS_DIR)/libnccl.so.2: tests/kernels/cuda/libnccl.cc worker/comm/nccl_abi.h
	@mkdir -p $(@D); echo "  CXX   $<"
	@$(CXX) $(EMU_FLAGS) -O2 $(EMU_SAN) -shared -Wl,-soname,libnccl.so.2 -o $@ $< -lpthread -ldl
$(CUDA_TESTS_DIR)/libcublasLt.so.13: tests/kernels/cuda/libcublaslt.cc kernels/cuda/lt_abi.h
	@mkdir -p $(@D); echo "  CXX   $<"
	@$(CXX) $(EMU_FLAGS) -O2 $(EMU_SAN) -shared -Wl,-soname,libcublasLt.so.13 -o $@ $< -ldl
$(CUDA_TESTS_DIR)/test_library_gemm: | $(CUDA_TESTS_DIR)/libcublasLt.so.13
kernels/cuda_TEST_OBJS := $(CUDA_TESTS_DIR)/blob.o $(CUDA_TESTS_DIR)/libcuda.so.1
kernels/cuda_TEST_LIBS := -Wl,-rpath,$(abspath $(CUDA_TESTS_DIR))

# The same under race.cc, with every barrier of the sources taken out once: gemm-2 is gemm.cu without its second.
RACE_DIR := $(CUDA_TESTS_DIR)/race
RACE_FLAGS := $(EMU_FLAGS) -O1 -fsanitize=thread -Wno-error
BARRIER := __sync(threads|warp)\(\);
WITHOUT := $(shell grep -cE '$(BARRIER)' kernels/cuda/*.cu kernels/cuda/device.h | sed -E 's,.*/(.*)\.[a-z]+:(.*),\1 \2,' | \
  while read f n; do for i in $$(seq $$n); do echo $$f-$$i; done; done)
RACE_OBJS := $(CUDA_KERNELS:kernels/cuda/%.cu=$(RACE_DIR)/%.o) $(WITHOUT:%=$(RACE_DIR)/without/%.o) $(RACE_DIR)/libcuda.o $(RACE_DIR)/race.o
$(RACE_DIR)/without/%.o: $(CUDA_KERNELS) $(CUDA_SHARED) kernels/cuda/emu.h
	@v=$*; from=$${v%-*}; n=$${v##*-}; to=$(RACE_DIR)/without/$$v; mkdir -p $$to/kernels/cuda; echo "  EMU   $$v"; \
	  src=kernels/cuda/$$from.cu; what=$$src; [ $$from != device ] || { what=kernels/cuda/device.h; src=kernels/cuda/rows.cu; }; \
	  cp $$src $$to/$$src; awk -v n=$$n '/$(BARRIER)/ && ++k == n { sub(/$(BARRIER)/, ";") } 1' $$what >$$to/$$what; \
	  $(CXX) -I$$to $(RACE_FLAGS) -DEMU_PREFIX='"'$$v':"' -x c++ -c -o $@ $$to/$$src
$(RACE_DIR)/%.o: kernels/cuda/%.cu
	@mkdir -p $(@D); echo "  EMU   $< (races)"
	@$(CXX) $(RACE_FLAGS) -MMD -MP -x c++ -c -o $@ $<
$(RACE_DIR)/libcuda.o: tests/kernels/cuda/libcuda.cc
	@mkdir -p $(@D); $(CXX) $(RACE_FLAGS) -MMD -MP -c -o $@ $<
$(RACE_DIR)/race.o: tests/kernels/cuda/race.cc
	@mkdir -p $(@D); $(CXX) $(EMU_FLAGS) -O2 -MMD -MP -c -o $@ $<
$(RACE_DIR)/libcuda.so.1: $(RACE_OBJS)
	@echo "  LD    $@"; $(CXX) -shared -Wl,--no-undefined -Wl,-soname,libcuda.so.1 -o $@ $^ -lpthread -ldl
	@printf '%s\n' $(WITHOUT) >$(@D)/variants
KERNEL_TESTS := $(addprefix tests/kernels/cuda/test_,attention dispatch mla products rows sampling)
$(CUDA_TESTS_DIR)/test_races: | $(RACE_DIR)/libcuda.so.1 $(KERNEL_TESTS:%=$(BUILD)/%)

# What is written down of NVIDIA's interfaces beside their headers, those that the machine has.
CUDA_HEADERS := $(or $(BATON_CACHE),$(HOME)/.cache/baton)/cuda-headers
CUDA_ABI := $(if $(wildcard $(CUDA_HOME)/include/cuda.h),$(CUDA_TESTS_DIR)/abi)
$(CUDA_TESTS_DIR)/abi: tests/kernels/cuda/abi.cc kernels/cuda/driver_abi.h kernels/cuda/lt_abi.h worker/comm/nccl_abi.h
	@mkdir -p $(@D); echo "  CXX   $<"
	@$(CXX) -std=c++17 -Wall -Wextra -Werror -I. -isystem $(CUDA_HOME)/include -isystem $(CUDA_HEADERS) -o $@ $<
-include $(EMU_OBJS:.o=.d) $(CUDA_TESTS_DIR)/blob.d $(RACE_OBJS:.o=.d)
