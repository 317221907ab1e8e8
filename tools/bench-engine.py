#!/usr/bin/env python3
"""The CPU engine beside llama.cpp on the same GGUF files, and beside what the machine could do at best.

Both engines run the same work with the same number of threads, in alternating rounds: prefill of 512 and 2,048 tokens, decode of
1, 8 and 32 sequences, and 32 users who share a prompt of 512 tokens (16 of their own, 16 answered). In every round memory is
read as often as a token needs it and bytes are multiplied in registers, as fast as the machine lets one: decode is bound by
the first, prefill by the second. Figures are medians of the rounds, tokens a second of CPU time (all threads), for machines
are shared; tokens a second of wall time stand beside them. Needs llama-cpp-python and gguf: `make bench-engine`.

    ~/.cache/baton/bench/llama/bin/python tools/bench-engine.py build/bin/bench-engine MODEL.gguf... [--q8 MODEL.gguf]

llama.cpp has flash attention as it chooses itself, a KV cache that sequences share (kv_unified), and a prompt that several
sequences have in common computed once (llama_memory_seq_cp). Its threads wait for each other hundreds of times a token, by GNU OpenMP's
barriers, which spin for milliseconds by default: right on a quiet machine, ruinous where others want the processor. With several
threads it is therefore measured both ways, as it is and with GOMP_SPINCOUNT (short spins, then futex; llama.cpp's own --poll has no
say in an OpenMP build), and each figure is the better of the two. Exits 1 when Baton is slower anywhere.
"""
import argparse
import ctypes
import json
import multiprocessing
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import gguf
import llama_cpp

from gguf_retype import retype

USERS, SHARED, SUFFIX, ANSWER = 32, 512, 16, 16
SHORT = 64  # prompt before batched decode
STEPS = {1: 32, 8: 8, 32: 4}
LONGEST = 2048
SHORT_SPIN = "10000"  # rounds, some tens of microseconds
WORK = ("prefill 2048", "prefill 512", "decode 1", "decode 8", "decode 32", "users")


def prompt(n):
    return [1000 + i * 7919 % 20000 for i in range(n)]


class Span:
    """CPU and wall time since it was made, in microseconds a token."""

    def __init__(self):
        self.cpu, self.wall = self.now()

    @staticmethod
    def now():
        u = resource.getrusage(resource.RUSAGE_SELF)
        return u.ru_utime + u.ru_stime, time.monotonic()

    def per_token(self, n):
        cpu, wall = self.now()
        return (cpu - self.cpu) / n * 1e6, (wall - self.wall) / n * 1e6


class Llama:
    def __init__(self, path, threads):
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        p = llama_cpp.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max, p.kv_unified = 4096, LONGEST, 512, USERS, True
        p.n_threads = p.n_threads_batch = threads
        self.ctx = llama_cpp.llama_init_from_model(self.model, p)
        if not self.model or not self.ctx:
            sys.exit(f"llama.cpp can't load {path}")
        self.memory = llama_cpp.llama_get_memory(self.ctx)
        self.batch = llama_cpp.llama_batch_init(LONGEST, 0, 1)
        self.prefill(SHORT)  # the first pays for reading the file

    def close(self):
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.ctx)
        llama_cpp.llama_model_free(self.model)

    def decode(self, rows):
        """rows: (token, position, sequence, whether logits are wanted)"""
        b = self.batch
        b.n_tokens = len(rows)
        for i, (token, pos, seq, logits) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, pos, 1, logits
            b.seq_id[i][0] = seq
        if llama_cpp.llama_decode(self.ctx, b):
            sys.exit("llama.cpp: llama_decode failed")
        llama_cpp.llama_synchronize(self.ctx)

    def start(self, n):
        llama_cpp.llama_memory_clear(self.memory, False)
        self.decode([(t, i, 0, i + 1 == n) for i, t in enumerate(prompt(n))])
        self.held = n  # tokens of the prompt alone

    def share(self):
        for seq in range(1, USERS):
            llama_cpp.llama_memory_seq_cp(self.memory, 0, seq, -1, -1)

    def steps(self, pos, batch, n):
        self.held = 0
        for i in range(n):
            self.decode([(1000 + (i * 31 + j) % 1000, pos + i, j, True) for j in range(batch)])

    def prefill(self, n):
        span = Span()
        self.start(n)
        return span.per_token(n)

    def steady(self, context, batch):
        """Decode after the prompt in memory; sequences share it."""
        if self.held != context:
            self.start(context)
        if batch > 1:
            self.share()
        span = Span()
        self.steps(context, batch, STEPS[batch])
        return span.per_token(batch * STEPS[batch])

    def users(self):
        span = Span()
        self.start(SHARED)
        self.share()
        self.decode([(1000 + (u * 131 + i * 17) % 1000, SHARED + i, u, i + 1 == SUFFIX) for u in range(USERS) for i in range(SUFFIX)])
        self.steps(SHARED + SUFFIX, USERS, ANSWER)
        return span.per_token(USERS * ANSWER)

    def round(self, work):
        out = {}
        for key in work:
            kind, _, n = key.partition(" ")
            if kind == "users":
                out[key] = self.users()
            elif kind == "prefill":
                out[key] = self.prefill(int(n))
            else:
                out[key] = self.steady(512 if n == "1" else SHORT, int(n))
        return out


def serve(path, threads, pipe):
    """A process of its own: how OpenMP waits is read once, when a process starts."""
    keep = quiet()
    llama = Llama(path, threads)
    pipe.send("ready")
    for work in iter(pipe.recv, None):
        pipe.send(llama.round(work))
    llama.close()
    del keep


class Apart:
    def __init__(self, path, threads, spin):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        if spin:
            os.environ["GOMP_SPINCOUNT"] = spin
        self.process = context.Process(target=serve, args=(path, threads, theirs), daemon=True)
        self.process.start()
        os.environ.pop("GOMP_SPINCOUNT", None)
        theirs.close()
        self.pipe.recv()

    def round(self, work):
        self.pipe.send(work)
        return self.pipe.recv()

    def close(self):
        self.pipe.send(None)
        self.process.join()


def baton_round(a, path, threads, file_mib):
    bounds = []

    def run(prefill, decode, *more):
        args = ["--model", path, "--threads", threads, "--prefill", prefill, "--decode", decode, "--probe", file_mib, *more]
        out = subprocess.run([a.program, *map(str, args)], check=True, capture_output=True, text=True).stdout
        lines = {r["phase"]: r for r in map(json.loads, out.splitlines())}
        bounds.append(lines.pop("bounds"))
        return {phase: (r["cpu_us_token"], r["wall_us_token"]) for phase, r in lines.items()}

    out = {}
    for key in a.work:
        kind, _, n = key.partition(" ")
        if kind == "users":
            out[key] = run(SHARED, ANSWER, "--batch", USERS, "--suffix", SUFFIX)["users"]
        elif kind == "prefill":
            out[key] = run(n, 0)["prefill"]
        else:
            out[key] = run(512 if n == "1" else SHORT, STEPS[int(n)], "--batch", n)["decode"]
    out["bounds"] = {k: statistics.median(b[k] for b in bounds) for k in ("read_cpu", "int8_cpu")}
    return out


def size_of(path):
    """Bytes of weights that a decoded token needs, multiply-adds x 2 of a prompt's token."""
    tensors = gguf.GGUFReader(path).tensors
    tied = not any(t.name == "output.weight" for t in tensors)
    read = sum(int(t.n_bytes) for t in tensors if tied or t.name != "token_embd.weight")
    layers = sum(int(t.n_elements) for t in tensors if t.name.startswith("blk.") and len(t.shape) > 1)
    return read, 2 * layers


def medians(rounds, key):
    return tuple(statistics.median(r[key][i] for r in rounds) for i in (0, 1))


def best(ways, key):
    """The lowest CPU and the lowest wall time of llama.cpp's ways to wait."""
    each = [medians(rounds, key) for rounds in ways]
    return min(cpu for cpu, _ in each), min(wall for _, wall in each)


def of_bound(key, cpu_us, ours, read, ops):
    """The share of what the machine could do, where the work has one bound."""
    rate = {k: statistics.median(r["bounds"][k] for r in ours) for k in ("read_cpu", "int8_cpu")}
    if key == "decode 1":
        return f"{read / (cpu_us / 1e6) / rate['read_cpu'] * 100:.0f} % of {rate['read_cpu'] / 1e9:.1f} GB/s"
    if key.startswith("prefill"):
        return f"{ops / (cpu_us / 1e6) / rate['int8_cpu'] * 100:.0f} % of {rate['int8_cpu'] / 1e9:.0f} GOP/s"
    return ""


def report(path, threads, ours, theirs):
    read, ops = size_of(path)
    slower, results = False, []
    for key in theirs[0][0]:
        (cpu, wall), (their_cpu, their_wall) = medians(ours, key), best(theirs, key)
        slower |= cpu > their_cpu
        bound = of_bound(key, cpu, ours, read, ops)
        results.append({"model": os.path.basename(path), "threads": threads, "work": key, "baton_cpu_us": cpu, "baton_wall_us": wall,
                        "llama_cpu_us": their_cpu, "llama_wall_us": their_wall, "bound": bound,
                        "llama_ways": [medians(w, key) for w in theirs]})
        print(f"| {os.path.basename(path)} | {threads} | {key} | {1e6 / cpu:.1f} | {1e6 / their_cpu:.1f} | {their_cpu / cpu:.2f} | "
              f"{bound} | {1e6 / wall:.1f} | {1e6 / their_wall:.1f} | {their_wall / wall:.2f} |", flush=True)
    return slower, results


def compare(a, path, threads):
    llamas, ours = [Apart(path, threads, spin) for spin in ([None] if threads == 1 else [None, SHORT_SPIN])], []
    theirs = [[] for _ in llamas]
    for _ in range(a.rounds):
        ours.append(baton_round(a, path, threads, max(1, size_of(path)[0] >> 20)))
        for llama, rounds in zip(llamas, theirs):
            rounds.append(llama.round(a.work))
    for llama in llamas:
        llama.close()
    return report(path, threads, ours, theirs)


def quiet():
    """llama.cpp prints every tensor otherwise."""
    callback = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    return callback


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program")
    p.add_argument("models", nargs="*")
    p.add_argument("--q8", action="append", default=[], help="a model to measure with all its matrices as Q8_0, too")
    p.add_argument("--threads", type=lambda s: [int(n) for n in s.split(",")], default=[1, 2])
    p.add_argument("--work", type=lambda s: s.split(","), default=WORK, help=f"some of: {','.join(WORK)}")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--out", help="a file for the figures as JSON")
    a = p.parse_args()
    keep = quiet()
    info = llama_cpp.llama_print_system_info().decode()
    print(f"llama-cpp-python {llama_cpp.__version__}, system_info: {info}")
    print(f"{a.rounds} rounds, load {os.getloadavg()[0]:.1f} at the start\n")
    print("| model | threads | work | Baton, tokens a CPU second | llama.cpp | ratio | of the bound | Baton, tokens a second | llama.cpp | ratio |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    slower, results = False, []
    with tempfile.TemporaryDirectory() as d:
        made = [str(pathlib.Path(d) / (pathlib.Path(m).stem.split(".")[0] + ".Q8_0.gguf")) for m in a.q8]
        for source, path in zip(a.q8, made):
            retype(source, path, "Q8_0")
        for threads in a.threads:
            for path in a.models + made:
                slow, some = compare(a, path, threads)
                slower |= slow
                results += some
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")
    del keep
    if a.out:
        with open(a.out, "w") as f:
            json.dump({"llama_cpp_python": llama_cpp.__version__, "system_info": info, "results": results}, f, indent=1)
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
