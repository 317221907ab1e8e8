"""Groups with data-parallel attention and experts over all ranks, served: a sequence lies at one data rank, idle ones take part, and the
answers are those of one process; prefill and decode in different layouts, preemption, common prefixes, load that is told by rank."""
import concurrent.futures
import random
import subprocess

import pytest

import families
import wireclient as wc
from groupclient import Group
from wireclient import LOGPROBS, WORKER, Worker

SHM = ("--shm-dir", "/dev/shm")
DP4, DP2 = {"data": 4, "expert": 4}, {"tensor": 2, "data": 2, "expert": 4}


@pytest.fixture(scope="module", params=["deepseek-v3", "mixtral", "qwen3-moe"])
def family(request, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp(request.param))
    families.write(request.param, folder)
    return folder


def start(folder, role, *args, **layout):
    if not layout:
        return Worker(folder, role, *SHM, "--kv-dtype", "f32", *args, model=folder)
    return Group(folder, role, *SHM, "--kv-dtype", "f32", *args, model=folder, **layout)


@pytest.fixture
def fleet(family):
    made = []

    def make(*a, **kw):
        made.append(start(family, *a, **kw))
        return made[-1]
    yield make
    for w in made:
        w.stop()


@pytest.fixture(scope="module")
def alone(family):
    w = start(family, "unified")
    yield w
    w.stop()


def mixed(n, seed, vocab=320):
    r = random.Random(seed)
    print("seed", seed)
    prefix = [r.randrange(vocab) for _ in range(70)]
    out = []
    for i in range(n):
        tokens = (prefix if i % 3 == 0 else []) + [r.randrange(vocab) for _ in range(r.randrange(3, 120))]
        out.append({"tokens": tokens, "seed": i, "max_tokens": r.randrange(2, 24), "flags": LOGPROBS | wc.IGNORE_EOS, "n_top": 2,
                    "n": 2 if i % 5 == 4 else 1, "temperature": .8 if i % 4 == 3 else 0.0})
    return out


def run_all(w, requests, width=8, **more):
    with concurrent.futures.ThreadPoolExecutor(width) as pool:
        return list(pool.map(lambda kw: w.generate(**kw, **more), requests))


def check(got, want, same_bits):
    for i, (a, b) in enumerate(zip(got, want)):
        assert a.error is None and b.error is None, (i, a.error, b.error)
        if same_bits:
            assert a.keys() == b.keys(), i
        else:
            assert [a.ids(c) for c in range(2)] == [b.ids(c) for c in range(2)], i
            pairs = zip(a.tokens, b.tokens)
            assert all(abs(x.logprob - y.logprob) < 2e-3 for x, y in pairs if a.ids(1) == []), i


@pytest.mark.parametrize("layout", [DP4, DP2], ids=["dp4-ep4", "tp2-dp2-ep4"])
def test_a_group_with_data_ranks_answers_as_one_process_does(fleet, alone, layout):
    requests = mixed(24, 5)
    g = fleet("unified", **layout)
    check(run_all(g, requests), run_all(alone, requests), "tensor" not in layout)
    s = g.wait_idle()
    assert s["totals"]["cached_tokens"] > 0, "no common prefix was found"
    assert g.metric('baton_worker_expert_rows_total{of="max"}') >= g.metric('baton_worker_expert_rows_total{of="mean"}') > 0
    # One request alone: three ranks of four have no row in any step.
    check([g.generate(**requests[0])], [alone.generate(**requests[0])], "tensor" not in layout)


@pytest.mark.parametrize("prefill,decode,path", [(DP4, {}, "shm"), ({}, DP4, "tcp"), (DP4, DP2, "shm")],
                         ids=["dp4-one", "one-dp4", "dp4-tp2dp2"])
def test_prefill_and_decode_in_different_layouts_give_the_same(fleet, alone, prefill, decode, path):
    requests = mixed(16, 9)
    p = fleet("prefill", "--xfer", path, **prefill)
    d = fleet("decode", "--xfer", path, **decode)
    got = run_all(d, requests, prefill=p.peer)
    check(got, run_all(alone, requests), "tensor" not in decode)
    assert all(a.usage["prefill"] == "remote" for a in got)
    p.wait_idle()
    d.wait_idle()


def test_small_pools_preempt_at_their_own_rank_and_change_no_bit(fleet, alone):
    r = random.Random(3)
    requests = [{"tokens": [r.randrange(320) for _ in range(20 + i % 5)], "seed": i, "max_tokens": 70, "flags": LOGPROBS | wc.IGNORE_EOS}
                for i in range(16)]
    block = alone.state()["kv"]["block_bytes"]
    g = fleet("unified", "--kv-bytes", str(4 * 5 * block), "--max-context", "128", **DP4)
    g.wait(lambda s: s["kv"]["blocks"] == 20)  # the ranks tell theirs after the group says that it is ready
    check(run_all(g, requests, 16), run_all(alone, requests), True)
    g.wait(lambda s: wc.idle(s) and s["totals"]["preemptions"] > 0)


def test_sequences_are_spread_over_data_ranks(fleet):
    g = fleet("unified", **DP4)
    r = random.Random(8)

    def most_and_mean():
        return tuple(g.metric('baton_worker_data_rank_sequences{of="%s"}' % of) for of in ("max", "mean"))

    for _ in range(30):  # they are short: one look in time is enough
        bodies = [wc.encode([r.randrange(320) for _ in range(40)], max_tokens=300, flags=wc.IGNORE_EOS) for _ in range(8)]
        streams = [wc.Stream(g, b) for b in bodies]
        seen = [most_and_mean() for _ in range(20)]
        for s in streams:
            s.leave()
        g.wait_idle(5)
        if (2.0, 2.0) in seen:
            return
    assert False, seen


def test_a_prefix_draws_its_own_to_the_rank_that_has_it(fleet):
    g = fleet("unified", **DP4)
    r = random.Random(9)
    prefix = [r.randrange(320) for _ in range(200)]
    g.generate(prefix, max_tokens=2, flags=wc.IGNORE_EOS)
    for i in range(6):
        a = g.generate(prefix + [i], max_tokens=2, flags=wc.IGNORE_EOS)
        assert a.usage["cached_tokens"] == 192, a.usage


def test_a_model_without_experts_has_data_ranks_too(tmp_path):
    families.write("llama3", str(tmp_path))
    one, g = start(str(tmp_path), "unified"), start(str(tmp_path), "unified", data=3)
    try:
        requests = mixed(12, 2)
        check(run_all(g, requests), run_all(one, requests), True)
        check([g.generate(**requests[0])], [one.generate(**requests[0])], True)
    finally:
        one.stop()
        g.stop()


def test_what_cannot_be_served_is_said(family):
    for flags, why in [(["--dp", 2, "--pp", 2, "--ep", 2], "data-parallel attention in a pipeline of 2 stages"),
                       (["--dp", 3, "--ep", 2], "experts over 2 of 3 ranks: not evenly")]:
        r = subprocess.run([WORKER, "--plan", "--model", family, *map(str, flags)], capture_output=True, text=True)
        assert r.returncode and why in r.stderr, r.stderr
