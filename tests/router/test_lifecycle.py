"""Clients that leave, workers that die, keys, CORS, load: what happens around a request."""
import http.client
import json
import signal
import socket
import threading
import time

import pytest

from conftest import wait_for
from patience import patience, promised

LONG = {"max_tokens": 900, "temperature": 0, "ignore_eos": True}


def open_stream(f, prompt, path="/v1/completions", **more):
    """A connection on which a streamed request has been sent."""
    c = http.client.HTTPConnection(f.host, f.port, timeout=patience(120))
    c.request("POST", path, json.dumps({"model": f.model, "prompt": prompt, "stream": True, **more}),
              {"content-type": "application/json"})
    return c


def leave(c):
    c.sock.shutdown(socket.SHUT_RDWR)
    c.close()


def events(response):
    for line in response:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield json.loads(line[6:])


@pytest.fixture(scope="module")
def pd(fleet_module):
    return fleet_module(prefill=1, decode=1, policy="always", max_context=4096)


def freed_within_a_second(f):
    begin = time.monotonic()
    wait_for(lambda: f.busy() == (0, 0), 10, every=0.02, message="engine and KV are free")
    took = time.monotonic() - begin
    assert took < promised(1.3), f"it took {took:.2f} s"
    assert f.get("/debug/state")[2]["in_flight"] == 0


def test_a_client_that_leaves_during_prefill_frees_everything(pd):
    c = open_stream(pd, "one two three " * 1200, **{**LONG, "max_tokens": 10})
    wait_for(lambda: pd.workers["prefill-0"].state()["orders"], 20, every=0.01, message="P has the order")
    leave(c)
    freed_within_a_second(pd)


def test_a_client_that_leaves_during_decode_frees_everything(pd):
    c = open_stream(pd, "Once upon a time", **LONG)
    c.sock.settimeout(patience(60))
    r = c.getresponse()
    assert r.status == 200
    for _ in range(3):
        next(events(r))
    assert pd.busy()[1] > 0
    leave(c)
    freed_within_a_second(pd)


def test_a_client_that_leaves_while_queued_frees_everything(pd):
    busy = [open_stream(pd, f"{i} one two three " * 600, **LONG) for i in range(4)]
    queued = [open_stream(pd, f"queue {i} " * 300, **LONG) for i in range(4)]
    wait_for(lambda: pd.get("/debug/state")[2]["in_flight"] == 8, 10, message="all are in")
    for c in queued:
        leave(c)
    wait_for(lambda: pd.get("/debug/state")[2]["in_flight"] == 4, 2, message="the queued are gone")
    for c in busy:
        leave(c)
    freed_within_a_second(pd)


def test_a_client_that_leaves_without_streaming_frees_everything(pd):
    c = http.client.HTTPConnection(pd.host, pd.port, timeout=patience(60))
    c.request("POST", "/v1/completions", json.dumps({"model": pd.model, "prompt": "Hello", **LONG}),
              {"content-type": "application/json"})
    wait_for(lambda: pd.workers["decode-0"].state()["running"], 20, every=0.01, message="D runs it")
    leave(c)
    freed_within_a_second(pd)


def test_stop_strings_free_the_engine_at_once(pd):
    kw = {"temperature": 0, "max_tokens": 900, "ignore_eos": True}
    text = pd.complete("1, 2, 3, 4,", **{**kw, "max_tokens": 30})[2]["choices"][0]["text"]
    status, _, r = pd.complete("1, 2, 3, 4,", stop=text[20:24], **kw)
    assert status == 200 and r["choices"][0]["finish_reason"] == "stop" and r["usage"]["completion_tokens"] < 40
    freed_within_a_second(pd)


# ---- deaths ----

def stream_text(f, prompt, on_token=None, on_text=None, **more):
    c = open_stream(f, prompt, **more)
    r = c.getresponse()
    assert r.status == 200, r.read()
    text, n, error = "", 0, None
    for e in events(r):
        error = e.get("error") or error
        for choice in e.get("choices", []):
            text += choice["text"]
        n += 1
        if on_token:
            on_token(n)
        if on_text:
            on_text(len(text))
    c.close()
    return text, error


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 1.1, "seed": 11}], ids=["greedy", "seeded"])
def test_kill_9_of_decode_in_mid_stream_continues_exactly(fleet, params):
    f = fleet(prefill=1, decode=2, policy="always")
    kw = {"max_tokens": 240, "ignore_eos": True, **params}
    expected, _ = stream_text(f, "Tell me a story about a river.", **kw)

    def kill_at(n):
        if n == 8:
            busy = [w for w in f.workers.values() if w.role == "decode" and w.state()["running"]]
            assert len(busy) == 1
            busy[0].kill()
    text, error = stream_text(f, "Tell me a story about a river.", kill_at, **kw)
    assert error is None and text == expected
    assert sum(v for k, v in f.metrics().items() if k.startswith("baton_router_retries_total")) >= 1
    freed = [w for w in f.workers.values() if w.alive()]
    assert len(freed) == 2
    f.wait_idle()


def test_a_long_stream_outlives_more_workers_than_one_token_may_cost(fleet):
    """Three failures in a row end a request; an answer that goes on in between may meet any number."""
    f = fleet(unified=2, policy="never")
    kw = {"max_tokens": 1700, "ignore_eos": True, "temperature": 0}
    expected, _ = stream_text(f, "Tell me a story about a forest.", **kw)
    step, killed = len(expected) // 6, []  # about 280 tokens

    def kill_at(length):
        if length >= step * (len(killed) + 1) and len(killed) < 5:
            busy = [w for w in f.workers.values() if w.state()["running"]]
            assert len(busy) == 1
            busy[0].kill()
            busy[0].start()
            wait_for(busy[0].ready, 30, message="the worker again")
            killed.append(busy[0])
    text, error = stream_text(f, "Tell me a story about a forest.", on_text=kill_at, **kw)
    assert error is None and text == expected
    assert len(killed) == 5


def test_a_stream_goes_on_exactly_when_its_decode_worker_and_the_only_prefill_worker_die(fleet):
    f = fleet(prefill=1, decode=2, policy="always", router_args=["--hold-seconds", "5"])
    kw = {"max_tokens": 240, "ignore_eos": True, "temperature": 0}
    expected, _ = stream_text(f, "Tell me a story about a mountain.", **kw)

    def kill_at(n):
        if n == 8:
            for w in [w for w in f.workers.values() if w.role == "prefill" or w.state()["running"]]:
                w.kill()
    text, error = stream_text(f, "Tell me a story about a mountain.", kill_at, **kw)
    assert error is None and text == expected
    status, _, r = f.chat(max_tokens=2)
    assert status == 503 and r["error"]["code"] == "no_prefill", r


def test_kill_9_of_prefill_answers_by_the_other_one(fleet):
    f = fleet(prefill=2, decode=1, policy="always")
    prompt = "alpha beta gamma " * 80
    expected = f.complete(prompt + "!", max_tokens=8, temperature=0)[2]["choices"][0]["text"]
    out = {}

    def run():
        out["r"] = f.complete(prompt + "!", max_tokens=8, temperature=0)
    # another prompt, so that nothing of it is cached
    prompt = "gamma beta alpha " * 80
    t = threading.Thread(target=run)
    t.start()
    busy = wait_for(lambda: [w for w in f.workers.values() if w.role == "prefill" and w.state()["orders"]], 20,
                    every=0.01, message="a P has the order")
    busy[0].kill()
    t.join(patience(60))
    status, _, r = out["r"]
    assert status == 200 and r["usage"]["completion_tokens"] == 8, r
    again = f.complete(prompt + "!", max_tokens=8, temperature=0)[2]["choices"][0]["text"]
    assert r["choices"][0]["text"] == again and expected
    f.wait_idle()


def test_a_dead_fleet_is_503_with_retry_after_and_heals(fleet):
    f = fleet(prefill=1, decode=1, policy="always", router_args=["--hold-seconds", "0.3"])
    f.workers["prefill-0"].kill()
    wait_for(lambda: f.chat(max_tokens=2)[0] == 503, 10, message="503")
    status, headers, r = f.chat(max_tokens=2)
    assert status == 503 and headers["retry-after"] and r["error"]["code"] == "no_prefill", r
    assert "prefill" in r["error"]["message"]
    f.workers["prefill-0"].start()
    wait_for(lambda: f.chat(max_tokens=2)[0] == 200, 60, message="200 again")


def test_a_request_waits_for_a_worker_that_comes_back(fleet):
    f = fleet(unified=1, policy="never", router_args=["--hold-seconds", "60"])
    f.workers["unified-0"].kill()
    out = []
    t = threading.Thread(target=lambda: out.append(f.chat(max_tokens=2)))
    t.start()
    time.sleep(0.5)
    assert not out
    f.workers["unified-0"].start()
    t.join(patience(90))
    assert out and out[0][0] == 200


def test_requests_for_a_model_at_zero_are_held_so_long_and_so_many(fleet):
    f = fleet(start_router=False, policy="never", router_args=["--wake-seconds", "1"])
    f.static_more = {"wakes": True}
    f.start_router()
    begin = time.monotonic()
    status, headers, r = f.complete("one", max_tokens=1)
    assert status == 503 and headers["retry-after"] and r["error"]["code"] == "model_at_zero", r
    assert time.monotonic() - begin >= 1, "it was not held"
    f.router.stop()
    f.router_args = ["--wake-seconds", "300", "--max-held", "0"]
    f.start_router()
    status, headers, r = f.complete("two", max_tokens=1)
    assert status == 503 and headers["retry-after"] and r["error"]["code"] == "model_at_zero", r
    assert "0 requests wait" in r["error"]["message"]


def test_sigterm_lets_running_requests_finish(fleet):
    f = fleet(unified=1, policy="never")
    c = open_stream(f, "Once upon a time", max_tokens=60, temperature=0, ignore_eos=True)
    r = c.getresponse()
    stream = events(r)
    next(stream)
    f.router.kill(signal.SIGTERM)
    assert len(list(stream)) >= 50
    f.router.p.wait(patience(20))
    assert f.router.p.returncode == 0


def test_a_worker_that_sleeps_is_not_picked(fleet):
    f = fleet(unified=2, policy="never")
    f.workers["unified-0"].pause()
    time.sleep(promised(1.3))  # what it said last is heard late where processors are few
    for i in range(4):
        status, headers, _ = f.chat(f"number {i}", max_tokens=2)
        assert status == 200 and headers["x-baton-decode"].startswith("unified-1:")
    f.workers["unified-0"].resume()
    texts = iter(range(10 ** 6))  # nothing cached, so that both are as good
    wait_for(lambda: f.chat(f"{next(texts)}", max_tokens=1)[1]["x-baton-decode"].startswith("unified-0:"), 30,
             message="it is picked again")


# ---- keys, browsers, the controller ----

def test_api_keys(fleet, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# team\nsk-one\nsk-two\n")
    f = fleet(unified=1, policy="never", router_args=["--api-keys-file", str(keys)])
    body = {"model": f.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    for header in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic sk-one"}, {"authorization": "Bearer "}):
        status, _, r = f.post("/v1/chat/completions", body, header)
        assert status == 401 and r["error"]["code"] == "invalid_api_key", header
    for key in ("sk-one", "sk-two"):
        assert f.post("/v1/chat/completions", body, {"authorization": f"Bearer {key}"})[0] == 200
    assert f.get("/v1/models")[0] == 401
    for path in ("/healthz", "/readyz", "/metrics", "/"):
        assert f.get(path)[0] == 200, path


def test_browsers_may_call(pd):
    status, h, _ = pd.post("/v1/completions", {"model": pd.model, "prompt": "x", "max_tokens": 1}, {"origin": "https://a.b"})
    assert status == 200 and h["access-control-allow-origin"] == "*"
    assert "x-baton-decode" in h["access-control-expose-headers"]
    c = http.client.HTTPConnection(pd.host, pd.port)
    c.request("OPTIONS", "/v1/chat/completions", headers={"origin": "https://a.b", "access-control-request-method": "POST"})
    r = c.getresponse()
    assert r.status == 204 and "authorization" in r.headers["access-control-allow-headers"]
    c.close()


def test_the_page_needs_nothing_from_elsewhere(pd):
    status, h, page = pd.get("/")
    page = page.decode()
    assert status == 200 and h["content-type"].startswith("text/html")
    assert "default-src 'none'" in h["content-security-policy"]
    assert "https://" not in page and page.count("http://") == page.count("http://www.w3.org/2000/svg")


def test_load_is_given_by_role_to_who_knows_the_secret(pd):
    assert pd.get("/v1/internal/load")[0] == 401
    h = {"authorization": f"Bearer {pd.secret}"}
    pd.complete("abc " * 100, max_tokens=4)
    status, _, r = pd.get("/v1/internal/load?infd=chat", h)
    assert status == 200 and r["infd"] == "chat"
    p, d = r["roles"]["prefill"], r["roles"]["decode"]
    assert p["workers"] == d["workers"] == 1 and p["kv_blocks"] > 0
    wait_for(lambda: pd.get("/v1/internal/load?infd=chat", h)[2]["roles"]["decode"]["kv_used"] == 0, 2)
    s = p["samples"][0]
    assert s["pod"] == "prefill-0" and len(s["incarnation"]) == 16 and s["role"] == "prefill" and s["age_ms"] < 1000
    assert [x["infd"] for x in pd.get("/v1/internal/load", h)[2]["items"]] == ["chat"]
    assert pd.get("/v1/internal/load?infd=none", h)[0] == 404


def test_metrics_count_what_happened(pd):
    before = pd.metrics()
    pd.complete("metrics please", max_tokens=5, temperature=0, ignore_eos=True)
    after = pd.metrics()

    def grew(name, by):
        assert after[name] - before.get(name, 0) == by, name
    grew('baton_router_requests_total{model="test-model",api="completions",status="200"}', 1)
    grew('baton_router_generated_tokens_total{model="test-model"}', 5)
    grew('baton_router_ttft_seconds_count{model="test-model"}', 1)
    grew('baton_router_picks_total{model="test-model",reason="split"}', 1)
    assert after['baton_router_workers{infd="chat",role="prefill"}'] == 1


# ---- large bodies ----

def test_a_large_body_is_tokenised_off_the_loop(pd):
    """Above --inline-bytes a thread tokenises; meanwhile the router answers others, and gives the same tokens."""
    text = "The quick brown fox jumps over the lazy dog. " * 20000  # 900 kB
    out = []
    t = threading.Thread(target=lambda: out.append(pd.post("/tokenize", {"model": pd.model, "prompt": text})))
    t.start()
    slowest = 0
    while t.is_alive():
        begin = time.monotonic()
        assert pd.get("/healthz")[0] == 200
        slowest = max(slowest, time.monotonic() - begin)
    assert out[0][0] == 200 and out[0][2]["count"] > 150000
    assert slowest < promised(0.5), f"a health check took {slowest:.2f} s"
    small = pd.post("/tokenize", {"model": pd.model, "prompt": text[:900]})[2]["tokens"]
    assert out[0][2]["tokens"][:150] == small[:150]


def test_a_large_prompt_past_the_context_is_refused(pd):
    status, _, r = pd.complete("word " * 100000, max_tokens=5)
    assert status == 400 and r["error"]["code"] == "context_length_exceeded"


def test_clients_that_leave_while_a_thread_works_for_them(pd):
    body = json.dumps({"model": pd.model, "prompt": "The quick brown fox. " * 100000, "max_tokens": 5})
    for _ in range(10):
        s = socket.create_connection((pd.host, pd.port))
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        time.sleep(0.01)
        s.close()
    wait_for(lambda: pd.get("/debug/state")[2]["in_flight"] == 0, 20, message="all are gone")
    assert pd.complete("x", max_tokens=1)[0] == 200


def test_a_request_with_two_choices_begins_again_when_decode_dies(fleet):
    f = fleet(prefill=1, decode=2, policy="always")
    kw = dict(max_tokens=60, temperature=1.0, seed=5, n=2, ignore_eos=True)
    expected = f.complete("Here is a list of animals:", **kw)[2]
    out = []
    t = threading.Thread(target=lambda: out.append(f.complete("Here is a list of animals:", **kw)))
    t.start()
    busy = wait_for(lambda: [w for w in f.workers.values() if w.role == "decode" and w.state()["running"]], 20, every=0.01)
    busy[0].kill()
    t.join(patience(60))
    status, headers, r = out[0]
    assert status == 200
    assert [c["text"] for c in r["choices"]] == [c["text"] for c in expected["choices"]]
    assert r["usage"]["completion_tokens"] == 120
    assert not headers["x-baton-decode"].startswith(busy[0].name + ":")


def test_echo_with_logprobs_survives_the_death_of_decode(fleet):
    f = fleet(prefill=1, decode=2, policy="always")
    kw = dict(max_tokens=240, temperature=0, echo=True, logprobs=2, ignore_eos=True)
    expected = f.complete("Here is a list of animals:", **kw)[2]["choices"][0]
    got = []

    def kill_at(n):
        if n == 8:
            for w in f.workers.values():
                if w.role == "decode" and w.state()["running"]:
                    w.kill()
                    got.append(w)
    c = open_stream(f, "Here is a list of animals:", **kw)
    tokens, text = [], ""
    for n, e in enumerate(events(c.getresponse())):
        assert "error" not in e
        for choice in e["choices"]:
            text += choice["text"]
            if choice["logprobs"]:
                tokens += zip(choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"])
        kill_at(n)
    assert len(got) == 1 and text == expected["text"]
    assert tokens == list(zip(expected["logprobs"]["tokens"], expected["logprobs"]["token_logprobs"]))
