"""A client of baton-worker for tests: encodes lib/wire/request.h, decodes lib/wire/record.h, starts and stops workers."""
import http.client
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
from patience import patience, promised  # noqa: E402

WORKER = os.environ.get("BATON_WORKER", os.path.join(ROOT, os.environ.get("BATON_BUILD", "build"), "bin", "baton-worker"))
MODEL = os.environ.get("BATON_TEST_MODEL",
                       os.path.expanduser("~/.cache/baton/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
SECRET = "0123456789abcdef" * 4
LOGPROBS, PROMPT_LOGPROBS, IGNORE_EOS, NO_CACHE = 1, 2, 4, 8
TOKEN, END, ERROR, PING = 1, 2, 3, 4
STOP, LENGTH, PROMPT, ABORT = 1, 2, 3, 4


def encode(tokens, *, generated=(), prefill=None, n=1, n_top=0, seed=1, flags=0, temperature=0.0, top_p=1.0, min_p=0.0,
           repetition=1.0, presence=0.0, frequency=0.0, top_k=0, max_tokens=16, min_tokens=0, deadline_ms=0,
           stop_ids=(), bias=(), blocks=(), rid=None):
    rid = rid or (int.from_bytes(os.urandom(8), "little"), int.from_bytes(os.urandom(8), "little"))
    host, port, incarnation = prefill or ("", 0, 0)
    head = struct.pack("<IIQQQI6f4IHH5I64sQH14x", 0x51525442, 1, rid[0], rid[1], seed, flags, temperature, top_p, min_p,
                       repetition, presence, frequency, top_k, max_tokens, min_tokens, deadline_ms, n, n_top,
                       len(tokens), len(generated), len(stop_ids), len(bias), len(blocks), host.encode(), incarnation,
                       port)
    body = struct.pack("<%dI" % (len(tokens) + len(generated)), *tokens, *generated)
    body += struct.pack("<%dI" % len(stop_ids), *stop_ids)
    body += b"".join(struct.pack("<If", i, b) for i, b in bias) + b"".join(blocks)
    return head + body


class Record:
    __slots__ = ("id", "bits", "logprob", "choice", "kind", "finish", "top", "extra")

    def key(self):
        """What must be equal to the bit: id, logprob, alternatives, reason of the end."""
        return (self.id, self.bits, self.choice, self.finish, self.top)


def decode(data):
    """The records at the front of data, and what is left."""
    out = []
    while len(data) >= 16:
        rid, bits, choice, kind, finish, n_top, extra = struct.unpack_from("<IIHBBHH", data)
        size = 16 + 8 * n_top + extra
        if len(data) < size:
            break
        r = Record()
        r.id, r.bits, r.choice, r.kind, r.finish = rid, bits, choice, kind, finish
        r.logprob = struct.unpack("<f", struct.pack("<I", bits))[0]
        r.top = data[16:16 + 8 * n_top]
        r.extra = json.loads(data[16 + 8 * n_top:size]) if extra else None
        out.append(r)
        data = data[size:]
    return out, data


class Answer:
    def __init__(self, records):
        self.records = records
        last = records[-1] if records else None
        self.error = last.extra if last and last.kind == ERROR else None
        self.usage = last.extra if last and last.kind == END else None
        self.prompt = [r for r in records if r.kind == TOKEN and r.finish == PROMPT]
        self.tokens = [r for r in records if r.kind == TOKEN and r.finish != PROMPT]

    def ids(self, choice=0):
        return [r.id for r in self.tokens if r.choice == choice]

    def keys(self):
        """Order between choices is free; within a choice it isn't."""
        choices = sorted({r.choice for r in self.tokens})
        return [r.key() for r in self.prompt] + [[r.key() for r in self.tokens if r.choice == c] for c in choices]


class Stream:
    """One generate call whose records are read as they come."""

    def __init__(self, worker, body, headers=None):
        self.conn = http.client.HTTPConnection(worker.host, worker.http_port, timeout=patience(120))
        self.conn.request("POST", "/v1/internal/generate", body,
                          {"Authorization": "Bearer " + SECRET, **(headers or {})})
        self.sock = self.conn.sock
        self.response = self.conn.getresponse()
        self.status, self.data, self.records = self.response.status, b"", []

    def more(self):
        piece = self.response.read1(65536)
        new, self.data = decode(self.data + piece)
        self.records += new
        return bool(piece)

    def finish(self):
        while self.more():
            pass
        self.conn.close()
        return Answer(self.records)

    def leave(self):
        """As a client whose machine goes away politely: the connection just closes."""
        self.sock.shutdown(socket.SHUT_RDWR)
        self.response.close()
        self.conn.close()


class Worker:
    def __init__(self, folder, role="unified", *args, env=None, threads=1, model=MODEL):
        self.host = "127.0.0.1"
        self.log = open(os.path.join(folder, "worker-%s.log" % os.urandom(4).hex()), "w+")
        secret = os.path.join(folder, "secret")
        if not os.path.exists(secret):
            with open(secret, "w") as f:
                f.write(SECRET + "\n")
        self.proc = subprocess.Popen([WORKER, "--model", model, "--role", role, "--http-port", "0", "--xfer-port", "0",
                                      "--secret-file", secret, "--threads", str(threads), *args],
                                     stderr=self.log, env={**os.environ, **(env or {})})
        self.http_port, self.incarnation = 0, 0
        self._wait_serving()

    def _wait_serving(self):
        begin = time.monotonic()
        while time.monotonic() < begin + patience(60):
            self.log.seek(0)
            text = self.log.read()
            for line in text.splitlines():
                if line.startswith("{"):
                    o = json.loads(line)
                    if o.get("msg") == "serving":
                        self.http_port, self.xfer_port = o["http_port"], o["xfer_port"]
                        self.incarnation = int(o["incarnation"], 16)
                        return
            if self.proc.poll() is not None:
                raise RuntimeError("worker ended: " + text)
            time.sleep(0.02)
        raise RuntimeError("worker did not start: " + text)

    @property
    def peer(self):
        return (self.host, self.xfer_port, self.incarnation)

    def get(self, path, headers=None):
        c = http.client.HTTPConnection(self.host, self.http_port, timeout=patience(10))
        c.request("GET", path, headers=headers or {})
        r = c.getresponse()
        body = r.read()
        c.close()
        return r.status, body

    def state(self):
        return json.loads(self.get("/debug/state")[1])

    def wait(self, what, seconds=2.0):
        """The first state for which what(state) holds; fails after so many seconds."""
        begin = time.monotonic()
        while True:
            s = self.state()
            if what(s):
                return s
            assert time.monotonic() < begin + patience(seconds), "not within %.1f s: %s" % (time.monotonic() - begin, s)
            time.sleep(0.01)

    def wait_idle(self, seconds=2.0):
        return self.wait(idle, seconds)

    def generate(self, tokens, **kw):
        return Stream(self, encode(tokens, **kw)).finish()

    def stop(self):
        if self.proc.poll() is None:
            self.proc.terminate()
            try:
                self.proc.wait(patience(10))
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()
        self.log.close()


def idle(s):
    return (s["requests"] == s["orders"] == s["inbound"] == s["streams"] == 0 and s["kv"]["used"] == 0 and
            s["kv"]["quarantined"] == 0 and s["kv"]["check"] == "ok")


def temp_folder():
    return tempfile.mkdtemp(prefix="baton-worker-")
