"""One worker alone: what it answers, what it refuses, its roles, its end, its heartbeats, its launcher."""
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import time

import pytest

import wireclient as wc
from wireclient import LOGPROBS, PROMPT_LOGPROBS, Stream, Worker, encode

PROMPT = [504, 3575, 282, 4649, 314]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("worker"))


@pytest.fixture(scope="module")
def worker(folder):
    w = Worker(folder, "unified", "--max-context", "512")
    yield w
    w.stop()


def test_prompt_logprobs_equal_the_score_mode_to_the_bit(worker):
    ids = PROMPT + [253, 2155, 282, 4723] * 9
    out = subprocess.run([wc.WORKER, "--score", "--model", wc.MODEL, "--threads", "1", "--ids",
                          ",".join(map(str, ids))], check=True, capture_output=True)
    scores = json.loads(out.stdout)
    a = worker.generate(ids, max_tokens=0, flags=PROMPT_LOGPROBS | LOGPROBS, n_top=5)
    assert a.error is None and not a.tokens and len(a.prompt) == len(ids) == len(scores)

    def f32(x):
        return struct.pack("<f", x)
    for i, (r, s) in enumerate(zip(a.prompt, scores)):
        assert r.id == s["id"] == ids[i]
        if i == 0:
            assert s["logprob"] is None and r.logprob != r.logprob and not r.top and not s["top"]
            continue
        assert f32(s["logprob"]) == struct.pack("<I", r.bits)
        assert b"".join(struct.pack("<I", t) + f32(v) for t, v in s["top"]) == r.top


def test_ends_by_length_stop_and_context(worker):
    free = worker.generate(PROMPT, max_tokens=8, flags=wc.IGNORE_EOS)
    assert len(free.tokens) == 8 and free.tokens[-1].finish == wc.LENGTH
    stop = free.ids()[3]
    first = free.ids().index(stop)
    a = worker.generate(PROMPT, max_tokens=8, stop_ids=[stop])
    assert a.ids() == free.ids()[:first + 1] and a.tokens[-1].finish == wc.STOP
    a = worker.generate(PROMPT, max_tokens=8, stop_ids=[stop], min_tokens=8)
    assert len(a.tokens) == 8 and stop not in a.ids()
    a = worker.generate((PROMPT * 103)[:510], max_tokens=50, flags=wc.IGNORE_EOS)
    assert len(a.tokens) == 2 and a.tokens[-1].finish == wc.LENGTH
    assert worker.generate(PROMPT, max_tokens=0).usage["completion_tokens"] == 0


def test_choices_differ_and_repeat_with_the_seed(worker):
    kw = {"tokens": PROMPT, "n": 4, "temperature": 1.2, "seed": 99, "max_tokens": 6, "flags": wc.IGNORE_EOS}
    a, b = worker.generate(**kw), worker.generate(**kw)
    assert a.keys() == b.keys()
    assert len({tuple(a.ids(c)) for c in range(4)}) > 1
    assert a.usage["completion_tokens"] == 24


def test_a_second_time_the_prefix_is_found(worker):
    ids = [11 + i * 17 for i in range(100)]
    a = worker.generate(ids, max_tokens=2, flags=LOGPROBS)
    b = worker.generate(ids, max_tokens=2, flags=LOGPROBS)
    assert a.usage["cached_tokens"] == 0 and b.usage["cached_tokens"] == 96
    assert a.keys() == b.keys()
    full = worker.generate(ids[:96], max_tokens=2)
    assert full.usage["cached_tokens"] == 64  # one block is always computed again


def post(worker, body, secret=wc.SECRET, **headers):
    c = http.client.HTTPConnection(worker.host, worker.http_port, timeout=20)
    c.request("POST", "/v1/internal/generate", body, {"Authorization": "Bearer " + secret, **headers})
    r = c.getresponse()
    return r.status, r.read()


def test_refusals(worker):
    good = encode(PROMPT, max_tokens=1)
    assert post(worker, good, "wrong" * 8)[0] == 401
    assert post(worker, b"hello")[0] == 400
    assert post(worker, good[:-1])[0] == 400
    assert post(worker, good, **{"x-baton-incarnation": "00000000000000ff"})[0] == 409
    assert post(worker, good, **{"x-baton-incarnation": "%016x" % worker.incarnation})[0] == 200
    for tokens in ([60000], PROMPT * 200):
        a = worker.generate(tokens, max_tokens=1)
        assert a.error["status"] == 400 and not a.error["retry"]
    a = worker.generate(PROMPT * 80, max_tokens=100, deadline_ms=1)
    assert a.error["status"] == 504
    worker.wait_idle()


def test_a_role_change_is_immediate_and_lets_requests_finish(folder):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    secret = os.path.join(folder, "launched-secret")
    with open(secret, "w") as f:
        f.write(wc.SECRET)
    fd = os.memfd_create("weights")
    env = {**os.environ, "BATON_MODEL_SOURCE": "file://" + wc.MODEL, "BATON_HTTP_PORT": "0", "BATON_XFER_PORT": "0"}
    plan = json.loads(subprocess.run([wc.WORKER, "--plan"], env=env, check=True, capture_output=True).stdout)
    os.ftruncate(fd, plan["weights_bytes"])
    filled = subprocess.run([wc.WORKER, "--fill"], env={**env, "BATON_WEIGHTS_FD": str(fd)}, pass_fds=[fd], check=True,
                            capture_output=True)
    assert len(json.loads(filled.stdout)["checksum"]) == 16
    log = open(os.path.join(folder, "launched.log"), "w+")
    proc = subprocess.Popen([wc.WORKER, "--secret-file", secret, "--threads", "1"], stderr=log, pass_fds=[theirs.fileno()],
                            env={**env, "BATON_LAUNCHER_FD": str(theirs.fileno())})
    theirs.close()
    try:
        lines = ours.makefile("r")

        def tell(o, fds=()):
            socket.send_fds(ours, [(json.dumps(o) + "\n").encode()], fds)

        def until(**want):
            while True:
                o = json.loads(lines.readline())
                if all(o.get(k) == v for k, v in want.items()):
                    return o
        tell({"type": "start", "rank": 0, "ranks": 1, "role": "decode", "incarnation": "00000000000000aa",
              "weights_bytes": plan["weights_bytes"]}, [fd])
        ours.settimeout(wc.patience(60))
        until(type="status", role="decode", ready=True, draining=False)
        log.seek(0)
        o = [json.loads(x) for x in log.read().splitlines() if '"serving"' in x][0]
        w = Worker.__new__(Worker)
        w.host, w.http_port, w.incarnation = "127.0.0.1", o["http_port"], 0xaa
        s = Stream(w, encode(PROMPT, max_tokens=60, flags=wc.IGNORE_EOS))
        s.more()
        t = time.monotonic()
        tell({"type": "role", "role": "prefill"})
        until(type="status", role="prefill", ready=True)
        assert time.monotonic() - t < wc.promised(.5)
        assert post(w, encode(PROMPT))[0] == 503
        assert len(s.finish().tokens) == 60
        tell({"type": "role", "role": "unified"})
        until(type="status", role="unified")
        s = Stream(w, encode(PROMPT, max_tokens=20, flags=wc.IGNORE_EOS))
        s.more()
        tell({"type": "drain"})
        until(type="status", draining=True, ready=False)
        assert post(w, encode(PROMPT))[0] == 503
        assert len(s.finish().tokens) == 20
        until(type="drained")
        assert proc.wait(wc.patience(10)) == 0
    finally:
        proc.kill()
        proc.wait()
        os.close(fd)


def test_a_worker_without_its_launcher_stops(folder):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    secret = os.path.join(folder, "secret")
    proc = subprocess.Popen([wc.WORKER, "--secret-file", secret, "--model", wc.MODEL], stderr=subprocess.DEVNULL,
                            pass_fds=[theirs.fileno()], env={**os.environ, "BATON_LAUNCHER_FD": str(theirs.fileno())})
    theirs.close()
    ours.close()
    assert proc.wait(wc.patience(10)) is not None


def test_a_drain_that_takes_too_long_ends_with_error_records(folder):
    w = Worker(folder, "unified", "--drain-seconds", "1")
    try:
        s = Stream(w, encode(PROMPT, max_tokens=8000, flags=wc.IGNORE_EOS))
        s.more()
        t = time.monotonic()
        w.proc.send_signal(signal.SIGTERM)
        a = s.finish()
        assert a.error["status"] == 503 and a.error["code"] == "draining" and a.error["retry"]
        assert w.proc.wait(wc.patience(5)) == 0 and time.monotonic() - t < wc.promised(4)
    finally:
        w.stop()


def test_a_full_queue_says_so(folder):
    w = Worker(folder, "unified", "--max-queue", "2")
    try:
        busy = [Stream(w, encode(PROMPT, max_tokens=2000, flags=wc.IGNORE_EOS)) for _ in range(2)]
        assert post(w, encode(PROMPT))[0] == 429
        for s in busy:
            s.leave()
        w.wait_idle(1)
        assert post(w, encode(PROMPT, max_tokens=1))[0] == 200
    finally:
        w.stop()


# ---- heartbeats ----

class Beats:
    """GET /v1/internal/events, frames decoded as lib/wire/heartbeat.h says."""

    def __init__(self, worker):
        self.conn = http.client.HTTPConnection(worker.host, worker.http_port, timeout=wc.patience(10))
        self.conn.request("GET", "/v1/internal/events", headers={"Authorization": "Bearer " + wc.SECRET})
        self.response = self.conn.getresponse()
        assert self.response.status == 200
        self.data, self.seq, self.names = b"", 0, set()

    def next(self):
        while len(self.data) < 4 or len(self.data) < 4 + struct.unpack_from("<I", self.data)[0]:
            self.data += self.response.read1(65536)
        n, = struct.unpack_from("<I", self.data)
        body, self.data = self.data[4:4 + n], self.data[4 + n:]
        magic, version, role, _, incarnation, seq, flags, port = struct.unpack_from("<IHBBQQII", body)
        n_added, n_removed = struct.unpack_from("<II", body, 128)
        assert magic == 0x42485442 and version == 1 and seq == self.seq
        self.seq += 1
        if flags & 1:
            self.names = set()
        names = [body[160 + 16 * i:176 + 16 * i] for i in range(n_added + n_removed)]
        for x in names[:n_added]:
            assert x not in self.names
            self.names.add(x)
        for x in names[n_added:]:
            self.names.remove(x)
        running, waiting, blocks, used, cached, bt = struct.unpack_from("<6I", body, 32)
        return {"role": role, "incarnation": incarnation, "flags": flags, "port": port, "running": running,
                "cached": cached, "used": used}


def test_heartbeats_tell_every_router_the_cached_blocks(folder):
    block = 737280
    w = Worker(folder, "unified", "--kv-bytes", str(16 * block))
    try:
        one = Beats(w)
        first = one.next()
        assert first["flags"] & 3 == 3 and first["incarnation"] == w.incarnation and first["port"] == w.xfer_port
        for k in range(5):
            w.generate([100 + k] + [5 + i for i in range(200)], max_tokens=1)
        two = Beats(w)
        two.next()
        w.generate([300] + [5 + i for i in range(200)], max_tokens=1)
        cached = w.wait_idle()["kv"]["cached"]
        for beats in (one, two):
            end = time.monotonic() + .5
            while time.monotonic() < end:  # what has piled up, then a few live ones
                assert beats.next()["flags"] & 8
        assert one.names == two.names and len(one.names) == cached > 0
        t = time.monotonic()
        for _ in range(5):
            two.next()
        assert .3 < time.monotonic() - t < wc.promised(1.5)
    finally:
        w.stop()
