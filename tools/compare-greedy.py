#!/usr/bin/env python3
"""Greedy text of Baton on a quantised GGUF beside llama.cpp on the same weights in F32, and on the file itself.

llama.cpp rounds activations to 8 bits wherever weights are quantised. To see what that does to text, each file is written
once more with its dequantised weights as F32 (in a temporary folder): there llama.cpp computes in f32, KV in f32. Prompts are
passages of this repository's documents, drawn at run time; the seed is printed.

    ~/.cache/baton/bench/llama/bin/python tools/compare-greedy.py build/bin/bench-engine MODEL.gguf... [--prompts 20]

A prompt counts as equal when all tokens are; otherwise the first that differs is at a tie (Baton's two best logits within
0.1 of each other) or elsewhere. Exits 1 when a model has fewer than 15 of 20 equal to F32, or one that differs elsewhere.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import llama_cpp
import numpy as np

from gguf_retype import retype

TIE = 0.1
F32_KV = 0  # ggml's number of the type
ROOT = pathlib.Path(__file__).resolve().parent.parent


def passages(seed, n):
    """Starts of sentences, 8 to 40 words, out of the documents' prose."""
    words = []
    for path in sorted(ROOT.glob("docs/*.md")) + [ROOT / "README.md"]:
        lines = path.read_text().splitlines()
        words += [w for line in lines if line and line[0].isalpha() and "`" not in line for w in line.split()]
    draw = random.Random(seed)
    starts = [i + 1 for i, w in enumerate(words[:-48]) if w.endswith(".") and words[i + 1][0].isupper()]
    return [" ".join(words[i:i + draw.randint(8, 40)]) for i in draw.sample(starts, n)]


class Llama:
    def __init__(self, path, a, f32):
        kv = {"type_k": F32_KV, "type_v": F32_KV} if f32 else {}
        self.llm = llama_cpp.Llama(str(path), n_ctx=256, n_batch=256, n_threads=a.threads, n_threads_batch=a.threads,
                                   verbose=False, flash_attn=False, **kv)

    def ids(self, text):
        return self.llm.tokenize(text.encode(), add_bos=True)

    def greedy(self, ids, n):
        self.llm.reset()
        self.llm.eval(ids)
        out = []
        for _ in range(n):
            out.append(int(np.argmax(self.logits())))
            self.llm.eval(out[-1:])
        return out

    def logits(self):
        row = llama_cpp.llama_get_logits_ith(self.llm.ctx, -1)
        return np.ctypeslib.as_array(row, shape=(self.llm.n_vocab(),))


def baton(path, ids, a):
    out = subprocess.run([a.program, "--model", str(path), "--threads", str(a.threads), "--decode", str(a.tokens), "--kv", a.kv,
                          "--ids", ",".join(map(str, ids))], check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in out.splitlines()]


def verdict(ours, theirs):
    for x, y in zip(ours, theirs):
        if x["id"] != y:
            return "tie" if x["gap"] < TIE else "elsewhere"
    return "equal"


def count(name, ours, theirs):
    verdicts = [verdict(x, y) for x, y in zip(ours, theirs)]
    n = {v: verdicts.count(v) for v in ("equal", "tie", "elsewhere")}
    print(f"| {name} | {n['equal']} | {n['tie']} | {n['elsewhere']} |", flush=True)
    return n


def compare(path, prompts, a):
    name = pathlib.Path(path).name
    with tempfile.TemporaryDirectory() as d:
        full = pathlib.Path(d) / "f32.gguf"
        retype(path, str(full), "F32")
        exact = Llama(full, a, True)
        ids = [exact.ids(p) for p in prompts]
        f32 = [exact.greedy(i, a.tokens) for i in ids]
        del exact
    ours = [baton(path, i, a) for i in ids]
    rounded = Llama(path, a, False)
    theirs = [rounded.greedy(i, a.tokens) for i in ids]
    n = count(f"{name}: Baton, llama.cpp in f32", ours, f32)
    count(f"{name}: Baton, llama.cpp", ours, theirs)
    same = sum(x == y for x, y in zip(theirs, f32))
    print(f"| {name}: llama.cpp, llama.cpp in f32 | {same} | {len(f32) - same} differ | |", flush=True)
    return n["equal"] * 20 >= 15 * len(prompts) and n["elsewhere"] == 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program")
    p.add_argument("models", nargs="+")
    p.add_argument("--prompts", type=int, default=20)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--kv", default="f16", help="Baton's KV type")
    p.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    a = p.parse_args()
    print(f"seed {a.seed}, {a.prompts} prompts, {a.tokens} tokens, KV of Baton {a.kv}; llama-cpp-python {llama_cpp.__version__}")
    print("| compared | equal | first differ at a tie | elsewhere |\n|---|---|---|---|")
    prompts = passages(a.seed, a.prompts)
    return 0 if all([compare(m, prompts, a) for m in a.models]) else 1


if __name__ == "__main__":
    sys.exit(main())
