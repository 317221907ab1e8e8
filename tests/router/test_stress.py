"""Many clients at once that ask, stream, leave and send nonsense: every answer whole, nothing left behind."""
import http.client
import json
import random
import threading
import time

from patience import patience


class Client(threading.Thread):
    def __init__(self, f, seed, until):
        super().__init__()
        self.f, self.rng, self.until = f, random.Random(seed), until
        self.done = {"whole": 0, "stream": 0, "left": 0, "refused": 0}
        self.bad = []

    def run(self):
        while time.monotonic() < self.until:
            try:
                self.one()
            except (OSError, http.client.HTTPException, ValueError) as e:
                self.bad.append(repr(e))

    def one(self):
        r, kind = self.rng, self.rng.random()
        body = {"model": self.f.model, "prompt": "word " * r.randrange(1, 120) + str(r.random()), "max_tokens": r.randrange(1, 24),
                "temperature": r.choice([0, 0.8]), "ignore_eos": True}
        if r.random() < 0.3:
            body["n"] = 2
        if r.random() < 0.2:
            body["stop"] = ["e", "zzz"]
        if r.random() < 0.2:
            body["logprobs"] = 2
        body["stream"] = kind > 0.4
        if kind < 0.1:
            body["temperature"] = -1
        c = http.client.HTTPConnection(self.f.host, self.f.port, timeout=patience(60))
        try:
            c.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            if kind > 0.8:
                time.sleep(r.random() * 0.2)
                self.done["left"] += 1
                return
            answer = c.getresponse()
            data = answer.read()
            self.judge(kind, body, answer.status, data)
        finally:
            c.close()

    def judge(self, kind, body, status, data):
        if kind < 0.1:
            ok, name = status == 400, "refused"
        elif not body["stream"]:
            ok, name = status == 200 and len(json.loads(data)["choices"]) == body.get("n", 1), "whole"
        else:
            ok, name = status == 200 and data.endswith(b"data: [DONE]\n\n") and b'"error"' not in data, "stream"
        self.done[name] += 1
        if not ok:
            self.bad.append((status, data[-300:]))


def test_mixed_clients_get_whole_answers_and_leave_nothing_behind(fleet, seed):
    f = fleet(prefill=1, decode=1, unified=1, policy="auto")
    until = time.monotonic() + 8
    clients = [Client(f, seed + i, until) for i in range(12)]
    for c in clients:
        c.start()
    for c in clients:
        c.join(patience(120))
    assert not any(c.is_alive() for c in clients), "a request hangs"
    bad = [b for c in clients for b in c.bad]
    assert not bad, bad[:5]
    total = {k: sum(c.done[k] for c in clients) for k in clients[0].done}
    print(total)
    assert total["whole"] and total["stream"]
    f.wait_idle()
    assert f.get("/debug/state")[2]["in_flight"] == 0
    assert f.router.alive() and all(w.alive() for w in f.workers.values())
