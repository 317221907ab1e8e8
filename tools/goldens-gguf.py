#!/usr/bin/env python3
"""Makes tests/golden/engine/gguf-blocks.json: random blocks of every GGUF type that is read, and what the `gguf` package
dequantises them to. Scales are small finite numbers, everything else is random bits.

    ~/.cache/baton/ref-venv/bin/python tools/goldens-gguf.py
"""
import json
import os

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
COLS = 512


def blocks(name, rng):
    kind = GGMLQuantizationType[name]
    elements, size = GGML_QUANT_SIZES[kind]
    n = COLS // elements
    if name in ("F32", "F16", "BF16"):
        x = rng.standard_normal(COLS).astype(np.float32)
        if name == "BF16":
            return kind, (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return kind, x.astype(np.float16 if name == "F16" else np.float32).view(np.uint8)
    raw = rng.integers(0, 256, (n, size), np.uint8)
    for at in SCALES[name]:
        raw[:, at:at + 2] = (rng.standard_normal((n, 1)) * 0.05).astype(np.float16).view(np.uint8).reshape(n, 2)
    return kind, raw.reshape(-1)


def main():
    rng = np.random.default_rng(7)
    out = []
    for name in TYPES:
        kind, raw = blocks(name, rng)
        values = dequantize(raw.view({"F32": np.float32, "F16": np.float16}.get(name, np.uint8)), kind).reshape(-1)
        assert values.size == COLS
        out.append({"type": int(kind), "name": name, "raw": raw.tobytes().hex(), "values": [float(v) for v in values]})
    path = os.path.join(os.path.dirname(__file__), "..", "tests", "golden", "engine", "gguf-blocks.json")
    with open(path, "w") as f:
        json.dump(out, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
