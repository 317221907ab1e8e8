"""The families' models as GGUF files, with llama.cpp's names and keys: the same scores as transformers."""
import json
import math
import os
import re
import struct
import subprocess

import pytest

import families
from wireclient import WORKER

U32, F32, BOOL, STR = 4, 6, 7, 8
TYPES = {"F32": 0, "F16": 1, "BF16": 30}
BYTES = {"F32": 4, "F16": 2, "BF16": 2}
PARTS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "mlp.gate": "ffn_gate_inp", "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
         "mlp.shared_experts.down_proj": "ffn_down_shexp", "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
         "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
         "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b"}
TOP = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def kv(key, kind, value):
    body = text(value) if kind == STR else struct.pack({U32: "<I", F32: "<f", BOOL: "<?"}[kind], value)
    return text(key) + struct.pack("<I", kind) + body


def keys(arch, c):
    """What llama.cpp's converter writes of a config.json."""
    out = [kv("general.architecture", STR, arch)]

    def put(name, kind, value):
        out.append(kv(arch + "." + name, kind, value))
    for name, key in (("block_count", "num_hidden_layers"), ("embedding_length", "hidden_size"), ("feed_forward_length", "intermediate_size"),
                      ("context_length", "max_position_embeddings"), ("attention.head_count", "num_attention_heads")):
        put(name, U32, c[key])
    put("attention.layer_norm_rms_epsilon", F32, c["rms_norm_eps"])
    rope = c["rope_parameters"]
    put("rope.freq_base", F32, rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        put("rope.scaling.type", STR, "yarn")
        put("rope.scaling.factor", F32, rope["factor"])
        put("rope.scaling.original_context_length", U32, rope["original_max_position_embeddings"])
        if rope.get("mscale_all_dim"):
            put("rope.scaling.yarn_log_multiplier", F32, 0.1 * rope["mscale_all_dim"])
    if arch == "deepseek2":
        if c["q_lora_rank"]:
            put("attention.q_lora_rank", U32, c["q_lora_rank"])
        put("attention.kv_lora_rank", U32, c["kv_lora_rank"])
        put("attention.key_length", U32, c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
        put("attention.value_length", U32, c["v_head_dim"])
        put("rope.dimension_count", U32, c["qk_rope_head_dim"])
        put("leading_dense_block_count", U32, c["first_k_dense_replace"])
        put("expert_shared_count", U32, c["n_shared_experts"])
        put("expert_weights_scale", F32, c["routed_scaling_factor"])
        put("expert_weights_norm", BOOL, c["model_type"] == "deepseek_v3")
        put("expert_gating_func", U32, 2 if c["model_type"] == "deepseek_v3" else 1)
        if c.get("n_group"):
            put("expert_group_count", U32, c["n_group"])
            put("expert_group_used_count", U32, c["topk_group"])
    else:
        put("attention.head_count_kv", U32, c["num_key_value_heads"])
        put("attention.key_length", U32, c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"])
    experts = c.get("n_routed_experts") or c.get("num_local_experts") or c.get("num_experts")
    if experts:
        put("expert_count", U32, experts)
        put("expert_used_count", U32, c["num_experts_per_tok"])
        put("expert_feed_forward_length", U32, c.get("moe_intermediate_size") or c["intermediate_size"])
    return out


def split_kv_b(raw, shape, c, size):
    """Newer files have the two halves of each head, that of keys transposed."""
    nope, v, row = c["qk_nope_head_dim"], c["v_head_dim"], shape[1] * size
    k_b, v_b = b"", b""
    for head in range(c["num_attention_heads"]):
        at = head * (nope + v) * row
        rows = [raw[at + i * row:at + (i + 1) * row] for i in range(nope)]
        k_b += b"".join(r[j * size:(j + 1) * size] for j in range(shape[1]) for r in rows)
        v_b += raw[at + nope * row:at + (nope + v) * row]
    return k_b, v_b


def tensors(golden, new_kv_b):
    """(name, type, dimensions with the fastest first, bytes)."""
    out, experts, c = [], {}, golden["config"]
    for name, dtype, shape, scale, offset in golden["tensors"]:
        raw = families.data(name, dtype, shape, scale, offset)
        if name in TOP:
            out.append((TOP[name], dtype, shape[::-1], raw))
            continue
        layer, part = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name).groups()
        expert = re.fullmatch(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight", part)
        if expert:
            experts.setdefault((layer, expert[2], dtype, tuple(shape)), {})[int(expert[1])] = raw
        elif part == "mlp.gate.e_score_correction_bias":
            out.append((f"blk.{layer}.exp_probs_b.bias", dtype, shape, raw))
        elif part == "self_attn.kv_b_proj.weight" and new_kv_b:
            k_b, v_b = split_kv_b(raw, shape, c, BYTES[dtype])
            heads = c["num_attention_heads"]
            out.append((f"blk.{layer}.attn_k_b.weight", dtype, [c["qk_nope_head_dim"], shape[1], heads], k_b))
            out.append((f"blk.{layer}.attn_v_b.weight", dtype, [shape[1], c["v_head_dim"], heads], v_b))
        else:
            stem, _, kind = part.rpartition(".")
            out.append((f"blk.{layer}.{PARTS[stem]}.{kind}", dtype, shape[::-1], raw))
    for (layer, which, dtype, shape), by in experts.items():
        out.append((f"blk.{layer}.ffn_{which}_exps.weight", dtype, [shape[1], shape[0], len(by)], b"".join(by[e] for e in sorted(by))))
    return out


def pad(b, to=32):
    return b + bytes(-len(b) % to)


def write(path, arch, golden, new_kv_b=False):
    meta, items = keys(arch, golden["config"]), tensors(golden, new_kv_b)
    head, at = struct.pack("<4sIQQ", b"GGUF", 3, len(items), len(meta)) + b"".join(meta), 0
    for name, dtype, dims, raw in items:
        head += text(name) + struct.pack("<I%dQIQ" % len(dims), len(dims), *dims, TYPES[dtype], at)
        at += len(pad(raw))
    with open(path, "wb") as f:
        f.write(pad(head))
        for *_, raw in items:
            f.write(pad(raw))


@pytest.mark.parametrize("family,arch,new_kv_b", [
    ("qwen2", "qwen2", False), ("qwen3", "qwen3", False), ("qwen3-moe", "qwen3moe", False), ("deepseek-v2", "deepseek2", False),
    ("deepseek-v2-lite", "deepseek2", True), ("deepseek-v3", "deepseek2", True)])
def test_scores_of_a_gguf_file_are_those_of_transformers(tmp_path, family, arch, new_kv_b):
    with open(os.path.join(families.ROOT, "tests", "golden", "families", family + ".json")) as f:
        golden = json.load(f)
    if family == "deepseek-v3":  # GGUF knows one mscale
        golden["config"]["rope_parameters"]["mscale"] = golden["config"]["rope_parameters"]["mscale_all_dim"]
    if family == "qwen3-moe":  # ... and no dense layers between
        golden = without_dense(golden)
    write(tmp_path / "m.gguf", arch, golden, new_kv_b)
    out = subprocess.run([WORKER, "--score", "--model", str(tmp_path / "m.gguf"), "--kv-dtype", "f32", "--ids", ",".join(map(str, golden["ids"]))],
                         capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    got = [e["logprob"] for e in json.loads(out.stdout)[1:]]
    assert len(got) == len(golden["ids"]) - 1
    if family in ("deepseek-v3", "qwen3-moe"):
        want = scores_of_folder(tmp_path, golden)
    else:
        want = []
        for i, row in enumerate(golden["logits"][:-1]):
            most = max(row)
            want.append(row[golden["ids"][i + 1]] - most - math.log(sum(math.exp(x - most) for x in row)))
    assert max(abs(a - b) for a, b in zip(got, want)) < 1e-3


def without_dense(golden):
    """Its first layer alone, which has experts."""
    c = {**golden["config"], "num_hidden_layers": 1, "mlp_only_layers": []}
    return {**golden, "config": c, "tensors": [t for t in golden["tensors"] if not re.match(r"model\.layers\.[1-9]", t[0])]}


def scores_of_folder(tmp_path, golden):
    """Of the same tensors as a Hugging Face folder (whose scores are transformers', see test_families.c)."""
    folder = tmp_path / "hf"
    folder.mkdir()
    header, parts, at = {}, [], 0
    for name, dtype, shape, scale, offset in golden["tensors"]:
        parts.append(families.data(name, dtype, shape, scale, offset))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(parts[-1])]}
        at += len(parts[-1])
    head = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + b"".join(parts))
    (folder / "config.json").write_text(json.dumps(golden["config"]))
    out = subprocess.run([WORKER, "--score", "--model", str(folder), "--kv-dtype", "f32", "--ids", ",".join(map(str, golden["ids"]))],
                         capture_output=True, text=True, check=True)
    return [e["logprob"] for e in json.loads(out.stdout)[1:]]
