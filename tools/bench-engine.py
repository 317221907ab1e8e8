#!/usr/bin/env python3
"""The CPU engine beside llama.cpp: CPU time a token, prefill and decode, same GGUF, same threads, interleaved rounds.

CPU time (getrusage, all threads) rather than wall time, because machines are shared; each figure is the median of the
rounds. Needs llama-cpp-python; `make bench-engine` builds bench-engine and runs this with the interpreter that has it:

    ~/.cache/baton/ref-venv/bin/python tools/bench-engine.py build/bin/bench-engine MODEL.gguf... [--out FILE.json]

Exits 1 when the engine is slower than llama.cpp anywhere.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys

import llama_cpp


def cpu_seconds():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime


def prompt(n, vocab):
    return [1000 + i * 7919 % 20000 % (vocab - 1000) for i in range(n)]


class Llama:
    def __init__(self, path, a):
        self.llm = llama_cpp.Llama(path, n_ctx=a.prefill + a.decode + 8, n_batch=512, n_threads=a.threads,
                                   n_threads_batch=a.threads, logits_all=False, verbose=False, flash_attn=a.flash)
        self.ids = prompt(a.prefill, self.llm.n_vocab())
        self.decode = a.decode
        self.round()  # the first pays for reading the file

    def round(self):
        self.llm.reset()
        start = cpu_seconds()
        self.llm.eval(self.ids)
        middle = cpu_seconds()
        for i in range(self.decode):
            self.llm.eval([1000 + i * 31 % 1000])
        end = cpu_seconds()
        return {"prefill": (middle - start) / len(self.ids) * 1e6, "decode": (end - middle) / self.decode * 1e6}


def baton_round(path, a):
    out = subprocess.run([a.program, "--model", path, "--threads", str(a.threads), "--prefill", str(a.prefill),
                          "--decode", str(a.decode)], check=True, capture_output=True, text=True).stdout
    return {r["phase"]: r["cpu_us_token"] for r in map(json.loads, out.splitlines())}


def compare(path, a):
    llama, rounds = Llama(path, a), {"baton": [], "llama.cpp": []}
    for _ in range(a.rounds):
        rounds["baton"].append(baton_round(path, a))
        rounds["llama.cpp"].append(llama.round())
    result = {"model": os.path.basename(path), "threads": a.threads, "prefill_tokens": a.prefill,
              "decode_tokens": a.decode, "rounds": a.rounds}
    for who, rs in rounds.items():
        for phase in ("prefill", "decode"):
            us = statistics.median(r[phase] for r in rs)
            result[f"{who} {phase} us/token"] = round(us, 1)
            result[f"{who} {phase} tokens per CPU second"] = round(1e6 / us, 1)
    return result


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program")
    p.add_argument("models", nargs="+")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--prefill", type=int, default=512)
    p.add_argument("--decode", type=int, default=64)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--flash", action="store_true", help="llama.cpp with flash attention")
    p.add_argument("--out")
    a = p.parse_args()
    info = llama_cpp.llama_print_system_info().decode()
    print(f"llama-cpp-python {llama_cpp.__version__}, system_info: {info}")
    results = [compare(path, a) for path in a.models]
    slower = False
    print(f"{'model':36} {'phase':8} {'baton':>10} {'llama.cpp':>10}   tokens per CPU second, {a.threads} thread(s)")
    for r in results:
        for phase in ("prefill", "decode"):
            ours, theirs = (r[f"{who} {phase} tokens per CPU second"] for who in ("baton", "llama.cpp"))
            slower |= ours < theirs
            print(f"{r['model']:36} {phase:8} {ours:10.1f} {theirs:10.1f}   x {ours / theirs:.2f}")
    if a.out:
        with open(a.out, "w") as f:
            json.dump({"llama_cpp_python": llama_cpp.__version__, "system_info": info, "results": results}, f, indent=1)
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
