"""Sleep and wake of a standby worker, and what a worker tells routers of its model."""
import http.client
import json
import os
import pathlib
import re
import socket
import subprocess

import pytest

import wireclient as wc
from wireclient import LOGPROBS, Stream, Worker, encode

PROMPT = [504, 3575, 282, 4649, 314]


class Launched:
    """A worker started as a launcher does it, with its socket."""

    def __init__(self, folder, role):
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        (folder / "secret").write_text(wc.SECRET)
        self.fd = os.memfd_create("weights")
        env = {**os.environ, "BATON_MODEL_SOURCE": "file://" + str(wc.MODEL), "BATON_HTTP_PORT": "0", "BATON_XFER_PORT": "0",
               "BATON_KV_BYTES": str(64 << 20)}
        plan = json.loads(subprocess.run([wc.WORKER, "--plan"], env=env, check=True, capture_output=True).stdout)
        self.weights = plan["weights_bytes"]
        os.ftruncate(self.fd, self.weights)
        subprocess.run([wc.WORKER, "--fill"], env={**env, "BATON_WEIGHTS_FD": str(self.fd)}, pass_fds=[self.fd], check=True, capture_output=True)
        self.log = folder / "log"
        self.proc = subprocess.Popen([wc.WORKER, "--secret-file", folder / "secret", "--threads", "1"], stderr=open(self.log, "wb"),
                                     pass_fds=[theirs.fileno()], env={**env, "BATON_LAUNCHER_FD": str(theirs.fileno())})
        theirs.close()
        self.ours.settimeout(wc.patience(60))
        self.lines = self.ours.makefile("r")
        self.tell({"type": "start", "rank": 0, "ranks": 1, "role": role, "incarnation": "00000000000000aa", "weights_bytes": self.weights},
                  [self.fd])
        self.until(role=role, ready=True)
        self.w = Worker.__new__(Worker)
        self.w.host, self.w.incarnation, self.w.http_port = "127.0.0.1", 0xaa, self.logged("serving")[0]["http_port"]

    def tell(self, o, fds=()):
        socket.send_fds(self.ours, [(json.dumps(o) + "\n").encode()], fds)

    def until(self, **want):
        while True:
            o = json.loads(self.lines.readline())
            if o["type"] == "status" and all(o.get(k) == v for k, v in want.items()):
                return o

    def logged(self, message):
        return [o for o in map(json.loads, self.log.read_text().splitlines()) if o["msg"].startswith(message)]

    def shared_memory(self):
        return int(re.search(r"RssShmem:\s+(\d+) kB", pathlib.Path(f"/proc/{self.proc.pid}/status").read_text())[1]) << 10

    def mappings(self):
        return {x.split()[0] for x in pathlib.Path(f"/proc/{self.proc.pid}/maps").read_text().splitlines() if "memfd:" in x}

    def answer(self):
        return Stream(self.w, encode(PROMPT, max_tokens=12, flags=wc.IGNORE_EOS | LOGPROBS)).finish()

    def get(self, path, secret=wc.SECRET, **headers):
        c = http.client.HTTPConnection("127.0.0.1", self.w.http_port)
        c.request("GET", path, headers={"Authorization": f"Bearer {secret}", **headers})
        r = c.getresponse()
        return r.status, r.read(), r.headers

    def close(self):
        self.proc.kill()
        self.proc.wait()
        os.close(self.fd)


@pytest.fixture
def launched(tmp_path):
    made = []

    def make(role):
        made.append(Launched(tmp_path, role))
        return made[-1]
    yield make
    for x in made:
        x.close()


def test_asleep_it_holds_no_memory_and_awake_it_answers_as_before(launched):
    x = launched("unified")
    before, awake, where = x.answer(), x.shared_memory(), x.mappings()
    assert awake > (64 << 20)
    x.tell({"type": "role", "role": "standby"})
    x.tell({"type": "rung", "rung": "warm"})
    asleep = x.until(rung="warm")
    assert asleep["role"] == "standby" and asleep["ready"]
    assert x.shared_memory() < 4 << 20 and x.mappings() == where  # the addresses stay
    x.tell({"type": "role", "role": "unified"})
    x.until(role="unified", ready=True, rung="hot")
    after = x.answer()
    assert after.keys() == before.keys() and after.usage["cached_tokens"] == 0
    assert x.logged("asleep")[0]["kv_bytes"] > 60 << 20 and x.logged("awake")[0]["after_us"] > 0


def test_it_is_not_ready_in_its_role_before_it_is_awake(launched):
    x = launched("standby")
    x.tell({"type": "rung", "rung": "warm"})
    x.until(rung="warm")
    x.tell({"type": "role", "role": "decode"})
    while True:
        o = json.loads(x.lines.readline())
        if o["role"] == "decode":
            assert not (o["ready"] and o["rung"] == "warm"), o
            if o["ready"]:
                break


def test_what_runs_is_finished_before_sleep(launched):
    x = launched("unified")
    s = Stream(x.w, encode(PROMPT, max_tokens=60, flags=wc.IGNORE_EOS))
    s.more()
    x.tell({"type": "role", "role": "standby"})
    x.tell({"type": "rung", "rung": "warm"})
    assert len(s.finish().tokens) == 60
    x.until(rung="warm")
    x.tell({"type": "rung", "rung": "hot"})
    x.until(rung="hot", role="standby")
    x.tell({"type": "rung", "rung": "warm"})  # again and again
    x.until(rung="warm")


def test_routers_get_the_head_of_the_model_with_the_secret_only(launched):
    x = launched("standby")
    name = os.path.basename(wc.MODEL)
    assert x.get("/v1/internal/model?list", "no" * 16)[0] == 401
    assert json.loads(x.get("/v1/internal/model?list")[1]) == [name]
    status, head, headers = x.get(f"/v1/internal/model?file={name}", Range="bytes=0-3")
    assert (status, head) == (206, b"GGUF") and headers["Content-Range"].endswith(f"/{os.path.getsize(wc.MODEL)}")
    for bad in ("..%2Fsecret", "secret", "", "%2Fetc%2Fpasswd"):
        assert x.get(f"/v1/internal/model?file={bad}")[0] == 404
