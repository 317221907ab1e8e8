"""Models of several families served from Hugging Face folders: scores, and prefill here with decode there, to the bit."""
import json
import math
import os
import random
import subprocess

import pytest

import families
import wireclient as wc
from wireclient import LOGPROBS, WORKER, Worker

SHM = ("--shm-dir", "/dev/shm")
KINDS = [("mixtral", "f16"), ("deepseek-v3", "f16"), ("deepseek-v2-lite", "int8"), ("gemma3", "bf16"), ("qwen3-moe", "fp8")]


@pytest.fixture(scope="module", params=KINDS, ids=lambda k: "-".join(k))
def served(request, tmp_path_factory):
    family, dtype = request.param
    folder = str(tmp_path_factory.mktemp(family))
    golden = families.write(family, folder)
    args = ("--kv-dtype", dtype)
    workers = {"P": Worker(folder, "prefill", *SHM, *args, model=folder), "D": Worker(folder, "decode", *SHM, *args, model=folder),
               "T": Worker(folder, "decode", *SHM, *args, "--xfer", "tcp", model=folder),
               "U": Worker(folder, "unified", *args, model=folder)}
    yield golden, workers, dtype
    for w in workers.values():
        w.stop()


def block_bytes(config, dtype):
    """Of a block of 32 tokens in all layers: (block, layer, token, latent) or (block, layer, K/V, head, token, dim)."""
    latent = config.get("kv_lora_rank")
    dim = latent + config["qk_rope_head_dim"] if latent else config.get("head_dim") or 16
    heads = 1 if latent else 2 * config["num_key_value_heads"]
    token = {"f16": 2 * dim, "bf16": 2 * dim}.get(dtype, dim + 4 * -(-dim // 64))
    return config["num_hidden_layers"] * heads * 32 * token


def test_blocks_have_the_layout_of_the_family(served):
    golden, workers, dtype = served
    assert workers["U"].state()["kv"]["block_bytes"] == block_bytes(golden["config"], dtype)


@pytest.mark.parametrize("decode", ["D", "T"])
def test_prefill_elsewhere_gives_the_same_bits(served, decode):
    golden, workers, _ = served
    r = random.Random(7)
    for i in range(12):
        tokens = [r.randrange(320) for _ in range(r.randrange(3, 150))]
        kw = {"seed": i, "max_tokens": 20, "flags": LOGPROBS | wc.IGNORE_EOS | wc.NO_CACHE, "n_top": 3, "n": 1 + i % 2,
              "temperature": .8 if i % 3 else 0.0}
        want = workers["U"].generate(tokens, **kw)
        got = workers[decode].generate(tokens, prefill=workers["P"].peer, **kw)
        assert want.error is None and got.error is None, (want.error, got.error)
        assert got.keys() == want.keys()
        blocks = -(-len(tokens) // 32)
        assert got.usage["prefill"] == "remote" and got.usage["kv_bytes"] == blocks * workers["U"].state()["kv"]["block_bytes"]
    for w in workers.values():
        w.wait_idle()


def test_score_equals_transformers(tmp_path):
    golden = families.write("deepseek-v3-fp8", tmp_path)
    ids = golden["ids"]
    out = subprocess.run([WORKER, "--score", "--model", str(tmp_path), "--kv-dtype", "f32", "--ids", ",".join(map(str, ids))],
                         capture_output=True, text=True, check=True).stdout
    for i, entry in enumerate(json.loads(out)[1:], 1):
        row = golden["logits"][i - 1]
        most = max(row)
        want = row[ids[i]] - most - math.log(sum(math.exp(x - most) for x in row))
        assert abs(entry["logprob"] - want) < 2e-3


@pytest.mark.parametrize("damage", ["config", "tensor", "cut"])
def test_a_damaged_folder_is_one_clear_error(tmp_path, damage):
    families.write("mixtral", tmp_path)
    path = tmp_path / ("config.json" if damage == "config" else "model.safetensors")
    text = path.read_bytes()
    path.write_bytes({"config": text.replace(b'"num_local_experts": 6', b'"num_local_experts": 0'),
                      "tensor": text.replace(b"experts.5.w2", b"experts.9.w2"), "cut": text[:-100]}[damage])
    r = subprocess.run([WORKER, "--score", "--model", str(tmp_path), "--ids", "1,2"], capture_output=True, text=True, timeout=60,
                       env={**os.environ, "BATON_LOG_FORMAT": "text"})
    assert r.returncode != 0 and str(tmp_path) in r.stderr and "Traceback" not in r.stderr
