# A measuring tool, not part of the product: speed and greedy text of the CPU engine, driven by tools/bench-engine.py.
MODULES += worker/bench
worker/bench_DEPS := worker/model kernels kernels/cpu lib/llm lib/base
worker/bench_PROG := bench-engine
