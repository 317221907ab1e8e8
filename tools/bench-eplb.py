#!/usr/bin/env python3
"""Time to place experts (lib/decide/eplb.c) beside the published Python in the same run, on the same loads.

    ~/.cache/baton/ref-venv/bin/python tools/bench-eplb.py [eplb.py of github.com/deepseek-ai/EPLB]

256 experts, 61 layers, 288 places on 144 GPUs of 18 nodes (8 groups: the global policy) and 32 GPUs of 4 nodes (hierarchical).
CPU seconds of one thread, the best of a few; with eplb.py given also whether both placements are equal.
"""
import ctypes
import importlib.util
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
LAYERS = 61


class Shape(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint32) for n in ("experts", "physical", "groups", "nodes", "devices")]


def build(folder):
    so = os.path.join(folder, "eplb.so")
    subprocess.run(["cc", "-O2", "-std=gnu17", "-D_GNU_SOURCE", "-shared", "-fPIC", "-I", ROOT, "-o", so, ROOT + "/lib/decide/eplb.c",
                    ROOT + "/lib/base/err.c"], check=True)
    return ctypes.CDLL(so)


def cpu_seconds(fn, rounds):
    best = None
    for _ in range(rounds):
        t = time.thread_time()
        fn()
        t = time.thread_time() - t
        best = t if best is None else min(best, t)
    return best


def loads(experts):
    rng = np.random.default_rng(1)
    load = np.floor(1e5 / np.arange(1, experts + 1) ** 0.9).astype(np.float32)
    return np.stack([rng.permutation(load) for _ in range(LAYERS)])


def main():
    theirs = None
    if len(sys.argv) > 1:
        spec = importlib.util.spec_from_file_location("eplb", sys.argv[1])
        theirs = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(theirs)
        import torch
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as d:
        lib = build(d)
        for groups, nodes, gpus in ((8, 18, 144), (8, 4, 32)):
            w = loads(256)
            s = Shape(256, 288, groups, nodes, gpus)
            at = np.zeros((LAYERS, 288), np.uint32)

            def ours():
                rc = lib.eplb_place(ctypes.byref(s), w.ctypes.data_as(ctypes.c_void_p), LAYERS,
                                    at.ctypes.data_as(ctypes.c_void_p), None, None, None)
                assert rc == 0

            a = cpu_seconds(ours, 9)
            line = f"256 experts x {LAYERS} layers, {gpus} GPUs of {nodes} nodes: {a * 1e3:.2f} ms"
            if theirs:
                t = torch.from_numpy(w)
                b = cpu_seconds(lambda: theirs.rebalance_experts(t, 288, groups, nodes, gpus), 2)
                same = np.array_equal(theirs.rebalance_experts(t, 288, groups, nodes, gpus)[0].numpy(), at)
                line += f"; published Python {b * 1e3:.0f} ms, {b / a:.0f} times as long; placements {'equal' if same else 'differ'}"
            print(line)


if __name__ == "__main__":
    main()
