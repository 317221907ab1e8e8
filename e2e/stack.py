"""A whole local cluster for end-to-end tests: `baton up` with a folder and a port of its own, the sample `chat`, clients, and ways to
look into and kill its processes."""
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from patience import patience, promised  # noqa: E402

BUILD = pathlib.Path(os.environ.get("BATON_BUILD", ROOT / "build")).resolve()
CACHE = pathlib.Path(os.environ.get("BATON_CACHE", pathlib.Path.home() / ".cache/baton"))
KUBECTL = next(p for p in (CACHE / "k8s/kubectl", CACHE / "bin/kubectl") if p.exists())
MODEL = "smollm2-135m-instruct"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def eventually(what, seconds=60, every=0.2, message="condition"):
    begin, last = time.monotonic(), None
    while time.monotonic() < begin + patience(seconds):
        try:
            last = what()
            if last:
                return last
        except (OSError, ValueError, LookupError, AssertionError, http.client.HTTPException, subprocess.SubprocessError) as e:
            last = e  # what is looked at may not be there yet, kubectl may find nobody
        time.sleep(every)
    raise AssertionError(f"{message}: not within {time.monotonic() - begin:.0f} s (last: {last!r})")


class Answer:
    """One streamed chat completion. `error` is None when it came to its proper end."""

    def __init__(self, port, prompt, max_tokens=24, timeout=60, **more):
        self.text, self.error, self.headers, self.usage, self.status = "", None, {}, {}, 0
        self.prompt, self.began = prompt, time.monotonic()
        try:
            self._run(port, prompt, max_tokens, timeout, more)
        except (OSError, http.client.HTTPException, ValueError) as e:
            self.error = f"{type(e).__name__}: {e}"
        self.seconds = time.monotonic() - self.began

    def _run(self, port, prompt, max_tokens, timeout, more):
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=patience(timeout))
        body = {"model": MODEL, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": max_tokens, "temperature": 0,
                "messages": [{"role": "user", "content": prompt}], **more}
        c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        self.status, self.headers = r.status, {k.lower(): v for k, v in r.getheaders()}
        if r.status != 200:
            self.error = f"HTTP {r.status}: {r.read()[:300]!r}"
            return
        for line in r:
            if line.strip() == b"data: [DONE]":
                return
            if line.startswith(b"data: "):
                o = json.loads(line[6:])
                if "error" in o:
                    self.error = json.dumps(o["error"])
                    return
                self.usage = o.get("usage") or self.usage
                self.text += "".join(ch.get("delta", {}).get("content") or "" for ch in o.get("choices", []))
        self.error = "the stream ended without [DONE]"


class Stack:
    def __init__(self, models=None):
        self.models = ["--models-dir", models] if models else []
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-e2e-"))
        self.data = self.dir / "state"
        self.port = free_port()
        self.kubeconfig = self.data / "kubeconfig"
        self.up()

    def up(self):
        r = subprocess.run([BUILD / "bin/baton", "up", "--detach", "--data", self.data, "--port", str(self.port), *self.models], cwd=ROOT,
                           capture_output=True, text=True, timeout=patience(120))
        assert r.returncode == 0, r.stdout + r.stderr

    def kubectl(self, *args, input=None, check=True, timeout=90):
        r = subprocess.run([KUBECTL, "--kubeconfig", self.kubeconfig, *args], input=input, text=True, capture_output=True, timeout=patience(timeout))
        assert not check or r.returncode == 0, f"kubectl {' '.join(map(str, args))}: {r.stderr}"
        return r.stdout if check else r

    def get(self, *args):
        return json.loads(self.kubectl("get", *args, "-o", "json"))

    def apply_chat(self, sample="chat"):
        self.kubectl("apply", "-f", str(ROOT / f"manifests/samples/{sample}.yaml"))
        self.wait_ready(sample)

    def wait_ready(self, name="chat", seconds=120, model=MODEL):
        self.kubectl("wait", f"infd/{name}", "--for=condition=Ready", f"--timeout={patience(seconds):.0f}s", timeout=seconds + 10)
        eventually(lambda: model in str(self.http("/v1/models")), message="the router lists the model")

    def http(self, path, host="127.0.0.1", port=None):
        c = http.client.HTTPConnection(host, port or self.port, timeout=patience(5))
        try:
            c.request("GET", path)
            return c.getresponse().read().decode()
        finally:
            c.close()

    def ask(self, prompt, **kw):
        return Answer(self.port, prompt, **kw)

    # -- looking inside --

    def workers(self):
        """Worker pods: name, ip, role."""
        items = self.get("pods", "-l", "serving.baton.dev/infd")["items"]
        return [{"name": p["metadata"]["name"], "ip": p["status"].get("podIP"), "role": p["metadata"]["labels"].get("serving.baton.dev/role"),
                 "deleting": "deletionTimestamp" in p["metadata"]} for p in items]

    def state(self, worker):
        return json.loads(self.http("/debug/state", worker["ip"], 8000))

    def leaks(self):
        """What is still held though nothing runs: [] when all is well."""
        bad = []
        for w in self.workers():
            s = self.state(w)
            if s["kv"]["used"] or s["kv"]["quarantined"]:
                bad.append((w["name"], s["kv"]))
        return bad

    def processes(self, *needles):
        """pids of this stack's processes whose command line has all needles."""
        mine = []
        for p in pathlib.Path("/proc").iterdir():
            if not p.name.isdigit():
                continue
            try:
                cmd = (p / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                env = (p / "environ").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if int(p.name) != os.getpid() and (str(self.data) in cmd or str(self.data) in env) and all(n in cmd + " " + env for n in needles):
                if not cmd.startswith(("python", "/usr/bin/python", str(KUBECTL))) and cmd:
                    mine.append(int(p.name))
        return mine

    def kill(self, *needles, sig=signal.SIGKILL):
        pids = self.processes(*needles)
        for pid in pids:
            try:
                os.kill(pid, sig)
            except ProcessLookupError:
                pass
        return pids

    def down(self):
        r = subprocess.run([BUILD / "bin/baton", "down", "--data", self.data], capture_output=True, text=True, timeout=patience(120))
        left = eventually(lambda: not self.processes(), seconds=20, message="no process is left")
        assert r.returncode == 0 and left, r.stdout + r.stderr + f" left: {self.processes()}"

    def close(self):
        try:
            self.down()
        finally:
            self.kill()
            if not os.environ.get("BATON_KEEP_LOGS"):
                shutil.rmtree(self.dir, ignore_errors=True)


class Load:
    """Clients that ask prompts of a fixed list, at temperature 0, until stopped. Every finished answer must equal the list's."""

    def __init__(self, stack, prompts, want, clients=3, max_tokens=24):
        self.stack, self.prompts, self.want, self.max_tokens = stack, prompts, want, max_tokens
        self.answers, self.stopping = [], threading.Event()
        self.threads = [threading.Thread(target=self._client, args=(n,)) for n in range(clients)]
        for t in self.threads:
            t.start()

    def _client(self, n):
        while not self.stopping.is_set():
            prompt = self.prompts[n % len(self.prompts)]
            n += 1
            a = self.stack.ask(prompt, max_tokens=self.max_tokens)
            self.answers.append(a)
            if a.error:
                time.sleep(0.1)

    def stop(self):
        self.stopping.set()
        for t in self.threads:
            t.join(patience(90))
        assert not any(t.is_alive() for t in self.threads), "a request hangs"
        return self.answers

    def wrong(self):
        """Answers that came to their end with another text than without faults."""
        return [(a.prompt, a.text, self.want[a.prompt]) for a in self.answers if not a.error and a.text != self.want[a.prompt]]
