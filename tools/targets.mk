# Targets for people: set-up, demo, test, check, lint, bench. Included by the top Makefile, after the modules' rules.
CACHE := $(or $(BATON_CACHE),$(HOME)/.cache/baton)
JOBS ?= $(shell nproc)
SUBMAKE := $(MAKE) -j$(JOBS)
PY_SUITES := $(sort $(dir $(wildcard tests/*/test_*.py)))
# Suites that use the processors or measure short times have them for themselves; the others mostly wait, so two run at a time, the longest first.
PY_ALONE := tests/router/ tests/worker/ tests/page/ tests/sim/
PY_LONG := tests/scaling/ tests/controller/
PY_BESIDE := $(PY_LONG) $(filter-out $(PY_ALONE) $(PY_LONG),$(PY_SUITES))

help: ## this list
	@echo "Baton $(VERSION): make <target>"; \
	grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort -u | awk -F':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

setup: ## Debian packages, model and kubectl that demo and up need (cached under ~/.cache/baton)
	@tools/setup packages models kubectl

setup-test: ## what the tests need besides: test packages, Python tools, second model, a real Kubernetes (built once)
	@tools/setup test-packages node-packages python models gemma kubectl kubernetes

demo: setup ## from nothing to an answer through prefill and decode workers: make demo [PROMPT="…"]
	@$(SUBMAKE) build
	@tools/demo "$(PROMPT)"

up: setup ## keep a local cluster running with the deployment `chat` (kubeconfig build/up/kubeconfig, router 127.0.0.1:8080)
	@$(SUBMAKE) build
	@tools/up

down: ## end what `make up` started
	@$(BUILD)/bin/baton down --data build/up

# Real models as up to eight processes: a target of its own (test-layouts); small models in every layout are in `make test`.
LONG_UNIT := $(BUILD)/tests/worker/layout/test_models
SLOW_UNIT := $(LONG_UNIT) $(addprefix $(BUILD)/tests/,$(addprefix worker/model/test_,golden invariance score) worker/gpu/test_gpu_model worker/gpu/test_ranks worker/gpu/layouts_few kernels/cuda/test_races lib/xfer/test_storm)
check: ## quick checks before a commit (under a minute): build, include direction, sizes, fast unit tests
	@$(SUBMAKE) build tests-build
	@tools/run-tests --log $(BUILD)/test "run:include direction:tools/check-includes" "run:sizes:tools/check-size" \
	  "unit:unit:$(filter-out $(SLOW_UNIT),$(UNIT_TESTS))"

test: setup-test ## every test, with all set-up; ends with `N passed, N failed`
	@echo "building programs and tests …"
	@$(SUBMAKE) build tests-build
	@echo "building the parsers' tests under AddressSanitizer and UBSan …"
	@$(SUBMAKE) SAN=asan asan-tests
	@tools/run-tests --log build/test \
	  "run:include direction:tools/check-includes" "run:sizes:tools/check-size" "run:format:tools/format --check" "run:resource reference:tools/crd-docs --check" \
	  "unit:unit:$(filter-out $(LONG_UNIT),$(filter $(SLOW_UNIT),$(UNIT_TESTS)) $(filter-out $(SLOW_UNIT),$(UNIT_TESTS)))" \
	  "unit:asan+ubsan:$(ASAN_TESTS)" \
	  $(foreach d,$(PY_BESIDE),"beside:$(patsubst tests/%/,%,$(d)):$(d)") \
	  $(foreach d,$(filter $(PY_ALONE),$(PY_SUITES)),"pytest:$(patsubst tests/%/,%,$(d)):$(d)") \
	  "pytest:e2e:$(filter-out e2e/test_story.py e2e/test_layouts.py e2e/test_sources.py,$(wildcard e2e/test_*.py))" \
	  "pytest:real cluster:e2e/smoke.py"

# Tests of what parses outside bytes, and of what moves memory about, run a second time under the sanitizers; the longest begin first.
ASAN_DIRS := worker/model lib/xfer worker lib/base lib/json lib/io lib/llm lib/wire lib/kube lib/decide agent local
# Whole models on real weights take minutes there; the same kernels run in test_ops, test_types and test_hostile.
NO_ASAN := $(addprefix tests/worker/model/test_,$(addsuffix .c,invariance golden score))
ASAN_TESTS = $(foreach t,$(filter-out $(NO_ASAN),$(wildcard $(addprefix tests/,$(addsuffix /test_*.c,$(ASAN_DIRS))))),build/asan/$(t:.c=))
asan-tests: $(ASAN_TESTS)

SIM_RUNS ?= 10000
sim: setup ## the real controller in virtual time: faults from SIM_RUNS (10,000) seeds, a kill after every write, planted bugs; writes docs/reports/sim.md
	@$(SUBMAKE) build
	@$(SUBMAKE) BREAK=1 build/break/bin/baton-sim-control
	@tools/report sim "tools/sim --build $(BUILD) --runs $(SIM_RUNS)"

CASES ?=
cases: setup-test ## each case of tests/cases.tsv fails without its guard (CASES="--draw 10 --seed 7" or names: only those); writes docs/reports/cases.md
	@$(SUBMAKE) BREAK=1 $$(tools/cases --targets $(CASES))
	@tools/report cases "$(CACHE)/venv/bin/python tools/cases $(CASES)"

kills: setup-test ## kill -9 of the controller right after 20 seeded writes on a real API server; writes docs/reports/kills.md
	@$(SUBMAKE) build
	@BATON_SIDE=real BATON_KILLS=20 tools/report kills "$(CACHE)/venv/bin/python -m pytest -q -s -p no:cacheprovider tests/controller/kills.py"

test-layouts: setup-test ## the real models in every tensor and pipeline layout, teacher-forced (many minutes)
	@$(SUBMAKE) tests-build
	@tools/run-tests --log build/test "unit:layouts:$(LONG_UNIT)"

cuda: ## the CUDA toolchain (cached), device code for sm_80, sm_90 and PTX, and the table of its kernels
	@tools/setup packages cuda
	@$(SUBMAKE) build
	@tools/cuda-table $(BUILD)

cuda-test: setup-test ## every CUDA kernel executed on the CPU, without each of its barriers too, and what is built of them
	@$(SUBMAKE) $(CUDA_TESTS) $(CUDA_ABI) && $(MAKE) SAN=asan $(KERNEL_TESTS:%=build/asan/%)
	@tools/run-tests --log build/test "unit:cuda:$(CUDA_TESTS)" "unit:cuda under asan:$(KERNEL_TESTS:%=build/asan/%)" \
	  $(CUDA_ABI:%="run:NVIDIA interfaces:%")
CUDA_TESTS = $(KERNEL_TESTS:%=$(BUILD)/%) $(addprefix $(BUILD)/tests/,kernels/cuda/test_library_gemm kernels/cuda/test_races worker/gpu/test_gpu_model worker/gpu/test_ranks worker/gpu/layouts_few worker/gpu/layouts_all)

# The worker, its own objects with the tests' blob: it runs on the stand-ins for driver and NCCL also where there is no toolchain.
$(eval $(call link_rule,worker,$(BUILD)/worker/main.o,$(BUILD)/tests/worker/gpu/baton-worker,,$(BUILD)/tests/kernels/cuda/blob.o))

# Groups of GPU ranks, which have the worker's backend: a few layouts in `make test`, every family in all of them in `make cuda-test`.
GPU_LAYOUTS := $(addprefix $(BUILD)/tests/worker/gpu/layouts,_few _all)
$(foreach t,$(GPU_LAYOUTS),$(eval $(call link_rule,worker,$(t).o,$(t),-lcmocka $(kernels/cuda_TEST_LIBS),$(kernels/cuda_TEST_OBJS))))
$(GPU_LAYOUTS): | $(BUILD)/tests/kernels/cuda/libnccl.so.2
OBJS += $(GPU_LAYOUTS:=.o)
UNIT_TESTS += $(BUILD)/tests/worker/gpu/layouts_few
tests-build: $(BUILD)/tests/worker/gpu/layouts_few

images: ## container images below 30 MB as archives in build/images, with their sizes
	@$(SUBMAKE) build
	@tools/images --bin $(BUILD)/bin --out $(BUILD)/images

e2e: setup-test ## the whole story on a real Kubernetes of several nodes (needs root, about half an hour); writes docs/reports/e2e.md
	@$(SUBMAKE) build
	@tools/report e2e "$(CACHE)/venv/bin/python -m pytest -q -s -p no:cacheprovider e2e/test_story.py"

BATON_MASK_SEEDS ?= 30
mask: setup-test ## kill -9 of a rank at 30 random moments, in groups where the others have its experts (BATON_MASK_SEEDS, BATON_SEED); writes docs/reports/mask.md
	@$(SUBMAKE) build
	@tools/report mask "BATON_MASK_SEEDS=$(BATON_MASK_SEEDS) $(CACHE)/venv/bin/python -m pytest -q -s -p no:cacheprovider tests/worker/test_mask.py"

e2e-layouts: setup-test ## models over several ranks and pods through the custom resource, and ranks that are killed (a few minutes)
	@$(SUBMAKE) build
	@"$(CACHE)/venv/bin/python" -m pytest -q -s -p no:cacheprovider e2e/test_layouts.py

e2e-sources: setup-test ## models from a PersistentVolumeClaim and from an image volume on a real node (needs root, two minutes)
	@$(SUBMAKE) build
	@"$(CACHE)/venv/bin/python" -m pytest -q -s -p no:cacheprovider e2e/test_sources.py

e2e-inplace: setup-test ## all containers of a user's pod start again in place, on a real kubelet (needs root, one minute)
	@$(SUBMAKE) build
	@"$(CACHE)/venv/bin/python" -m pytest -q -s -p no:cacheprovider e2e/test_inplace.py

e2e-smoke: setup-test ## a real Kubernetes of two nodes: helm install, answer, scale, uninstall (needs root; part of `make test`)
	@$(SUBMAKE) build
	@tools/run-tests --log build/test "pytest:real cluster:e2e/smoke.py"

e2e-up: setup-test images ## keep a real Kubernetes of two nodes with our images (kubeconfig build/e2e/kubeconfig)
	@e2e/cluster/cluster.py up build/e2e

e2e-down: ## end what `make e2e-up` started
	@e2e/cluster/cluster.py down build/e2e

scale: setup-test ## 1,000 simulated nodes and 10,000 worker pods on a real API server; writes docs/reports/scale.md
	@tools/setup kwok
	@$(SUBMAKE) build
	@tools/report scale "$(CACHE)/venv/bin/python e2e/scale/scale.py"

keda: setup-test ## KEDA itself scales WorkerPools by its metrics-api and Prometheus triggers; writes docs/reports/keda.md
	@tools/setup keda
	@$(SUBMAKE) build
	@tools/report keda "$(CACHE)/venv/bin/python -m pytest -q -s -p no:cacheprovider tests/scaling/keda.py"

chaos: setup-test ## kill -9 of every program, 20 random moments each; writes docs/reports/chaos.md
	@$(SUBMAKE) build
	@BATON_CHAOS_KILLS=20 tools/report chaos "$(CACHE)/venv/bin/python -m pytest -q -s -p no:cacheprovider e2e/test_chaos.py"

standby-bench: setup ## the standby ladder on this machine: promotion, wake, flip, cold starts, peers; writes docs/reports/standby.md
	@$(SUBMAKE) build
	@tools/report standby "$(CACHE)/venv/bin/python bench/standby.py --build $(BUILD)"

bench: setup ## router beside haproxy and vllm-router, KV push and collectives beside memcpy; writes docs/reports/bench.md
	@tools/setup test-packages python bench
	@$(SUBMAKE) build bench-build
	@tools/report bench "$(BUILD)/bench/xfer && $(BUILD)/bench/comm && bench/router.py"

bench-engine: setup ## the CPU engine beside llama.cpp and the machine's own limits, same files, alternating; writes docs/reports/engine.md
	@tools/setup gemma bench
	@$(SUBMAKE) $(BUILD)/bin/bench-engine
	@tools/report engine "$(CACHE)/bench/llama/bin/python tools/bench-engine.py $(BUILD)/bin/bench-engine $(BENCH_MODELS) \
	  --q8 $(lastword $(BENCH_MODELS)) $(BENCH_ARGS)"
BENCH_MODELS = $(addprefix $(CACHE)/models/,SmolLM2-135M-Instruct.Q4_1.gguf gemma-3-270m.Q4_K_M.gguf)

bench-users: setup ## 32 users with a shared prefix, through whole servers beside llama.cpp's and vLLM's (6 GB of set-up); writes docs/reports/users.md
	@tools/setup python gemma peers
	@$(SUBMAKE) build
	@tools/report users "BATON_BUILD=$(BUILD) $(CACHE)/venv/bin/python bench/users.py $(BENCH_ARGS)"

bench-mixed: setup ## short prompts beside a long one, through the same servers; writes docs/reports/mixed.md
	@tools/setup python gemma peers
	@$(SUBMAKE) build
	@tools/report mixed "BATON_BUILD=$(BUILD) $(CACHE)/venv/bin/python bench/mixed.py $(BENCH_ARGS)"

compare-greedy: setup ## greedy text beside llama.cpp in f32 and as it is, on prompts drawn anew
	@tools/setup gemma bench
	@$(SUBMAKE) $(BUILD)/bin/bench-engine
	@$(CACHE)/bench/llama/bin/python tools/compare-greedy.py $(BUILD)/bin/bench-engine $(BENCH_MODELS)

bench-speculation: setup ## prompt lookup on and off, alternating, tokens compared; writes docs/reports/speculation.md
	@tools/setup bench
	@$(SUBMAKE) $(BUILD)/bin/baton-worker
	@tools/report speculation "BATON_BUILD=$(BUILD) $(CACHE)/bench/llama/bin/python tools/bench-speculation.py $(BENCH_ARGS)"

FUZZ_SECONDS ?= 20
fuzz: ## each parser's fuzzer for FUZZ_SECONDS (20) under ASan and UBSan; corpora in build/fuzz/corpus
	@tools/setup test-packages
	@$(MAKE) -j$(JOBS) SAN=fuzz CC=clang fuzz-build
	@for f in build/fuzz/tests/fuzz/fuzz_*; do case $$f in *.o|*.d) continue;; esac; n=$${f##*/}; mkdir -p build/fuzz/corpus/$$n; \
	  echo "fuzzing $$n for $(FUZZ_SECONDS) s"; \
	  $$f -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=4096 -max_len=65536 -print_final_stats=1 -artifact_prefix=build/fuzz/ \
	    build/fuzz/corpus/$$n >build/fuzz/$$n.log 2>&1 || { tail -n 30 build/fuzz/$$n.log; echo "fuzz: $$n found something: see build/fuzz"; exit 1; }; \
	  grep -E "number_of_executed_units" build/fuzz/$$n.log; done; echo "fuzz: nothing found"

lint: ## clang-format, clang-tidy, include direction, sizes
	@tools/setup test-packages
	@tools/format --check && tools/check-includes && tools/check-size
	@$(MAKE) compile_commands.json
	@git ls-files '*.c' | grep -v '^tests/' | xargs -P$(JOBS) -n 8 clang-tidy -p . --quiet

format: ## rewrite the sources with clang-format
	@tools/format

compile_commands.json: Makefile ## for editors and clang-tidy
	@tools/compile-commands "$(CC)" '$(CFLAGS)' >$@
