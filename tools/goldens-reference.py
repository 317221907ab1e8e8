#!/usr/bin/env python3
"""Makes tests/golden/engine/<model>-reference.json: what exact arithmetic says of a model.

A plain numpy forward pass over the dequantised weights of a GGUF file (f32 products, no quantised activations, no KV
rounding) on one sequence of 600 tokens: for each position the best token, its distance to the second, and the
log-probability of the token that follows. The sequence is made of the prompts and continuations in <model>.jsonl.

    ~/.cache/baton/ref-venv/bin/python tools/goldens-reference.py smollm2-135m MODEL.gguf
"""
import json
import os
import sys

import gguf
import numpy as np

GOLDEN = os.path.join(os.path.dirname(__file__), "..", "tests", "golden", "engine")
N_TOKENS = 600


class Model:
    def __init__(self, path):
        self.file = gguf.GGUFReader(path)
        self.tensors = {t.name: t for t in self.file.tensors}
        self.arch = self.key("general.architecture", "")
        self.gemma = self.arch == "gemma3"
        self.layers = self.key("block_count")
        self.d = self.key("embedding_length")
        self.heads = self.key("attention.head_count")
        self.kv_heads = self.key("attention.head_count_kv")
        self.head_dim = self.key("attention.key_length", default=self.d // self.heads)
        self.eps = self.key("attention.layer_norm_rms_epsilon")
        self.base = self.key("rope.freq_base", default=1e4)
        self.window = self.key("attention.sliding_window", default=0)

    def key(self, name, prefix=None, default=None):
        field = self.file.fields.get(name if prefix == "" else f"{self.arch}.{name}")
        return default if field is None else field.contents()

    def weight(self, name):
        t = self.tensors[name + ".weight"]
        shape = [int(n) for n in t.shape][::-1]
        return gguf.dequantize(t.data, t.tensor_type).reshape(shape).astype(np.float32)

    def norm(self, x, w):
        return (x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + self.eps) * w).astype(np.float32)

    def rope(self, x, local):
        n, _, d = x.shape
        base = 1e4 if local else self.base
        angle = np.arange(n)[:, None] * base ** (-2.0 * np.arange(d // 2) / d)
        c, s = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
        a, b = (x[..., : d // 2], x[..., d // 2:]) if self.gemma else (x[..., 0::2], x[..., 1::2])
        y = np.empty_like(x)
        u, v = a * c - b * s, a * s + b * c
        if self.gemma:
            y[..., : d // 2], y[..., d // 2:] = u, v
        else:
            y[..., 0::2], y[..., 1::2] = u, v
        return y

    def attention(self, x, layer):
        local = self.window and (layer + 1) % 6 != 0
        n, hd = len(x), self.head_dim
        w = lambda name: self.weight(f"blk.{layer}.{name}")
        q = (x @ w("attn_q").T).reshape(n, self.heads, hd)
        k = (x @ w("attn_k").T).reshape(n, self.kv_heads, hd)
        v = (x @ w("attn_v").T).reshape(n, self.kv_heads, hd)
        if self.gemma:
            q, k = self.norm(q, w("attn_q_norm")), self.norm(k, w("attn_k_norm"))
        q, k = self.rope(q, local), self.rope(k, local)
        pos = np.arange(n)
        seen = pos[:, None] >= pos[None, :]
        if local:
            seen &= pos[:, None] - pos[None, :] < self.window
        out = np.empty((n, self.heads, hd), np.float32)
        for h in range(self.heads):
            kv = h // (self.heads // self.kv_heads)
            s = np.where(seen, q[:, h] @ k[:, kv].T / np.sqrt(hd), -np.inf)
            p = np.exp(s - s.max(-1, keepdims=True))
            out[:, h] = (p / p.sum(-1, keepdims=True)) @ v[:, kv]
        return out.reshape(n, -1) @ w("attn_output").T

    def feed_forward(self, x, layer):
        w = lambda name: self.weight(f"blk.{layer}.{name}")
        g = x @ w("ffn_gate").T
        if self.gemma:
            g = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
        else:
            g = g / (1 + np.exp(-g))
        return (g * (x @ w("ffn_up").T)) @ w("ffn_down").T

    def hidden(self, ids):
        h = self.weight("token_embd")[ids] * np.float32(np.sqrt(self.d) if self.gemma else 1)
        for layer in range(self.layers):
            w = lambda name: self.weight(f"blk.{layer}.{name}")
            o = self.attention(self.norm(h, w("attn_norm")), layer)
            h = h + (self.norm(o, w("post_attention_norm")) if self.gemma else o)
            o = self.feed_forward(self.norm(h, w("ffn_norm")), layer)
            h = h + (self.norm(o, w("post_ffw_norm")) if self.gemma else o)
        return self.norm(h, self.weight("output_norm"))


def sequence(name):
    ids = []
    with open(os.path.join(GOLDEN, name + ".jsonl")) as f:
        next(f)
        for line in f:
            g = json.loads(line)
            ids += g["ids"] + g["out"][:40]
    return ids[:N_TOKENS]


def main():
    name, path = sys.argv[1], sys.argv[2]
    ids = sequence(name)
    model = Model(path)
    h, head = model.hidden(ids), model.weight("token_embd")
    top, gap, logprob = [], [], [None]
    for i in range(len(ids)):
        logits = (head @ h[i]).astype(np.float64)
        b, a = np.argsort(logits)[-2:]
        top.append(int(a))
        gap.append(round(float(logits[a] - logits[b]), 4))
        if i + 1 < len(ids):
            m = logits.max()
            logprob.append(round(float(logits[ids[i + 1]] - m - np.log(np.exp(logits - m).sum())), 5))
    with open(os.path.join(GOLDEN, name + "-reference.json"), "w") as f:
        json.dump({"model": os.path.basename(path), "ids": ids, "top": top, "gap": gap, "logprob": logprob}, f,
                  separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
