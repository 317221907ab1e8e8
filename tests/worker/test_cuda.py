"""The worker's CUDA backend end to end, on stand-ins for NVIDIA's libraries (tests/kernels/cuda): the product's own code up to the driver's
interface, kernels executed on this CPU. Answers are the CPU backend's within bf16; hand-over, sleep and several ranks work."""
import concurrent.futures
import json
import os
import random
import statistics
import subprocess
import time

import pytest

import families
import groupclient
import test_sleep
import wireclient as wc
from wireclient import LOGPROBS, Worker

BUILD = os.path.join(wc.ROOT, os.environ.get("BATON_BUILD", "build"))
STAND_INS = os.path.join(BUILD, "tests", "kernels", "cuda")
WORKER = os.path.join(BUILD, "tests", "worker", "gpu", "baton-worker")  # the worker, whose device code is the stand-in's
GPU = {"LD_LIBRARY_PATH": STAND_INS, "BATON_CUBLASLT": "0", "EMU_THREADS": "1"}
ARGS = ("--shm-dir", "/dev/shm", "--kv-bytes", "4Mi")
VOCAB = 320


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    out = {}
    for family in ("llama3", "deepseek-v2-lite", "mixtral"):
        folder = tmp_path_factory.mktemp(family)
        out[family] = (str(folder), families.write(family, str(folder)))
    return out


def score(folder, golden, *args, env=GPU, worker=WORKER):
    p = subprocess.run([worker, "--score", "--model", folder, "--ids", ",".join(map(str, golden["ids"])), *args], capture_output=True, text=True,
                       env={**os.environ, **env})
    return p


def logprobs(p):
    assert p.returncode == 0, p.stderr
    o = json.loads(p.stdout)
    return [e["logprob"] for e in (o["scores"] if isinstance(o, dict) else o)][1:]


def check_near(got, want):
    """Of log-probabilities of random tokens, whose spread is about 3. A choice of experts may differ where two are near each other."""
    apart = [abs(a - b) for a, b in zip(got, want, strict=True)]
    assert statistics.median(apart) < .06, apart
    assert sum(a > .5 for a in apart) <= len(apart) / 8, apart


@pytest.mark.parametrize("family", ["llama3", "deepseek-v2-lite"])
def test_scores_are_the_cpus_within_bf16_on_one_gpu_and_two(models, family):
    folder, golden = models[family]
    cpu = logprobs(score(folder, golden, "--backend", "cpu"))
    one = logprobs(score(folder, golden, "--backend", "cuda"))
    assert one != cpu
    check_near(one, cpu)
    p = score(folder, golden, "--backend", "cuda", "--tp", "2", "--stats")
    check_near(logprobs(p), cpu)
    ranks = json.loads(p.stdout)["ranks"]
    whole = json.loads(score(folder, golden, "--backend", "cpu", "--stats").stdout)["ranks"][0]["weight_bytes"]
    assert len({r["pid"] for r in ranks}) == 2 and all(r["weight_bytes"] < .8 * whole for r in ranks)


@pytest.mark.parametrize("family,layout,calls", [("llama3", {"pp": 2}, ("pipeline", "sends")), ("mixtral", {"dp": 2, "ep": 2}, ("expert", "all_to_alls")),
                                                 ("mixtral", {"tp": 2, "pp": 2, "ep": 2}, ("tensor", "all_reduces"))])
def test_scores_over_stages_and_experts_are_those_of_one_gpu(models, family, layout, calls):
    folder, golden = models[family]
    flags = [x for k, v in layout.items() for x in ("--" + k, str(v))]
    p = score(folder, golden, "--backend", "cuda", *flags, "--stats")
    check_near(logprobs(p), logprobs(score(folder, golden, "--backend", "cuda")))
    ranks = json.loads(p.stdout)["ranks"]
    assert len({r["pid"] for r in ranks}) == len(ranks) == layout.get("tp", 1) * layout.get("pp", 1) * layout.get("dp", 1)
    where, what = calls
    assert all(r[where][what] for r in ranks) and (where != "expert" or all(r["experts"]["dispatches"] for r in ranks))


def test_without_a_driver_cuda_says_so_and_auto_takes_the_cpu(models):
    folder, golden = models["llama3"]
    nothing = {"LD_LIBRARY_PATH": ""}
    if subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout.count("libcuda.so.1"):
        nothing = {"LD_LIBRARY_PATH": STAND_INS, "EMU_DEVICES": "0"}
    p = score(folder, golden, "--backend", "cuda", env=nothing)
    assert p.returncode == 1 and ("no NVIDIA driver on this machine" in p.stderr or "there is no GPU 0" in p.stderr), p.stderr
    cpu = score(folder, golden, "--backend", "cpu", env=nothing).stdout
    assert score(folder, golden, env=nothing).stdout == cpu
    assert "--backend \"tpu\": cpu, cuda or auto" in score(folder, golden, "--backend", "tpu").stderr
    assert score(folder, golden, "--kv-dtype", "f32").returncode == 0  # auto: the CPU has that
    assert "KV as f16, bf16, int8 or fp8" in score(folder, golden, "--kv-dtype", "f32", "--backend", "cuda").stderr


def test_what_gpus_do_not_do_is_refused_with_a_sentence(models):
    folder, golden = models["mixtral"]
    for flags, sentence in ((("--pp", "2", "--dp", "2"), "data-parallel attention in a pipeline"),
                            (("--dp", "2", "--ep", "2", "--redundant-experts", "1"), "no copies of experts (--redundant-experts 0)"),
                            (("--dp", "2", "--ep", "2", "--two-batch", "on"), "does not overlap two batches (--two-batch auto or off)")):
        p = score(folder, golden, "--backend", "cuda", *flags)
        assert p.returncode == 1 and sentence in p.stderr, p.stderr


def test_a_build_with_device_code_runs_it(models):
    """The worker as it is installed, where there was a toolchain."""
    with open(os.path.join(BUILD, "kernels", "cuda", "fatbins")) as f:
        has_code = bool(f.read().strip())
    folder, golden = models["llama3"]
    p = score(folder, golden, "--backend", "cuda", worker=wc.WORKER)
    if has_code:
        assert logprobs(p) == logprobs(score(folder, golden, "--backend", "cuda"))
    else:
        assert p.returncode == 1 and "holds no GPU kernels" in p.stderr


@pytest.fixture(scope="module")
def fleet(models, tmp_path_factory):
    folder, _ = models["llama3"]
    here = str(tmp_path_factory.mktemp("workers"))
    kept, wc.WORKER = wc.WORKER, WORKER
    made = {}
    try:
        for name, role, backend in (("P", "prefill", "cuda"), ("D", "decode", "cuda"), ("U", "unified", "cuda"), ("p", "prefill", "cpu"),
                                    ("d", "decode", "cpu"), ("u", "unified", "cpu")):
            made[name] = Worker(here, role, *ARGS, "--backend", backend, env=GPU, model=folder)
        made["T"] = Worker(here, "decode", *ARGS, "--backend", "cuda", "--xfer", "tcp", env=GPU, model=folder)
        yield made
    finally:
        wc.WORKER = kept
        for w in made.values():
            w.stop()


def requests(n):
    r = random.Random(11)
    return [{"tokens": [r.randrange(2, VOCAB) for _ in range(r.randrange(34, 50))], "max_tokens": 3, "seed": i, "n": 1 + (i == 1),
             "flags": LOGPROBS | wc.IGNORE_EOS | wc.NO_CACHE, "temperature": .7 if i % 2 else 0.0} for i in range(n)]


def alike(a, b, limit=.1):
    """Whether both are the same text, with log-probabilities that are near each other (bf16, and rows of a prompt that were computed as a
    chunk here and as a single token there). Up to where texts part, they must be."""
    assert a.error is None and b.error is None, (a.error, b.error)
    same = True
    for x, y in zip(a.keys(), b.keys()):
        for r, q in zip(x, y):
            same = same and r[0] == q[0]
            if not same:
                break
    for x, y in zip(a.records, b.records):
        if x.choice == y.choice == 0 and x.kind == wc.TOKEN:
            if x.id != y.id:
                break
            assert abs(x.logprob - y.logprob) < limit, (x.logprob, y.logprob)
    return same


def test_served_answers_are_those_of_a_batch_of_one_and_the_cpus(fleet):
    kws = requests(3)
    alone = [fleet["U"].generate(**kw) for kw in kws]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda kw: fleet["U"].generate(**kw), kws))
    assert sum(alike(a, b) for a, b in zip(alone, together)) >= 2
    assert sum(alike(a, fleet["u"].generate(**kw), .3) for a, kw in zip(alone, kws)) >= 1
    fleet["U"].wait_idle(10)


@pytest.mark.parametrize("more", [{"temperature": 0}, {"temperature": .9, "seed": 5}, {"temperature": 1.2, "min_p": .05, "seed": 6}], ids=str)
def test_tokens_that_the_device_chooses_are_the_hosts(fleet, more):
    """Log-probabilities need the logits: then the host chooses."""
    def tokens():
        lines = fleet["U"].get("/metrics")[1].decode().splitlines()
        return next(float(x.split()[1]) for x in lines if x.startswith("baton_worker_device_tokens_total "))
    before = tokens()
    for kw in requests(2):
        device, host = (fleet["U"].generate(**{**kw, **more, "max_tokens": 5, "flags": kw["flags"] & ~hide}) for hide in (LOGPROBS, 0))
        assert device.error is None and [[r[0] for r in k] for k in device.keys()] == [[r[0] for r in k] for k in host.keys()]
    assert tokens() >= before + 5, "the device chose nothing"


@pytest.mark.parametrize("decode", ["D", "T"])
def test_kv_moves_between_gpus_layer_by_layer(fleet, decode):
    kws = requests(2 if decode == "D" else 1)
    kws[-1] = {**kws[-1], "tokens": kws[-1]["tokens"] * 2, "flags": LOGPROBS | wc.IGNORE_EOS}
    same = 0
    for kw in [*kws, kws[-1]]:  # the last one again: from blocks that lie on the devices
        got = fleet[decode].generate(prefill=fleet["P"].peer, **kw)
        assert got.usage["prefill"] == "remote", got.usage
        same += alike(got, fleet["U"].generate(**kw))
    assert same >= len(kws)
    for name in ("P", decode, "U"):
        fleet[name].wait_idle(10)


@pytest.mark.parametrize("pair", [("P", "d"), ("p", "D")])
def test_kv_moves_between_a_gpu_and_a_cpu(fleet, pair):
    prefill, decode = pair
    for kw in requests(2):
        got = fleet[decode].generate(prefill=fleet[prefill].peer, **kw)
        assert got.usage["prefill"] == "remote" and got.usage["kv_bytes"] > 0
        alike(got, fleet["U"].generate(**kw), .3)


@pytest.mark.parametrize("backends", [("cuda", "cpu", "int8"), ("cpu", "cuda", "fp8")])
def test_coded_kv_moves_between_a_gpu_and_a_cpu(models, tmp_path, monkeypatch, backends):
    monkeypatch.setattr(wc, "WORKER", WORKER)
    *sides, dtype = backends
    made = []
    try:
        for role, backend in zip(("prefill", "decode"), sides):
            made.append(Worker(str(tmp_path), role, *ARGS, "--backend", backend, "--kv-dtype", dtype, env=GPU, model=models["llama3"][0]))
        prefill, decode = made
        for kw in requests(2):
            got = decode.generate(prefill=prefill.peer, **kw)
            assert got.usage["prefill"] == "remote" and got.usage["kv_bytes"] > 0
            alike(got, decode.generate(**kw), .3 if dtype == "int8" else .6)
    finally:
        for w in made:
            w.stop()


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_two_gpus_serve_as_one_and_hand_over(models, fleet, tmp_path, monkeypatch, role):
    monkeypatch.setattr(groupclient, "WORKER", WORKER)
    for k, v in GPU.items():
        monkeypatch.setenv(k, v)
    group = groupclient.Group(str(tmp_path), role, *ARGS, "--backend", "cuda", model=models["llama3"][0], tensor=2)
    try:
        for kw in requests(2):
            got = (fleet["D"].generate(prefill=group.peer, **kw) if role == "prefill" else
                   group.generate(prefill=fleet["P"].peer, **kw))
            assert got.usage["prefill"] == "remote" and got.usage["kv_bytes"] > 0
            alike(got, fleet["U"].generate(**kw))
        if role == "decode":
            alike(group.generate(**kw), got)  # and its own prompt
        group.wait_idle(10)
    finally:
        group.stop()


@pytest.mark.parametrize("layout", [{"pipeline": 2}, {"data": 2, "expert": 2}])
def test_stages_and_data_ranks_serve_and_fail_together(models, tmp_path, monkeypatch, layout):
    """Prompts that come at once, from a prefill worker of one GPU; then a rank is killed, and all are gone."""
    monkeypatch.setattr(groupclient, "WORKER", WORKER)
    monkeypatch.setattr(wc, "WORKER", WORKER)
    for k, v in GPU.items():
        monkeypatch.setenv(k, v)
    model = models["mixtral"][0]
    one = Worker(str(tmp_path), "prefill", *ARGS, "--backend", "cuda", env=GPU, model=model)
    group = groupclient.Group(str(tmp_path), "decode", *ARGS, "--backend", "cuda", model=model, **layout)
    try:
        kws = [{**kw, "n": 1, "temperature": 0.0} for kw in requests(2)]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            got = list(pool.map(lambda kw: group.generate(prefill=one.peer, **kw), kws))
        assert all(g.usage["prefill"] == "remote" and g.usage["kv_bytes"] > 0 for g in got)
        assert alike(group.generate(**kws[0]), got[0], .5)
        group.wait_idle(10)
        group.procs[1].kill()
        began = time.monotonic()
        for p in group.procs:
            p.wait(timeout=wc.patience(10))
        print("gone after %.2f s" % (time.monotonic() - began))
    finally:
        group.stop()
        one.stop()


def test_asleep_the_gpu_is_empty_and_awake_the_answer_is_the_same(models, tmp_path, monkeypatch):
    monkeypatch.setattr(wc, "WORKER", WORKER)
    monkeypatch.setattr(wc, "MODEL", models["llama3"][0])
    monkeypatch.setattr(test_sleep, "PROMPT", [5, 30, 28, 46, 31])
    for k, v in {**GPU, "BATON_BACKEND": "cuda"}.items():
        monkeypatch.setenv(k, v)
    w = test_sleep.Launched(tmp_path, "unified")
    try:
        assert w.logged("serving")[0]["backend"] == "emulation"
        before = w.answer()
        w.tell({"type": "role", "role": "standby"})
        w.tell({"type": "rung", "rung": "warm"})
        w.until(role="standby", rung="warm")
        w.tell({"type": "role", "role": "unified"})
        w.until(role="unified", ready=True, rung="hot")
        assert w.logged("the GPU's memory is given back")[0]["bytes"] > 500000
        assert alike(w.answer(), before)
    finally:
        w.close()
