"""Folders of small models of every family for tests, drawn as tools/goldens-families.py describes (see there)."""
import json
import os
import struct

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MASK = (1 << 64) - 1


def draws(name):
    z = 0xcbf29ce484222325
    for b in name.encode():
        z = (z ^ b) * 0x100000001b3 & MASK
    while True:
        z = z + 0x9e3779b97f4a7c15 & MASK
        x = (z ^ z >> 30) * 0xbf58476d1ce4e5b9 & MASK
        x = (x ^ x >> 27) * 0x94d049bb133111eb & MASK
        yield x ^ x >> 31


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def data(name, dtype, shape, scale, offset):
    n = 1
    for d in shape:
        n *= d
    source = draws(name)
    if dtype == "F8_E4M3":
        return bytes((r & 1) << 7 | ((r >> 1) % 6 + 4) << 3 | r >> 8 & 7 for r, _ in zip(source, range(n)))
    scale, offset = f32(scale), f32(offset)
    values = [f32(f32(((r >> 40) * 2.0 ** -24 - 0.5) * scale) + offset) for r, _ in zip(source, range(n))]
    if dtype == "F32":
        return struct.pack("<%df" % n, *values)
    if dtype == "F16":
        return struct.pack("<%de" % n, *values)
    bits = struct.unpack("<%dI" % n, struct.pack("<%df" % n, *values))
    return struct.pack("<%dH" % n, *((b + 0x7fff + (b >> 16 & 1)) >> 16 & 0xffff for b in bits))


def write(family, folder):
    """The family's model in `folder`; returns its golden."""
    with open(os.path.join(ROOT, "tests", "golden", "families", family + ".json")) as f:
        golden = json.load(f)
    header, parts, at = {}, [], 0
    for name, dtype, shape, scale, offset in golden["tensors"]:
        parts.append(data(name, dtype, shape, scale, offset))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(parts[-1])]}
        at += len(parts[-1])
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for p in parts:
            f.write(p)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(golden["config"], f)
    return golden
