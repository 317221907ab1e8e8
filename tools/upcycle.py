#!/usr/bin/env python3
"""A GGUF model of the Llama family as Hugging Face folders: the dense model, and it as a Mixtral whose experts are copies.

Sparse upcycling (arXiv 2212.05055): each expert is the dense feed-forward part plus noise, the router is random. With no noise
the mixture equals the dense model, because the chosen experts' weights add up to 1.

    ~/.cache/baton/ref-venv/bin/python tools/upcycle.py MODEL.gguf OUT_DIR [--experts 4] [--used 2] [--noise 0.0] [--seed 0]

Writes OUT_DIR/dense and OUT_DIR/mixtral: config.json, safetensors in BF16 (the mixture in shards with an index),
tokenizer.json, tokenizer_config.json with the chat template.
"""
import argparse
import json
import os

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

SHARD_BYTES = 256 << 20
LAYER = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
EXPERT = {"mlp.gate_proj": "w1", "mlp.up_proj": "w3", "mlp.down_proj": "w2"}


def field(r, key, default=None):
    f = r.fields.get(key)
    return f.contents() if f else default


def unpermute(w, heads):
    """GGUF keeps Q and K of Llama with rotary pairs side by side; Hugging Face's files have them in two halves."""
    rows, cols = w.shape
    return w.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def dense_tensors(r, heads, kv_heads):
    out = {}
    for t in r.tensors:
        w = gguf.dequantize(t.data, t.tensor_type).astype(np.float32)
        name = t.name.removesuffix(".weight")
        if name.endswith("attn_q"):
            w = unpermute(w, heads)
        if name.endswith("attn_k"):
            w = unpermute(w, kv_heads)
        if name.startswith("blk."):
            _, layer, part = name.split(".")
            name = f"model.layers.{layer}.{LAYER[part]}"
        else:
            name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}[name]
        out[name + ".weight"] = torch.from_numpy(w).to(torch.bfloat16)
    return out


def mixtral_tensors(dense, layers, options):
    g = torch.Generator().manual_seed(options.seed)
    out = {k: v for k, v in dense.items() if ".mlp." not in k}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        d = dense[at + "mlp.gate_proj.weight"].shape[1]
        out[at + "block_sparse_moe.gate.weight"] = (torch.randn(options.experts, d, generator=g) * 0.05).to(torch.bfloat16)
        for e in range(options.experts):
            for part, w in EXPERT.items():
                x = dense[at + part + ".weight"].float()
                x = x + options.noise * x.std() * torch.randn(x.shape, generator=g) if options.noise else x
                out[f"{at}block_sparse_moe.experts.{e}.{w}.weight"] = x.to(torch.bfloat16)
    return out


def write_json(path, o):
    with open(path, "w") as f:
        json.dump(o, f, indent=1)
        f.write("\n")


def save(folder, config, tensors, shard_bytes):
    os.makedirs(folder, exist_ok=True)
    write_json(folder + "/config.json", config)
    shards, size = [{}], 0
    for name, t in tensors.items():
        size += t.numel() * t.element_size()
        if size > shard_bytes and shards[-1]:
            shards.append({})
            size = t.numel() * t.element_size()
        shards[-1][name] = t.contiguous().clone()
    if len(shards) == 1:
        save_file(shards[0], folder + "/model.safetensors", metadata={"format": "pt"})
        return
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards):
        save_file(shard, f"{folder}/{name}", metadata={"format": "pt"})
    write_json(folder + "/model.safetensors.index.json",
               {"metadata": {}, "weight_map": {k: n for n, s in zip(names, shards) for k in s}})


def tokenizer(gguf_path, folder):
    from transformers import AutoTokenizer
    t = AutoTokenizer.from_pretrained(os.path.dirname(gguf_path), gguf_file=os.path.basename(gguf_path))
    t.save_pretrained(folder)
    r = gguf.GGUFReader(gguf_path)
    path = folder + "/tokenizer_config.json"
    config = json.load(open(path))
    template = field(r, "tokenizer.chat_template")
    if template and not config.get("chat_template") and not os.path.exists(folder + "/chat_template.jinja"):
        config["chat_template"] = template
        write_json(path, config)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("--experts", type=int, default=4)
    p.add_argument("--used", type=int, default=2)
    p.add_argument("--noise", type=float, default=0.0)
    p.add_argument("--seed", type=int, default=0)
    options = p.parse_args()
    r = gguf.GGUFReader(options.model)

    def key(name, default=None):
        return field(r, "llama." + name, default)

    layers, heads, kv_heads = key("block_count"), key("attention.head_count"), key("attention.head_count_kv")
    dense = dense_tensors(r, heads, kv_heads)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_act": "silu",
              "vocab_size": dense["model.embed_tokens.weight"].shape[0], "hidden_size": key("embedding_length"),
              "intermediate_size": key("feed_forward_length"), "num_hidden_layers": layers, "num_attention_heads": heads,
              "num_key_value_heads": kv_heads, "max_position_embeddings": key("context_length"),
              "rms_norm_eps": key("attention.layer_norm_rms_epsilon"), "rope_theta": key("rope.freq_base"),
              "tie_word_embeddings": "lm_head.weight" not in dense, "bos_token_id": field(r, "tokenizer.ggml.bos_token_id"),
              "eos_token_id": field(r, "tokenizer.ggml.eos_token_id")}
    save(options.out + "/dense", config, dense, 1 << 40)
    tokenizer(options.model, options.out + "/dense")
    mixtral = {**config, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "sliding_window": None,
               "num_local_experts": options.experts, "num_experts_per_tok": options.used}
    save(options.out + "/mixtral", mixtral, mixtral_tensors(dense, layers, options), SHARD_BYTES)
    tokenizer(options.model, options.out + "/mixtral")


if __name__ == "__main__":
    main()
