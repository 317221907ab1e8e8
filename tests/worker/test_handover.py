"""P to D, D alone, preempted and replayed runs give the same bits; every end, wherever it comes, frees every block."""
import concurrent.futures
import os
import random
import signal
import threading
import time

import pytest

import wireclient as wc
from wireclient import LOGPROBS, NO_CACHE, PROMPT_LOGPROBS, Stream, Worker, encode

REQUESTS = int(os.environ.get("BATON_TEST_REQUESTS", "200"))
SEED = int(os.environ.get("BATON_TEST_SEED", "20261130"))
SHM = ("--shm-dir", "/dev/shm")
VOCAB = 49152


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("workers"))


@pytest.fixture(scope="module")
def fleet(folder):
    workers = {"P": Worker(folder, "prefill", *SHM), "D": Worker(folder, "decode", *SHM),
               "T": Worker(folder, "decode", *SHM, "--xfer", "tcp"),
               "U": Worker(folder, "unified", *SHM, "--speculation", "off")}  # what the others are compared with
    yield workers
    for w in workers.values():
        w.stop()


def mixed(n, seed):
    """Requests as keyword arguments: greedy and seeded, choices, penalties, logprobs, shared prefixes, repetitions."""
    r = random.Random(seed)
    prefixes = [[r.randrange(5, VOCAB) for _ in range(70)] for _ in range(2)]
    out = []
    for i in range(n):
        tokens = list(r.choice(prefixes)) if r.random() < .3 else []
        tokens += [r.randrange(5, VOCAB) for _ in range(r.randrange(2, 90))]
        kw = {"tokens": tokens, "seed": r.getrandbits(64), "max_tokens": r.randrange(1, 12), "flags": LOGPROBS,
              "n_top": r.randrange(0, 4), "n": r.choice([1, 1, 1, 2, 3])}
        if i % 2:
            kw.update(temperature=r.choice([.5, 1.0, 1.5]), top_p=r.choice([1.0, .9]), top_k=r.choice([0, 40]),
                      min_p=r.choice([0.0, .02]))
        if i % 3 == 0:
            kw.update(repetition=1.2, presence=.3, frequency=.2, bias=[(r.randrange(VOCAB), 3.0)])
        if i % 5 == 1:  # text that repeats itself, so that drafts are right and wrong
            period = [r.randrange(5, VOCAB) for _ in range(r.randrange(2, 9))]
            kw.update(tokens=tokens[:20] + period * 6, max_tokens=r.randrange(8, 40))
        if i % 10 == 1:
            kw.update(temperature=0.0)
        if i % 4 == 0:
            kw["flags"] |= NO_CACHE
        if i % 9 == 0:
            kw["flags"] |= PROMPT_LOGPROBS
        if n - i <= 6:  # these outgrow a small pool together
            kw.update(tokens=tokens[:20 + i % 5], max_tokens=70, flags=LOGPROBS | wc.IGNORE_EOS)
        out.append(kw)
    return out


def run_all(requests, call, width=8):
    with concurrent.futures.ThreadPoolExecutor(width) as pool:
        return list(pool.map(call, requests))


def blocks_of(worker, tokens):
    bt = worker.state()["kv"]["block_tokens"]
    return (tokens + bt - 1) // bt


@pytest.fixture(scope="module")
def requests():
    print("seed", SEED)
    return mixed(REQUESTS, SEED)


@pytest.fixture(scope="module")
def alone(fleet, requests):
    answers = run_all(requests, lambda kw: fleet["U"].generate(**kw))
    for a in answers:
        assert a.error is None and a.usage["kv_bytes"] == 0 and a.usage["prefill"] == "self"
    fleet["U"].wait_idle()
    assert drafts(fleet["U"]) == (0, 0)
    return answers


def test_drafts_change_no_bit(folder, requests, alone):
    w = Worker(folder, "unified")
    try:
        for width in (1, 8):
            before = drafts(w)
            answers = run_all(requests, lambda kw: w.generate(**kw), width)
            for i, (kw, a, b) in enumerate(zip(requests, answers, alone)):
                assert a.error is None, (i, a.error)
                assert a.keys() == b.keys(), (i, kw)
            check_drafts(w, before)
        w.wait_idle()
    finally:
        w.stop()


def drafts(worker):
    """Tokens drafted, and of them accepted, since the worker began."""
    lines = [x.split() for x in worker.get("/metrics")[1].decode().splitlines() if not x.startswith("#")]
    values = {x[0]: float(x[1]) for x in lines if len(x) == 2}
    return values["baton_worker_draft_tokens_total"], values["baton_worker_draft_tokens_accepted_total"]


def check_drafts(worker, before=(0, 0)):
    drafted, accepted = (a - b for a, b in zip(drafts(worker), before))
    print("drafted", drafted, "accepted", accepted)
    assert accepted > 0 and drafted > accepted


def check_bytes(worker, kw, usage):
    block = worker.state()["kv"]["block_bytes"]
    whole = blocks_of(worker, len(kw["tokens"])) * block
    assert usage["prefill"] == "remote" and "fallback" not in usage
    if kw["flags"] & NO_CACHE:
        assert usage["kv_bytes"] == whole
    else:
        assert 0 < usage["kv_bytes"] <= whole and usage["kv_bytes"] % block == 0


@pytest.mark.parametrize("decode", ["D", "T"])
def test_prefill_elsewhere_gives_the_same_bits(fleet, requests, alone, decode):
    p, d = fleet["P"], fleet[decode]
    part = slice(0, None) if decode == "D" else slice(0, len(requests) // 4 + 1)
    before, guessed = p.state()["totals"], drafts(d)
    assert p.incarnation != d.incarnation
    answers = run_all(requests[part], lambda kw: d.generate(prefill=p.peer, **kw))
    for i, (kw, a, b) in enumerate(zip(requests[part], answers, alone[part])):
        assert a.error is None, (i, a.error)
        assert a.keys() == b.keys(), (i, kw)
        check_bytes(d, kw, a.usage)
    moved = sum(a.usage["kv_bytes"] for a in answers)
    p.wait_idle()
    d.wait_idle()
    assert p.state()["totals"]["kv_bytes_out"] - before["kv_bytes_out"] == moved
    check_drafts(d, guessed)
    text = p.get("/metrics")[1].decode()
    path = "shm" if decode == "D" else "tcp"
    assert 'baton_kv_transfer_bytes_total{path="%s"' % path in text


def test_preemption_changes_no_bit(folder, fleet, requests, alone):
    block = fleet["U"].state()["kv"]["block_bytes"]
    w = Worker(folder, "unified", "--kv-bytes", str(8 * block))
    try:
        answers = run_all(requests, lambda kw: w.generate(**kw), 12)
        for i, (a, b) in enumerate(zip(answers, alone)):
            assert a.error is None, (i, a.error)
            assert a.keys() == b.keys(), i
        assert w.wait_idle()["totals"]["preemptions"] > 0
        check_drafts(w)
    finally:
        w.stop()


def test_a_replay_continues_exactly(fleet, requests, alone):
    p, d = fleet["P"], fleet["D"]
    before = drafts(d)
    for i, (kw, whole) in enumerate(zip(requests, alone)):
        n = len(whole.tokens)
        if kw["n"] != 1 or n < 2 or kw["flags"] & PROMPT_LOGPROBS:
            continue
        cut = 1 + i % (n - 1)
        peer = {"prefill": p.peer} if i % 2 else {}
        rest = d.generate(generated=whole.ids()[:cut], **peer, **kw)
        assert rest.error is None
        assert [r.key() for r in rest.tokens] == [r.key() for r in whole.tokens[cut:]], i
    check_drafts(d, before)


# ---- whoever leaves, whenever: blocks are free within a second ----

LONG = [7 + i * 131 % 40000 for i in range(3000)]


def test_a_client_that_leaves_frees_everything_in_every_phase(fleet):
    p, d, u = fleet["P"], fleet["D"], fleet["U"]
    s = Stream(u, encode(LONG[:40], max_tokens=4000, flags=wc.IGNORE_EOS))  # decode
    while len(s.records) < 3:
        assert s.more()
    alive = u.wait(lambda x: x["alive"] and x["alive"][0]["phase"] == "decode")["alive"]
    assert len(alive) == 1 and alive[0]["prompt"] == 40 and alive[0]["blocks"] > 0
    s.leave()
    u.wait_idle(1)
    s = Stream(u, encode(LONG, max_tokens=5))  # prefill here
    u.wait(lambda x: x["kv"]["used"] > 0)
    s.leave()
    u.wait_idle(1)
    s = Stream(d, encode(LONG, max_tokens=5, prefill=p.peer))  # prefill there, in transfer
    p.wait(lambda x: x["kv"]["used"] > 0)
    queued = Stream(d, encode(LONG[1:], max_tokens=5, prefill=p.peer))  # queued there
    p.wait(lambda x: x["orders"] == 2)
    queued.leave()
    p.wait(lambda x: x["orders"] == 1, 1)
    s.leave()
    d.wait_idle(1)
    p.wait_idle(1)


def test_cancel_by_id_answers_with_an_error_record(fleet):
    u = fleet["U"]
    s = Stream(u, encode(LONG[:40], max_tokens=4000, flags=wc.IGNORE_EOS, rid=(0x1122334455667788, 0x99aabbccddeeff00)))
    while len(s.records) < 2:
        assert s.more()
    import http.client
    c = http.client.HTTPConnection(u.host, u.http_port)
    c.request("POST", "/v1/internal/cancel", '{"id":"112233445566778899aabbccddeeff00"}',
              {"Authorization": "Bearer " + wc.SECRET})
    assert c.getresponse().status == 202
    assert s.finish().error["code"] == "cancelled"
    u.wait_idle(1)


def ask_in_background(worker, **kw):
    box = []
    t = threading.Thread(target=lambda: box.append(worker.generate(**kw)))
    t.start()
    return t, box


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_prefill_worker_that_dies_costs_no_answer(folder, fleet, how):
    d, u = fleet["D"], fleet["U"]
    want = u.generate(LONG[:700], max_tokens=4, flags=LOGPROBS, n_top=2)
    p = Worker(folder, "prefill", *SHM)
    try:
        t, box = ask_in_background(d, tokens=LONG[:700], max_tokens=4, flags=LOGPROBS | NO_CACHE, n_top=2,
                                   prefill=p.peer)
        p.wait(lambda x: x["kv"]["used"] > 0)
        time.sleep(.2)
        p.proc.send_signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        d.wait(lambda x: x["inbound"] == 0 or x["kv"]["quarantined"] > 0 or x["waiting"] == 0, 3)
        t.join(wc.patience(60))
        assert box and box[0].error is None
        assert box[0].keys() == want.keys()
        assert box[0].usage["prefill"] == "self" and box[0].usage["fallback"] and box[0].usage["kv_bytes"] == 0
        if how == "stop":
            p.proc.send_signal(signal.SIGCONT)
            p.wait_idle(3)
        d.wait_idle(3)
    finally:
        p.stop()


def test_peers_that_are_not_there_or_not_the_same_are_replaced_by_d(fleet):
    p, d, u = fleet["P"], fleet["D"], fleet["U"]
    want = u.generate(LONG[:50], max_tokens=3, flags=LOGPROBS)
    for peer in [(p.host, 1, 5), (p.host, p.xfer_port, 5), (p.host, d.xfer_port, d.incarnation ^ 1)]:
        a = d.generate(LONG[:50], max_tokens=3, flags=LOGPROBS, prefill=peer)
        assert a.error is None and a.keys() == want.keys()
        assert a.usage["fallback"] and a.usage["kv_bytes"] == 0
    d.wait_idle()


def test_a_decode_worker_takes_no_orders(fleet):
    a = fleet["D"].generate(LONG[:50], max_tokens=3, prefill=fleet["T"].peer)
    assert a.error is None and "role" in a.usage["fallback"]


def test_a_decode_worker_that_dies_frees_the_prefill_worker(folder, fleet):
    p, d = fleet["P"], Worker(folder, "decode", *SHM)
    try:
        streams = [Stream(d, encode(LONG[k:], max_tokens=5, prefill=p.peer)) for k in (0, 5)]
        p.wait(lambda x: x["orders"] == len(streams) and x["kv"]["used"] > 0)
        d.proc.kill()
        p.wait_idle(1.5)
    finally:
        d.stop()


def test_a_prefill_worker_that_drains_finishes_its_orders(folder, fleet):
    d, p = fleet["D"], Worker(folder, "prefill", *SHM)
    try:
        t, box = ask_in_background(d, tokens=LONG[:500], max_tokens=2, flags=NO_CACHE, prefill=p.peer)
        p.wait(lambda x: x["orders"] == 1)
        p.proc.terminate()
        t.join(wc.patience(60))
        assert box and box[0].usage["prefill"] == "remote" and len(box[0].tokens) == 2
        assert p.proc.wait(wc.patience(10)) == 0
        a = d.generate(LONG[:40], max_tokens=2, prefill=p.peer)
        assert a.error is None and a.usage["fallback"]
    finally:
        p.stop()
