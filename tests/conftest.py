"""Fixtures of all Python tests: real programs from the build folder, started on loopback addresses of their own.

BATON_BUILD     build folder (default: build)
BATON_CACHE     cache with the models (default: ~/.cache/baton)
BATON_KEEP_LOGS keep the programs' logs and print where they are

`fleet` makes a router with workers behind it, without Kubernetes:
    def test_x(fleet):
        f = fleet(prefill=1, decode=1, policy="always")
        f.client().chat.completions.create(model=f.model, ...)
Every process is killed at the end of the test (or module, for `fleet_module`), whatever happens."""
import http.client
import json
import os
import pathlib
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from patience import LIMIT, patience  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("BATON_BUILD", ROOT / "build"))
CACHE = pathlib.Path(os.environ.get("BATON_CACHE", pathlib.Path.home() / ".cache/baton"))
SMOLLM = CACHE / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA = CACHE / "models/gemma-3-270m.Q4_K_M.gguf"


def program(name):
    path = BUILD / "bin" / name
    assert path.exists(), f"{path} is not built: make BUILD={BUILD} build"
    return str(path)


def free_port(host="127.0.0.1"):
    with socket.socket() as s:
        s.bind((host, 0))
        return s.getsockname()[1]


def loopback():
    """An address of our own in 127.0.0.0/8, so that fixed ports do not meet those of other programs."""
    r = random.SystemRandom()
    return f"127.{r.randrange(16, 250)}.{r.randrange(1, 250)}.{r.randrange(2, 250)}"


def wait_for(what, seconds=30, every=0.05, message="condition"):
    """Calls `what` until it gives something true; returns that."""
    begin, last = time.monotonic(), None
    while time.monotonic() < begin + patience(seconds):
        try:
            last = what()
            if last:
                return last
        except (OSError, http.client.HTTPException) as e:
            last = e
        time.sleep(every)
    raise AssertionError(f"{message}: not within {time.monotonic() - begin:.0f} s (last: {last!r})")


def http_json(host, port, path, method="GET", body=None, headers=None, timeout=30):
    """(status, headers, body) of one request; the body decoded when it is JSON."""
    c = http.client.HTTPConnection(host, port, timeout=patience(timeout))
    try:
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        c.request(method, path, body, headers or {})
        r = c.getresponse()
        data = r.read()
        head = {k.lower(): v for k, v in r.getheaders()}
        assert len(head) == len(r.getheaders()), f"a header comes twice: {r.getheaders()}"
        if "json" in head.get("content-type", ""):
            data = json.loads(data)
        return r.status, head, data
    finally:
        c.close()


class Process:
    """A program with its log in a file. kill() is SIGKILL, stop() SIGTERM and a wait."""

    def __init__(self, name, args, folder, env=None):
        self.name, self.args, self.env = name, args, env
        self.log_path = pathlib.Path(folder) / f"{name}.log"
        self.start()

    def start(self):
        env = dict(os.environ, **(self.env or {}))
        env.pop("BATON_KUBECONFIG", None) if not self.env or "BATON_KUBECONFIG" not in self.env else None
        with open(self.log_path, "ab") as log:
            self.p = subprocess.Popen(self.args, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                      env=env, start_new_session=True)

    def alive(self):
        return self.p.poll() is None

    def log(self):
        return self.log_path.read_text(errors="replace")

    def kill(self, sig=signal.SIGKILL):
        if self.alive():
            try:
                os.killpg(self.p.pid, sig)
            except ProcessLookupError:
                pass
        if sig == signal.SIGKILL:
            self.p.wait()

    def stop(self, seconds=20):
        self.kill(signal.SIGTERM)
        try:
            self.p.wait(patience(seconds))
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not stop within {seconds} s of SIGTERM")
        return self.p.returncode

    def pause(self):
        os.killpg(self.p.pid, signal.SIGSTOP)

    def resume(self):
        os.killpg(self.p.pid, signal.SIGCONT)


class Worker(Process):
    def __init__(self, name, role, model, host, folder, secret_file, shm, extra=()):
        self.host, self.role, self.uid = host, role, ""
        self.secret = pathlib.Path(secret_file).read_text().strip()
        super().__init__(name, [
            program("baton-worker"), "--model", str(model), "--secret-file", str(secret_file),
            "--role", role, "--host", host, "--http-port", "8000", "--xfer-port", "8001",
            "--shm-dir", str(shm), "--pod-name", name, "--kv-bytes", "192Mi", "--threads", "1", *extra], folder)

    def state(self):
        """Its /debug/state."""
        status, _, body = http_json(self.host, 8000, "/debug/state")
        assert status == 200, body
        return body

    def metrics(self):
        """{name{labels}: value} of its /metrics."""
        _, _, body = http_json(self.host, 8000, "/metrics")
        return parse_metrics(body)

    def ready(self):
        assert self.alive(), f"{self.name} died:\n{self.log()[-3000:]}"
        return http_json(self.host, 8000, "/readyz")[0] == 200


def parse_metrics(text):
    if isinstance(text, bytes):
        text = text.decode()
    rows = (line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")
    return {k: float(v) for k, v in rows}


class Fleet:
    """A router and its workers."""

    def __init__(self, folder, prefill=0, decode=0, unified=0, policy="auto", model=SMOLLM, name="test-model",
                 router_args=(), worker_args=(), max_context=2048, start_router=True):
        self.folder, self.model, self.model_file, self.policy = pathlib.Path(folder), name, model, policy
        self.worker_args, self.max_context = list(worker_args), max_context
        self.secret = secrets.token_hex(32)
        self.secret_file = self.folder / "secret"
        self.secret_file.write_text(self.secret)
        self.shm = pathlib.Path(tempfile.mkdtemp(prefix="baton-test-", dir="/dev/shm"))
        self.workers, self.router, self.static_more = {}, None, {}
        self.host, self.port = "127.0.0.1", free_port()
        self.router_args = list(router_args)
        try:
            for role, n in (("prefill", prefill), ("decode", decode), ("unified", unified)):
                for i in range(n):
                    self.add_worker(f"{role}-{i}", role)
            for w in self.workers.values():
                wait_for(w.ready, 120, message=f"{w.name} ready")
            if start_router:
                self.start_router()
        except BaseException:
            self.close()
            raise

    def add_worker(self, name, role):
        w = Worker(name, role, self.model_file, loopback(), self.folder, self.secret_file, self.shm,
                   ["--max-context", str(self.max_context), "--model-name", self.model, *self.worker_args])
        self.workers[name] = w
        return w

    def write_static(self):
        path = self.folder / "static.json"
        path.write_text(json.dumps({"models": [{
            "name": self.model, "infd": "chat", "source": f"file://{self.model_file}", "secret": self.secret,
            "disaggregation": self.policy, "max_context": self.max_context, **self.static_more,
            "workers": [{"name": w.name, "uid": w.uid, "host": w.host, "port": 8000} for w in self.workers.values()]}]}))
        return path

    def start_router(self):
        self.router = Process("router", [program("baton-router"), "--static", str(self.write_static()),
                                         "--port", str(self.port), *self.router_args], self.folder)
        self.wait_routable()

    def wait_routable(self, seconds=60):
        def ok():
            assert self.router.alive(), f"the router died:\n{self.router.log()[-3000:]}"
            state = self.get("/debug/state")[2]
            d = state["deployments"]
            return d and d[0]["ready"] and sum(w["connected"] and w["ready"] for w in d[0]["workers"]) == sum(
                w.alive() for w in self.workers.values())
        wait_for(ok, seconds, message="the router sees every worker")

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    def get(self, path, headers=None):
        return http_json(self.host, self.port, path, headers=headers)

    def post(self, path, body, headers=None, timeout=120):
        h = {"content-type": "application/json", **(headers or {})}
        return http_json(self.host, self.port, path, "POST", body, h, timeout)

    def chat(self, text="Say hello.", **more):
        return self.post("/v1/chat/completions",
                         {"model": self.model, "messages": [{"role": "user", "content": text}], **more})

    def complete(self, prompt, **more):
        return self.post("/v1/completions", {"model": self.model, "prompt": prompt, **more})

    def client(self, **more):
        import openai
        return openai.OpenAI(base_url=self.url + "/v1", api_key=more.pop("api_key", "none"),
                             max_retries=more.pop("max_retries", 0), timeout=patience(120), **more)

    def metrics(self):
        return parse_metrics(self.get("/metrics")[2])

    def busy(self):
        """Requests and KV blocks that workers hold now."""
        s = [w.state() for w in self.workers.values() if w.alive()]
        return (sum(x["requests"] + x["orders"] + x["inbound"] for x in s),
                sum(x["kv"]["used"] + x["kv"]["quarantined"] for x in s))

    def wait_idle(self, seconds=10):
        wait_for(lambda: self.busy() == (0, 0), seconds, message="workers hold no request and no KV block")

    def close(self):
        for p in [self.router, *self.workers.values()]:
            if p:
                p.kill(signal.SIGCONT)
                p.kill()
        shutil.rmtree(self.shm, ignore_errors=True)
        if os.environ.get("BATON_KEEP_LOGS"):
            print(f"logs: {self.folder}")


def _factory(folder_of):
    made = []

    def make(**kw):
        f = Fleet(folder_of(), **kw)
        made.append(f)
        return f
    return make, made


@pytest.fixture
def fleet(tmp_path_factory):
    make, made = _factory(lambda: tmp_path_factory.mktemp("fleet"))
    yield make
    for f in made:
        f.close()


@pytest.fixture(scope="module")
def fleet_module(tmp_path_factory):
    make, made = _factory(lambda: tmp_path_factory.mktemp("fleet"))
    yield make
    for f in made:
        f.close()


@pytest.fixture(scope="session")
def seed():
    """A seed for random choices; printed, and set by BATON_SEED to repeat a run."""
    s = int(os.environ.get("BATON_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"BATON_SEED={s}")
    return s
