"""`baton plan` as a user runs it: the field's figures as table and JSON, own model and device files, an InferenceDeployment that
the API server takes, and a sentence for each mistake."""
import importlib.util
import json
import pathlib
import re
import struct
import subprocess

import pytest

from conftest import GEMMA, ROOT, SMOLLM, program


def plan(*args, cwd=None):
    return subprocess.run([program("baton"), "plan", *map(str, args)], capture_output=True, text=True, timeout=60, cwd=cwd)


def good(*args, **kw):
    r = plan(*args, **kw)
    assert r.returncode == 0 and r.stderr == "", r
    return r.stdout


def numbers(*args, **kw):
    """{id: value} and the whole object."""
    j = json.loads(good(*args, "--output", "json", **kw))
    return {n["id"]: n["value"] for n in j["numbers"]}, j


def advice(j, level=None):
    return {a["id"] for a in j["advice"] if level in (None, a["level"])}


# ---- figures that the field teaches with ----

@pytest.mark.parametrize("ident, value, within", [
    ("kv_bytes_per_token", 320 * 1024, 0),
    ("kv_bytes_prompt", 2.68e9, 0.01e9),
    ("weights_per_device_tp2", 70e9, 0), ("weights_per_device_tp4", 35e9, 0), ("weights_per_device_tp8", 17.5e9, 0),
    ("kv_room_per_device_tp2", 2e9, 1e6), ("kv_room_per_device_tp4", 37e9, 1e6), ("kv_room_per_device_tp8", 54.5e9, 1e6),
    ("weights_per_device_tp2_fp8", 35e9, 0), ("kv_room_per_device_tp2_fp8", 37e9, 1e6),
    ("decode_bound_batch1_tp2", 20.9e-3, 0.05e-3), ("decode_bound_batch1_tp4", 10.4e-3, 0.06e-3),
    ("decode_bound_batch1_tp8", 5.2e-3, 0.05e-3),
    ("all_reduces_per_step", 160, 0), ("all_reduce_bytes", 294e6, 1e6), ("all_reduce_s_link", 0.65e-3, 0.01e-3),
    ("all_reduce_s_nic", 6e-3, 0.2e-3),
    ("prefill_s", 0.3, 0.02), ("transfer_s_one_nic", 54e-3, 0.5e-3), ("transfer_s_all_nics", 6.7e-3, 0.05e-3),
    ("transfer_s_one_nic_fp8", 27e-3, 0.3e-3), ("ttft_overhead_unpipelined", 0.2, 0.02), ("load_vs_recompute", 5, 0.6),
    ("load_500_tokens_s", 3e-3, 0.4e-3), ("recompute_500_tokens_s", 18e-3, 0.5e-3)])
def test_llama_70b_on_h100_has_the_figure(ident, value, within):
    n = cached("llama-3-70b", "--device", "h100")
    ident = {"weights_per_device_tp2_fp8": first(n, "weights_per_device_tp2", "fp8"),
             "kv_room_per_device_tp2_fp8": first(n, "kv_room_per_device_tp2", "fp8")}.get(ident, ident)
    assert n[ident] == pytest.approx(value, abs=within or value * 1e-9)


_cache = {}


def cached(*args):
    if args not in _cache:
        _cache[args] = numbers(*args)[0]
    return _cache[args]


def first(n, stem, tag):
    return next(k for k in n if k.startswith(stem) and tag in k.lower())


def test_an_expert_layer_of_deepseek_sends_57_kb_out_and_115_kb_back():
    n = cached("deepseek-v3", "--device", "h100")
    assert n["dispatch_bytes"] == pytest.approx(57.3e3, rel=0.01)
    assert n[first(n, "combine", "")] == pytest.approx(114.7e3, rel=0.01)
    assert n["servers_ep32"] == 4 and n["servers_ep144"] == 18
    assert n["experts_per_device_ep32"] == 9 and n["experts_per_device_ep144"] == 2


def test_every_number_of_the_table_has_a_formula_and_is_in_the_json():
    table = good("llama-3-70b", "--device", "h100")
    rows = re.findall(r"^  (\S.*?)\s{2,}(\S.*?)\s+= (.+)$", table, re.M)
    _, j = numbers("llama-3-70b", "--device", "h100")
    assert len(rows) == len(j["numbers"]) > 25
    for (label, text, formula), n in zip(rows, j["numbers"]):
        assert (label, text, formula) == (n["label"], n["text"], n["formula"])
        assert re.search(r"\d", formula)
    assert "320 KiB" in table and "layout\n  TP=" in table


def test_the_default_device_is_an_h100_and_options_may_stand_on_either_side():
    a = good("llama-3-70b", "--device", "h100", "--batch", "32")
    assert a == good("--batch", "32", "llama-3-70b") == good("--batch", "32", "llama-3-70b", "--device", "H100")


def test_fp8_kv_halves_what_a_token_needs():
    half, full = cached("llama-3-70b", "--kv-element-bytes", "1"), cached("llama-3-70b")
    for ident in ("kv_bytes_per_token", "kv_bytes_prompt", "transfer_s_one_nic"):
        assert half[ident] == full[ident] / 2


# ---- advice ----

def test_it_warns_of_layouts_that_do_not_pay():
    _, j = numbers("llama-3-70b", "--tensor", "16")
    assert {"tp-above-kv-heads", "tp-across-servers"} <= advice(j, "warning")
    _, j = numbers("llama-3-70b", "--tensor", "8", "--disaggregate", "--prompt-tokens", "64")
    assert "disaggregating-too-early" in advice(j, "warning") and j["layout"]["disaggregate"]
    _, j = numbers("llama-3-70b", "--tensor", "1")
    assert "weights-do-not-fit" in advice(j, "warning")
    _, j = numbers("llama-3-70b", "--tensor", "3")
    assert "tp-splits-heads" in advice(j, "warning")
    _, j = numbers("llama-3-70b", "--tensor", "4", "--disaggregate")
    assert advice(j, "warning") == set()


def test_advice_speaks_of_the_layout_that_was_asked_for():
    _, j = numbers("llama-3-70b", "--tensor", "4")
    text = next(a["text"] for a in j["advice"] if a["id"] == "disaggregate")
    assert not j["layout"]["disaggregate"] and "--disaggregate" in text


def test_targets_and_rates_change_the_layout():
    slow, fast = numbers("llama-3-70b", "--ttft", "2")[1]["layout"], numbers("llama-3-70b", "--ttft", "0.4")[1]["layout"]
    assert slow["tensor"] < fast["tensor"] and fast["ttft_s"] <= 0.4
    one, many = numbers("llama-3-70b", "--rate", "1")[1]["layout"], numbers("llama-3-70b", "--rate", "20")[1]["layout"]
    assert many["prefill_groups"] > one["prefill_groups"] and many["decode_groups"] >= one["decode_groups"]
    _, j = numbers("llama-3-8b", "--prompt-tokens", "128", "--rate", "0.1")
    assert not j["layout"]["disaggregate"] and "unified" in advice(j)


# ---- own files ----

def test_a_gguf_gives_its_exact_parameters():
    for path, kv, params in ((SMOLLM, 2 * 30 * 3 * 64 * 2, 134.5e6), (GEMMA, 2 * 18 * 1 * 256 * 2, 268e6)):
        n, j = numbers(path, "--device", "cpu")
        assert n["kv_bytes_per_token"] == kv
        tensors = sum(x["value"] for x in j["numbers"] if x["id"] == "weights_per_device_tp1")
        assert 0.9 * path.stat().st_size < tensors < path.stat().st_size
        head = good(path, "--device", "cpu").split("\n")[0]
        assert float(re.search(r"([0-9.e+]+) parameters", head)[1]) == pytest.approx(params, rel=0.01), head


LLAMA8 = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
          "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
          "torch_dtype": "bfloat16", "_name_or_path": "my/llama"}


@pytest.mark.parametrize("as_folder", [False, True])
def test_a_hugging_face_config_is_read(tmp_path, as_folder):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA8))
    n, j = numbers(tmp_path if as_folder else tmp_path / "config.json")
    assert n["kv_bytes_per_token"] == 2 * 32 * 8 * 128 * 2 and j["model"] == "my/llama"
    head = good(tmp_path / "config.json").split("\n")[0]
    assert float(re.search(r"([0-9.e+]+) parameters", head)[1]) == pytest.approx(8.03e9, rel=0.005), "the exact count of Llama 3 8B"


def test_a_config_with_latent_attention_and_experts_is_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({
        "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
        "vocab_size": 129280, "max_position_embeddings": 163840, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1,
        "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
        "v_head_dim": 128, "q_lora_rank": 1536, "quantization_config": {"quant_method": "fp8"}}))
    n, _ = numbers(tmp_path)
    assert n["kv_bytes_per_token"] == 61 * (512 + 64) * 2
    head = good(tmp_path).split("\n")[0]
    assert float(re.search(r"([0-9.e+]+) parameters", head)[1]) == pytest.approx(671e9, rel=0.005)


def test_a_profile_and_a_device_of_ones_own_are_accepted(tmp_path):
    (tmp_path / "m.json").write_text(json.dumps({"name": "mine", "params": 1e9, "layers": 10, "d_model": 1024, "heads": 8, "kv_heads": 2,
                                                 "head_dim": 128, "vocab": 1000, "weight_bytes": 2}))
    (tmp_path / "d.json").write_text(json.dumps({"name": "box", "memory_bytes": 16e9, "usable_fraction": 0.5, "memory_bytes_per_s": 100e9,
                                                 "flops_bf16": 10e12, "efficiency": 1.0, "link_bytes_per_s": 10e9, "nic_bytes_per_s": 1e9,
                                                 "devices_per_server": 2, "nics_per_server": 1}))
    n, j = numbers("m.json", "--device", "d.json", "--prompt-tokens", "1000", cwd=tmp_path)
    assert (j["model"], j["device"]) == ("mine", "box")
    assert n["kv_bytes_per_token"] == 2 * 10 * 2 * 128 * 2 == 10240
    assert n["decode_bound_batch1_tp2"] == pytest.approx(1e9 / 100e9)
    assert n["transfer_s_one_nic"] == pytest.approx(1000 * 10240 / 1e9)
    assert j["layout"]["tensor"] == 1


# ---- an InferenceDeployment ready to apply ----

@pytest.fixture(scope="module")
def cluster():
    """baton-local with Baton's custom resources."""
    spec = importlib.util.spec_from_file_location("conformance_conftest", ROOT / "tests/conformance/conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    c = module.LocalCluster()
    try:
        c.kubectl("apply", "-f", str(ROOT / "manifests/crds"))
        c.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        yield c
    finally:
        c.stop()


ODD = {"name": "a\nb: \"c\" # d", "params": 1e9, "layers": 4, "d_model": 64, "heads": 4, "vocab": 100}


@pytest.mark.parametrize("args", [
    ("llama-3-70b", "--device", "h100"), ("llama-3-70b", "--tensor", "8", "--ttft", "0.5", "--tpot", "0.05"),
    ("deepseek-v3", "--device", "h200"), ("llama-3-8b", "--prompt-tokens", "128", "--rate", "0.1"), ("smollm2-135m", "--device", "cpu"),
    ("mixtral-8x7b", "--rate", "50"), (SMOLLM, "--device", "cpu"), (GEMMA, "--device", "cpu"),
    ("qwen3-8b", "--name", "7"), ("qwen3-8b", "--name", "True"), ("qwen3-8b", "--source", "pvc://models/qwen 3 #1.gguf"),
    ("odd name #1.json", "--device", "odd-device.json")], ids=lambda a: " ".join(map(str, a))[-40:].replace("/", "_"))
def test_the_yaml_is_taken_by_the_api_server(cluster, tmp_path, args):
    (tmp_path / "odd name #1.json").write_text(json.dumps(ODD))
    (tmp_path / "odd-device.json").write_text(json.dumps({"name": "x\ny: z", "memory_bytes": 1e9, "memory_bytes_per_s": 1e9, "flops_bf16": 1e12,
                                                          "link_bytes_per_s": 1e9, "nic_bytes_per_s": 1e9}))
    text = good(*args, "--output", "yaml", cwd=tmp_path)
    out = cluster.kubectl("apply", "--dry-run=server", "-o", "json", "-f", "-", input=text)
    infd = json.loads(out.stdout)
    _, j = numbers(*[a for a in args], cwd=tmp_path)
    layout, spec = j["layout"], infd["spec"]
    roles = {"prefill": layout["prefill_groups"], "decode": layout["decode_groups"]} if layout["disaggregate"] else {"unified": layout["unified_groups"]}
    assert {r: spec[r]["replicas"] for r in ("prefill", "decode", "unified") if r in spec} == roles
    assert all(spec[r]["parallelism"]["tensor"] == layout["tensor"] for r in roles)
    assert spec["routing"]["disaggregation"] == ("auto" if layout["disaggregate"] else "never")
    if "--name" in args:
        assert infd["metadata"]["name"] == args[args.index("--name") + 1].lower()
    if "--source" in args:
        assert spec["model"]["source"] == args[args.index("--source") + 1]
    if isinstance(args[0], pathlib.Path):
        assert spec["model"]["source"] == f"file://{args[0].resolve()}"
    if "--ttft" in args:
        assert spec["slo"] == {"ttft": "500ms", "tpot": "50ms", "percentile": 90}


# ---- mistakes ----

def gguf(kv=b"", n_kv=0, n_tensors=0, magic=b"GGUF", version=3):
    return magic + struct.pack("<IQQ", version, n_tensors, n_kv) + kv


FILES = {"broken.json": b"{", "empty.json": b"{}", "array.json": b"[]", "number.json": b"7", "nothing": b"", "nothing.gguf": b"",
         "binary.json": b"\x00\xff\x00", "huge-number.json": b'{"params": 1e400}',
         "words.json": b'{"params": "many", "layers": "some"}', "negative.json": b'{"params": 1e9, "layers": -4, "d_model": 64, "heads": 4}',
         "hf-only-layers.json": b'{"num_hidden_layers": 32}', "twice.json": b'{"params": 1, "params": 2}',
         "magic.gguf": gguf(magic=b"GGML"), "version.gguf": gguf(version=99), "keys.gguf": gguf(n_kv=1 << 40),
         "tensors.gguf": gguf(n_tensors=1 << 40), "no-keys.gguf": gguf()}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    d = tmp_path_factory.mktemp("files")
    for name, data in FILES.items():
        (d / name).write_bytes(data)
    (d / "cut.gguf").write_bytes(SMOLLM.read_bytes()[:5000])
    (d / "folder").mkdir()
    return d


@pytest.mark.parametrize("args, says", [
    ((), "which MODEL"),
    (("nope",), "neither a file nor a model that is built in (llama-3-8b"),
    (("llama-3-70b", "--device", "nope"), "neither a file nor a device that is built in (h100"),
    (("llama-3-70b", "deepseek-v3"), "one MODEL is expected"),
    (("llama-3-70b", "--nope"), "unknown option \"--nope\""),
    (("llama-3-70b", "--output", "xml"), "table, json or yaml, not \"xml\""),
    (("llama-3-70b", "--batch", "0"), "between 1 and 65536"),
    (("llama-3-70b", "--batch"), "--batch"),
    (("llama-3-70b", "--prompt-tokens", "many"), "whole number, not \"many\""),
    (("llama-3-70b", "--rate", "-1"), "between 0 and"),
    (("llama-3-70b", "--rate", "nan"), "number, not \"nan\""),
    (("llama-3-70b", "--kv-element-bytes", "0"), "between 0.25 and 8"),
    (("llama-3-70b", "--tensor", "5000"), "between 0 and 1024"),
    (("llama-3-70b", "--output", "yaml", "--name", "___"), "--name"),
    (("llama-3-70b", "--output", "yaml", "--source", "ftp://x"), "hf://, https://, file://"),
    (("llama-3-70b", "--output", "yaml", "--source", "hf://"), "hf://, https://, file://"),
    (("llama-3-70b", "--output", "yaml", "--rate", "1e6"), "more than one InferenceDeployment takes"),
    (("llama-3-70b", "--output", "yaml", "--tensor", "128"), "more than one InferenceDeployment takes"),
    (("broken.json",), "broken.json: JSON line"),
    (("binary.json",), "binary.json: JSON line"),
    (("huge-number.json",), "overflow"),
    (("twice.json",), "twice.json"),
    (("nothing",), "nothing: JSON line"),
    (("empty.json",), "must be above 0"),
    (("array.json",), "must be above 0"),
    (("number.json",), "number.json"),
    (("words.json",), "must be above 0"),
    (("negative.json",), "must be above 0"),
    (("hf-only-layers.json",), "must be above 0"),
    (("folder",), "folder/config.json: No such file"),
    (("nothing.gguf",), "nothing.gguf: truncated"),
    (("cut.gguf",), "is the file cut short?"),
    (("magic.gguf",), "magic.gguf"),
    (("version.gguf",), "version"),
    (("keys.gguf",), "metadata keys"),
    (("tensors.gguf",), "tensors"),
    (("no-keys.gguf",), "no-keys.gguf"),
    (("llama-3-70b", "--device", "empty.json"), "device empty.json: memory"),
    (("llama-3-70b", "--device", "broken.json"), "broken.json: JSON line"),
], ids=lambda a: " ".join(a)[-40:] if isinstance(a, tuple) else "")
def test_a_mistake_is_one_sentence_on_stderr_and_status_2(files, args, says):
    r = plan(*args, cwd=files)
    assert r.returncode == 2 and r.stdout == "", r
    lines = r.stderr.strip().split("\n")
    assert len(lines) == 1 and lines[0].startswith("baton plan: ") and says in lines[0], r.stderr


def test_help_names_every_option():
    text = good("--help")
    for option in ("--device", "--prompt-tokens", "--batch", "--rate", "--ttft", "--tpot", "--tensor", "--output", "--source"):
        assert option in text
