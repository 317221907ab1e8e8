#!/usr/bin/env python3
"""Makes tests/golden/families/<family>.json: logits of small random-weight models by transformers.

A golden holds config.json, the list of tensors and the logits; the weights are not kept: both this script and the test
(tests/worker/model/test_families.c) draw them from the same generator, so a file is small and a model has no download.
Weights: value i of a tensor is scale * (u - 0.5) + offset, u in [0, 1) from the upper 24 bits of splitmix64 seeded with
FNV-1a of the tensor's name plus i; then rounded to the tensor's type. Scales are such that logits are spread like a real
model's (standard deviation of a few). FP8 tensors: codes are the low byte of the generator with exponents kept small, scales
for 128 x 128 weights from a tensor of their own.

    ~/.cache/baton/ref-venv/bin/python tools/goldens-families.py [family...]
"""
import json
import os
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

OUT = os.path.join(os.path.dirname(__file__), "..", "tests", "golden", "families")
N_TOKENS = 40
VOCAB = 320
BASE = {"vocab_size": VOCAB, "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}

ROPE_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 16, "rope_theta": 500000.0}
ROPE_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32, "beta_slow": 1,
             "mscale": 1.0, "mscale_all_dim": 1.0, "rope_theta": 10000.0}
DENSE = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 6,
         "num_key_value_heads": 2, "tie_word_embeddings": False}
MLA = {"q_lora_rank": 48, "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 24, "v_head_dim": 32,
       "num_key_value_heads": 4, "num_attention_heads": 4, "hidden_size": 96, "intermediate_size": 160,
       "num_hidden_layers": 3, "first_k_dense_replace": 1, "moe_intermediate_size": 48, "n_shared_experts": 2,
       "n_routed_experts": 16, "num_experts_per_tok": 4, "tie_word_embeddings": False}

FAMILIES = {
    "llama3": ("Llama", {**DENSE, "rope_parameters": ROPE_LLAMA3}, {"dtype": "BF16"}),
    "qwen2": ("Qwen2", {**DENSE, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}, {"dtype": "BF16"}),
    "qwen3": ("Qwen3", {**DENSE, "head_dim": 32, "rope_parameters": {**ROPE_YARN, "mscale": None, "mscale_all_dim": None}},
              {"dtype": "F16"}),
    "gemma3": ("Gemma3", {**DENSE, "num_hidden_layers": 7, "head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 16,
                          "tie_word_embeddings": True}, {"dtype": "BF16"}),
    "mixtral": ("Mixtral", {**DENSE, "num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 16,
                            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}, {"dtype": "BF16"}),
    "qwen3-moe": ("Qwen3Moe", {**DENSE, "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48,
                               "norm_topk_prob": True, "mlp_only_layers": [1]}, {"dtype": "F32"}),
    "deepseek-v2": ("DeepseekV2", {**MLA, "n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy",
                                   "routed_scaling_factor": 4.0, "rope_parameters": ROPE_YARN}, {"dtype": "BF16"}),
    "deepseek-v2-lite": ("DeepseekV2", {**MLA, "q_lora_rank": None, "topk_method": "greedy"}, {"dtype": "BF16"}),
    "deepseek-v3": ("DeepseekV3", {**MLA, "n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
                                   "rope_parameters": {**ROPE_YARN, "mscale": 0.7}}, {"dtype": "BF16"}),
    "deepseek-v3-fp8": ("DeepseekV3", {**MLA, "hidden_size": 256, "intermediate_size": 320, "moe_intermediate_size": 144,
                                       "n_group": 4, "topk_group": 2, "norm_topk_prob": True, "rope_parameters": ROPE_YARN},
                        {"dtype": "BF16", "fp8": True}),
}


def fnv1a(name):
    h = 0xcbf29ce484222325
    for b in name.encode():
        h = (h ^ b) * 0x100000001b3 & (1 << 64) - 1
    return h


def draw(name, n):
    """n numbers of splitmix64 as uint64."""
    z = (np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9e3779b97f4a7c15)) + np.uint64(fnv1a(name))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
    return z ^ (z >> np.uint64(31))


def values(name, shape, scale, offset):
    u = (draw(name, int(np.prod(shape))) >> np.uint64(40)).astype(np.float32) * np.float32(2.0 ** -24)
    return ((u - np.float32(0.5)) * np.float32(scale) + np.float32(offset)).reshape(shape)


TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def spread(name, shape, gemma):
    """Scale and offset of a tensor's values."""
    if name.endswith("e_score_correction_bias"):
        return 0.3, 0.0
    if "norm" in name:
        return 0.6, 0.0 if gemma else 1.0
    if name.endswith("bias"):
        return 1.0, 0.0
    if name == "lm_head.weight":
        return 10.0 / shape[-1] ** 0.5, 0.0
    if "embed_tokens" in name:
        return (0.9 if gemma else 3.0), 0.0
    if name.endswith("gate.weight"):
        return 8.0 / shape[-1] ** 0.5, 0.0
    return 5.0 / shape[-1] ** 0.5, 0.0


def fp8_codes(name, shape):
    """Codes whose exponents are 4 to 9 of 15: values of 0.06 to 7.5 in size."""
    r = draw(name, int(np.prod(shape)))
    sign = (r & np.uint64(1)).astype(np.uint8) << 7
    exponent = ((r >> np.uint64(1)) % np.uint64(6) + np.uint64(4)).astype(np.uint8) << 3
    return (sign | exponent | (r >> np.uint64(8) & np.uint64(7)).astype(np.uint8)).reshape(shape)


def is_fp8(name, shape):
    return len(shape) == 2 and name.endswith("_proj.weight") or name.endswith("_mqa.weight")


def tensors(model, meta, gemma):
    """(name, dtype, shape, scale, offset) of the files, and the state that transformers loads."""
    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(d)
        from safetensors import safe_open
        with safe_open(d + "/model.safetensors", "pt") as f:
            shapes = {k: list(f.get_slice(k).get_shape()) for k in f.keys()}
        config = json.load(open(d + "/config.json"))
    entries, state = [], {}
    for name, shape in sorted(shapes.items()):
        dtype = "F32" if name.endswith("e_score_correction_bias") else meta["dtype"]
        scale, offset = spread(name, shape, gemma)
        if meta.get("fp8") and is_fp8(name, shape):
            rows, cols = -(-shape[0] // 128), -(-shape[1] // 128)
            entries.append([name, "F8_E4M3", shape, 0, 0])
            entries.append([name + "_scale_inv", "F32", [rows, cols], 0.3 / shape[1] ** 0.5, 0.5 / shape[1] ** 0.5])
            s = values(name + "_scale_inv", [rows, cols], *entries[-1][3:])
            codes = torch.from_numpy(fp8_codes(name, shape)).view(torch.float8_e4m3fn).float()
            full = np.repeat(np.repeat(s, 128, 0), 128, 1)[:shape[0], :shape[1]]
            state[name] = codes * torch.from_numpy(full.copy())
            continue
        entries.append([name, dtype, shape, scale, offset])
        state[name] = torch.from_numpy(values(name, shape, scale, offset)).to(TYPES[dtype]).float()
    return entries, state, config


def logits_of(cls, config, state, ids):
    with tempfile.TemporaryDirectory() as d:
        save_file({k: v.contiguous() for k, v in state.items()}, d + "/model.safetensors", metadata={"format": "pt"})
        json.dump(config, open(d + "/config.json", "w"))
        model = cls.from_pretrained(d, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double().numpy()


def make(family):
    name, options, meta = FAMILIES[family]
    text = name == "Gemma3"
    config = getattr(transformers, name + ("TextConfig" if text else "Config"))(**{**BASE, **options})
    cls = getattr(transformers, name + "ForCausalLM")
    torch.manual_seed(0)
    entries, state, config = tensors(cls(config), meta, text)
    config.update(dtype="float32", transformers_version=transformers.__version__)
    ids = [int(x % VOCAB) for x in draw("ids of " + family, N_TOKENS)]
    logits = logits_of(cls, config, state, ids)
    print(f"{family}: {logits.std():.2f} standard deviation, {np.abs(logits).max():.1f} largest, "
          f"{len(set(logits.argmax(1)))} different best tokens of {N_TOKENS}")
    if meta.get("fp8"):
        config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    golden = {"family": family, "torch": torch.__version__, "config": config, "tensors": entries, "ids": ids,
              "logits": [[float(f"{v:.8g}") for v in row] for row in logits]}
    with open(os.path.join(OUT, family + ".json"), "w") as f:
        json.dump(golden, f, separators=(",", ":"))
        f.write("\n")


def main():
    os.makedirs(OUT, exist_ok=True)
    for family in sys.argv[1:] or FAMILIES:
        make(family)


if __name__ == "__main__":
    main()
