"""Pipelines, served: several batches of decodes are on their way at a time, and the answers are those of one process; sequences that end,
are cancelled, preempted or handed over on the way leave no block behind."""
import concurrent.futures
import random

import pytest

import families
import wireclient as wc
from groupclient import Group
from test_handover import drafts
from wireclient import LOGPROBS, Stream, Worker, encode

SHM = ("--shm-dir", "/dev/shm")
VOCAB = 320


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("llama3"))
    families.write("llama3", folder)
    return folder


@pytest.fixture(scope="module")
def alone(model):
    w = Worker(model, "unified", *SHM, "--speculation", "off", model=model)
    yield w
    w.stop()


@pytest.fixture(scope="module", params=[2, 3], ids=["pp2", "pp3"])
def group(request, model):
    g = Group(model, "unified", *SHM, model=model, pipeline=request.param)
    g.stages = request.param
    yield g
    g.stop()


def mixed(n, seed):
    r = random.Random(seed)
    print("seed", seed)
    out = []
    for i in range(n):
        tokens = [r.randrange(VOCAB) for _ in range(r.randrange(3, 90))]
        if i % 3 == 0:
            tokens = tokens[:20] + [r.randrange(VOCAB) for _ in range(r.randrange(2, 6))] * 5
        kw = {"tokens": tokens, "seed": i, "max_tokens": r.randrange(2, 40), "flags": LOGPROBS | wc.IGNORE_EOS, "n_top": 2,
              "n": 2 if i % 5 == 4 else 1, "temperature": .8 if i % 4 == 3 else 0.0}
        if i % 6 == 2:  # writes much the same again and again: drafts that are right
            kw.update(bias=[(7, 6.0), (8, 6.0)], max_tokens=39)
        if i % 4 == 1:
            kw.update(repetition=1.2, presence=.3, frequency=.2)
        out.append(kw)
    return out


def run_all(w, requests, width=8, **more):
    with concurrent.futures.ThreadPoolExecutor(width) as pool:
        return list(pool.map(lambda kw: w.generate(**kw, **more), requests))


def check(got, want):
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.error is None and b.error is None, (i, a.error, b.error)
        assert a.keys() == b.keys(), i


def test_a_pipeline_answers_as_one_process_does(group, alone):
    requests = mixed(40, 21)
    check(run_all(group, requests), run_all(alone, requests))
    group.wait_idle()
    busy = [group.metric('baton_worker_stage_busy_seconds_total{stage="%d"}' % s) for s in range(group.stages)]
    whole = group.metric("baton_worker_pipeline_seconds_total")
    print("busy", [round(b / whole, 3) for b in busy], "of", whole)
    assert all(0 < b <= whole for b in busy)


def test_the_stages_have_a_batch_each_and_drafts_with_them(tmp_path):
    r = random.Random(24)
    repeating = [{"tokens": [r.randrange(500, 9000) for _ in range(4 + i)] * 4, "max_tokens": 30, "flags": LOGPROBS | wc.IGNORE_EOS,
                  "seed": i, "temperature": .7 * (i % 2)} for i in range(5)]
    alone = Worker(str(tmp_path), "unified", "--kv-bytes", "64Mi", "--speculation", "off")
    want = run_all(alone, repeating)
    alone.stop()
    group = Group(str(tmp_path), "unified", "--kv-bytes", "64Mi", model=wc.MODEL, pipeline=2)
    try:
        streams = [Stream(group, encode([500 + i] * 9, max_tokens=2000, flags=wc.IGNORE_EOS)) for i in range(4)]
        assert group.wait(lambda x: x["in_air"] == 2, 20)["running"] == 4
        for s in streams[1:]:
            s.leave()
        group.wait(lambda x: x["running"] == 1 and x["in_air"] <= 1, 20)
        streams[0].leave()
        assert group.wait_idle(20)["in_air"] == 0
        check(run_all(group, repeating), want)
        assert drafts(group)[1] > 0
    finally:
        group.stop()


def test_clients_that_leave_on_the_way_and_prompts_that_come_change_nothing(group, alone):
    requests = mixed(24, 22)
    want = run_all(alone, requests)
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        def leave(i):
            s = Stream(group, encode([7 + i] * (5 + i), max_tokens=90, flags=wc.IGNORE_EOS))
            for _ in range(1 + i % 4):
                s.more()
            s.leave()
        late = [pool.submit(leave, i) for i in range(30)]
        got = list(pool.map(lambda kw: group.generate(**kw), requests))
        for x in late:
            x.result()
    check(got, want)
    group.wait_idle(20)


def test_preempted_and_handed_over_to_a_pipeline(model, alone):
    requests = mixed(24, 23)
    grown = [{**kw, "tokens": kw["tokens"][:20], "n": 1, "max_tokens": 90} for kw in requests[:12]]  # together more than the pool
    want = run_all(alone, requests)
    block = alone.state()["kv"]["block_bytes"]
    p = Group(model, "prefill", *SHM, model=model, pipeline=2)
    d = Group(model, "decode", *SHM, "--kv-bytes", str(12 * block), model=model, pipeline=2)
    try:
        got = run_all(d, requests, 12, prefill=p.peer)
        check(got, want)
        assert any(a.usage["prefill"] == "remote" for a in got)
        check(run_all(d, grown, 12), run_all(alone, grown))
        assert d.wait_idle(20)["totals"]["preemptions"] > 0
        p.wait_idle(20)
    finally:
        p.stop()
        d.stop()
