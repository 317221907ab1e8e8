#!/usr/bin/env python3
"""What the standby ladder gives, measured on an embedded cluster (`baton up`) with SmolLM2: from the API call that asks for a group
to the first token of a request that waits for it, from each rung; a P/D flip; and fetching a model from its source and from a
peer. Each beside its bound: bytes that must move / bandwidth measured here. Prints a Markdown table.

    bench/standby.py [--runs 5] [--build build] [--part ladder|flip|new|peers]...
"""
import argparse
import base64
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "e2e"), str(ROOT / "tests/fetch")]
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
P = "serving.baton.dev/"


class Api:
    """The embedded API server over one connection: kubectl's own start would be longer than what is measured."""

    def __init__(self, kubeconfig, kubectl):
        c = json.loads(subprocess.run([kubectl, "--kubeconfig", kubeconfig, "config", "view", "--raw", "-o", "json"],
                                      capture_output=True, check=True).stdout)
        server, user = c["clusters"][0]["cluster"], c["users"][0]["user"]
        self.tls = ssl.create_default_context(cadata=base64.b64decode(server["certificate-authority-data"]).decode())
        self.host = server["server"].removeprefix("https://")
        self.auth = {"Authorization": "Bearer " + user["token"]}
        self.c = http.client.HTTPSConnection(self.host, context=self.tls, timeout=20)

    def call(self, method, path, body=None, kind="application/merge-patch+json"):
        self.c.request(method, path, json.dumps(body) if body is not None else None, {**self.auth, "Content-Type": kind})
        r = self.c.getresponse()
        text = r.read()
        assert r.status < 300 or r.status == 404, f"{method} {path}: {r.status} {text[:300]}"
        return json.loads(text) if r.status < 300 else None

    def scale(self, pool, n):
        self.call("PATCH", f"/apis/serving.baton.dev/v1alpha1/namespaces/default/workerpools/{pool}/scale", {"spec": {"replicas": n}})

    def infd(self, name):
        return self.call("GET", f"/apis/serving.baton.dev/v1alpha1/namespaces/default/inferencedeployments/{name}")

    def pods(self):
        return self.call("GET", "/api/v1/namespaces/default/pods")["items"]


def first_token(port, model, out):
    """Time of the first token of a streamed completion of a few tokens that no worker has seen, and the worker that gave it."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    c.request("POST", "/v1/completions", json.dumps({"model": model, "stream": True, "max_tokens": 1, "temperature": 0,
                                                     "prompt": f"{random.randrange(10000)} is"}),
              {"Content-Type": "application/json"})
    r = c.getresponse()
    for line in r:
        if line.startswith(b"data: {") and b'"text":"' in line:
            out["at"] = time.monotonic()
            break
    out["status"], out["decode"] = r.status, r.getheader("x-baton-decode", "")
    c.close()


def ask(port, model):
    out = {}
    begin = time.monotonic()
    first_token(port, model, out)
    out["ttft"] = out.get("at", begin) - begin
    return out


def deployment(name, source, sha256, endpoint=None, standby=None, roles=None):
    role = {"replicas": 1, "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}}
    spec = {"model": {"name": name, "source": source, "sha256": sha256, **({"endpoint": endpoint} if endpoint else {})},
            "standby": standby or {}, "kvCache": {"size": "256Mi"}, "routing": {"disaggregation": "always" if roles else "never"}}
    for r, n in (roles or {"unified": 1}).items():
        spec[r] = {**role, "replicas": n}
    return {"apiVersion": "serving.baton.dev/v1alpha1", "kind": "InferenceDeployment", "metadata": {"name": name}, "spec": spec}


class Bench:
    def __init__(self, build, runs):
        os.environ["BATON_BUILD"] = str(build)
        import hub
        import stack
        self.stack_module, self.build, self.runs, self.rows = stack, build, runs, []
        self.models = pathlib.Path(tempfile.mkdtemp(prefix="baton-standby-"))
        source = stack.CACHE / "models" / MODEL_FILE
        os.symlink(source, self.models / MODEL_FILE)
        self.bytes = source.stat().st_size
        data = source.read_bytes()
        self.sha = hashlib.sha256(data).hexdigest()
        self.hub = hub.Hub()
        self.hub.repo("bench/smollm2", {"model.gguf": data})
        self.stack = self.start()
        self.api = Api(self.stack.kubeconfig, stack.KUBECTL)
        self.seen = None

    def start(self):
        models = self.models

        class Stack(self.stack_module.Stack):
            def up(self):
                r = subprocess.run([self_build / "bin/baton", "up", "--detach", "--data", self.data, "--port", str(self.port),
                                    "--models-dir", models], cwd=ROOT, capture_output=True, text=True, timeout=180)
                assert r.returncode == 0, r.stdout + r.stderr
        self_build = self.build
        return Stack()

    def close(self):
        subprocess.run([self.build / "bin/baton", "down", "--data", self.stack.data], capture_output=True, timeout=120)
        self.hub.close()
        shutil.rmtree(self.models, ignore_errors=True)
        shutil.rmtree(self.stack.dir, ignore_errors=True)

    def apply(self, o):
        self.stack.kubectl("apply", "-f", "-", input=json.dumps(o))

    def delete(self, name):
        self.stack.kubectl("delete", "infd", name, "--wait=true")
        self.stack_module.eventually(lambda: not [p for p in self.api.pods() if p["metadata"]["labels"].get(P + "infd") == name],
                                     120, message=f"{name}'s pods are gone")

    def standby_ready(self, name, rung, n=1):
        def there():
            pods = [p for p in self.api.pods() if p["metadata"]["labels"].get(P + "infd") == name and
                    p["metadata"]["labels"].get(P + "role") == "standby"]
            gates = [c for p in pods for c in p["status"].get("conditions", []) if c["type"] == P + "role" and c["reason"] == "Standby"]
            return len(gates) >= n and all(f"({rung})" in g["message"] for g in gates)
        self.stack_module.eventually(there, 120, message=f"a {rung} standby of {name}")
        time.sleep(0.5)

    def memory_bandwidth(self):
        """Bytes a second of reading the model from the page cache, one thread."""
        p, best = self.models / MODEL_FILE, 0
        for _ in range(3):
            t = time.monotonic()
            with open(p, "rb", buffering=0) as f:
                while f.read(1 << 22):
                    pass
            best = max(best, self.bytes / (time.monotonic() - t))
        return best

    def http_bandwidth(self):
        t = time.monotonic()
        subprocess.run(["curl", "-sfL", "-o", "/dev/null", f"{self.hub.endpoint}/bench/smollm2/resolve/main/model.gguf"], check=True)
        return self.bytes / (time.monotonic() - t)

    def row(self, what, seconds, bound, note):
        mid = statistics.median(seconds)
        self.rows.append(f"| {what} | {mid * 1e3:,.0f} ms | {min(seconds) * 1e3:,.0f} – {max(seconds) * 1e3:,.0f} | "
                         f"{bound * 1e3:,.0f} ms | {note} |")
        if sys.stderr.isatty():
            print(self.rows[-1], file=sys.stderr, flush=True)

    def promote(self, name, act):
        """Seconds from act() to the first token of a request that is sent right after it."""
        out = {}
        t = threading.Thread(target=first_token, args=(self.stack.port, name, out))
        begin = time.monotonic()
        act()
        t.start()
        t.join()
        assert out.get("at"), f"no token: {out}"
        return out["at"] - begin

    # -- the rungs --

    def ladder(self, memory):
        kv = 256 << 20
        self.apply(deployment("ladder", f"file://{self.models / MODEL_FILE}", self.sha, standby={"hot": 1}))
        self.stack_module.eventually(lambda: ask(self.stack.port, "ladder").get("at"), 180, message="the first token")
        pool = "ladder-unified"
        ttft = statistics.median(ask(self.stack.port, "ladder")["ttft"] for _ in range(2 * self.runs))
        for rung, bytes_, what in (("hot", 0, "nothing moves"), ("warm", kv + self.bytes, "KV pool is allocated, weights are mapped")):
            standby = {"hot": 1, "warm": 0} if rung == "hot" else {"hot": 0, "warm": 1}
            self.apply(deployment("ladder", f"file://{self.models / MODEL_FILE}", self.sha, standby=standby))
            seconds, direct = [], []
            for _ in range(self.runs):
                self.api.scale(pool, 0)
                self.stack_module.eventually(lambda: not [p for p in self.api.pods() if p["metadata"]["labels"].get(P + "role") == "unified"],
                                             60, message="none serves")
                self.standby_ready("ladder", rung)
                seconds.append(self.promote("ladder", lambda: self.api.scale(pool, 1)))
                direct += self.leads(rung)
            self.row(f"{rung} → first token", seconds, ttft + bytes_ / memory,
                     f"{what}; in it {ttft * 1e3:,.0f} ms of the request itself (a worker that serves already), and "
                     f"{statistics.median(direct) * 1e3:,.0f} ms until the worker serves" if direct else what)
        time.sleep(3)  # the controller looks every two seconds
        self.seen = self.api.infd("ladder")["status"].get("standby")
        self.delete("ladder")

    def leads(self, rung):
        found = []
        for p in self.api.pods():
            lead = json.loads(p["metadata"].get("annotations", {}).get(P + "lead", "null"))
            if lead and lead["rung"] == rung:
                found.append(lead["seconds"])
        return found

    def flip(self):
        self.apply(deployment("pd", f"file://{self.models / MODEL_FILE}", self.sha, roles={"prefill": 2, "decode": 1}))
        self.stack_module.eventually(lambda: ask(self.stack.port, "pd").get("at"), 180, message="the first token")
        seconds, ready, sizes = [], [], [(1, 2), (2, 1)]
        for i in range(self.runs):
            p, d = sizes[i % 2]
            growing = "decode" if d == 2 else "prefill"
            before = {x["metadata"]["name"] for x in self.api.pods() if x["metadata"]["labels"].get(P + "role") == growing}

            def flipped():
                return [x for x in self.api.pods() if x["metadata"]["name"] not in before and
                        x["metadata"].get("annotations", {}).get(P + "actual-role") == growing]

            def is_ready():
                return [x for x in flipped() if any(c["type"] == "Ready" and c["status"] == "True" for c in x["status"]["conditions"])]
            begin = time.monotonic()
            self.api.scale(f"pd-{'prefill' if growing == 'decode' else 'decode'}", 1)
            self.api.scale(f"pd-{growing}", 2)
            self.stack_module.eventually(flipped, 60, 0.005, "the flip")
            seconds.append(time.monotonic() - begin)
            self.stack_module.eventually(is_ready, 60, 0.005, "the flipped pod is Ready")
            ready.append(time.monotonic() - begin)
            self.stack_module.eventually(lambda: ask(self.stack.port, "pd").get("at"), 30, message="a token")
            time.sleep(1)
        self.row("P⇄D flip, until the worker has said that it has its new role", seconds, 0,
                 f"nothing moves; two scale calls, one label; routers know before; the pod is Ready after {statistics.median(ready) * 1e3:,.0f} ms "
                 "(the kubelet's second)")
        self.delete("pd")

    def new_pods(self, memory, network):
        source = "hf://bench/smollm2/model.gguf"
        spec = deployment("cold", source, self.sha, endpoint=self.hub.endpoint)
        seconds = {"cold": [], "cached": []}
        for _ in range(max(2, self.runs // 2)):
            for rung in ("cold", "cached"):
                self.forget_images()
                seconds[rung].append(self.promote_new(lambda: self.apply(spec)))
                self.delete("cold")
            self.forget_images()
            self.forget_files()
        self.row("cold: new deployment, model from its source → first token", seconds["cold"], self.bytes / network + self.bytes / memory,
                 "fetched, checked, loaded")
        self.row("cached: new deployment, model on disk → first token", seconds["cached"], self.bytes / memory, "read, loaded")

    def promote_new(self, act):
        """Seconds from act() to the first token of a request that is sent again until it has one."""
        begin = time.monotonic()
        act()
        out = {}

        def answered():
            out.clear()
            first_token(self.stack.port, "cold", out)
            return out.get("at")
        self.stack_module.eventually(answered, 180, 0.05, "the first token")
        return out["at"] - begin

    def agent_pid(self):
        for p in pathlib.Path("/proc").iterdir():
            try:
                if p.name.isdigit() and b"baton-agent\0" in (p / "cmdline").read_bytes() + b"\0" and \
                        str(self.models).encode() in (p / "environ").read_bytes() and b"launch" not in (p / "cmdline").read_bytes():
                    return int(p.name), dict(e.split("=", 1) for e in (p / "environ").read_bytes().decode(errors="replace").split("\0") if "=" in e)
            except OSError:
                pass
        return None, {}

    def restart_agent(self, between):
        pid, env = self.agent_pid()
        os.kill(pid, signal.SIGKILL)
        between(env)
        self.stack_module.eventually(lambda: self.agent_pid()[0] not in (None, pid), 60, message="a new agent")
        time.sleep(2)

    def forget_images(self):
        self.restart_agent(lambda env: shutil.rmtree(env.get("BATON_SEGMENT_DIR") or env["BATON_AGENT_DIR"] + "/weights", ignore_errors=True))

    def has_it(self, node):
        """Does the node offer the model? One that is fetching it names it, too."""
        inventory = self.api.call("GET", f"/apis/serving.baton.dev/v1alpha1/nodeinventories/{node}") or {}
        return any(m.get("sha256") == self.sha and m["rung"] == "nvme" for m in inventory.get("status", {}).get("models", []))

    def forget_files(self):
        """Neither on this node nor in what is told of it: else it is the one that is asked to keep the model next."""
        self.restart_agent(lambda env: shutil.rmtree(self.models / "fetched", ignore_errors=True))
        self.stack_module.eventually(lambda: not self.has_it("local"), 60, message="the first node has forgotten it")
        left = [f for f in (self.models / "fetched").rglob("*") if f.is_file() and f.stat().st_size >= self.bytes]
        assert not left, f"the model is still there: {left}"

    # -- peers --

    def peers(self, memory, network):
        """A second agent, as another node, keeps the model: from the source, then from the first one. The first one starts a group without
        having the model: when nobody has it, and when the second does."""
        self.stack.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "b"}}))
        self.stack.kubectl("patch", "node", "b", "--subresource=status", "--type=merge", "-p",
                           json.dumps({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Bench", "message": ""}]}}))
        times = {"source": [], "peer": [], "cold": [], "cold from a peer": []}
        for _ in range(max(2, self.runs // 2)):
            def keep(nodes):
                spec = deployment("cold", "hf://bench/smollm2/model.gguf", self.sha, endpoint=self.hub.endpoint, standby={"cachedNodes": nodes})
                spec["spec"]["unified"]["replicas"] = 0
                self.apply(spec)
            keep(0)
            times["cold"].append(self.first_group(False))
            with self.agent_b() as fetched:
                keep(1)  # b, by name
                times["source"].append(fetched())
                self.stack_module.eventually(lambda: self.has_it("b"), 60, message="b tells that it has it")
                times["cold from a peer"].append(self.first_group(True))
            keep(2)  # this one first, the other is not there
            self.stack_module.eventually(lambda: self.has_it("local"), 60, message="the first node has it")
            with self.agent_b() as fetched:
                times["peer"].append(fetched())
            self.delete("cold")
            self.forget_images()
            self.forget_files()
        self.row("fetch by a node, from the source", times["source"], self.bytes / network, "checked with SHA-256 while it comes")
        self.row("fetch by a node, from a peer", times["peer"], self.bytes / network, "the same, the source is not asked")
        bound = self.bytes / network + self.bytes / memory
        self.row("cold: first group on a node, model from its source → first token", times["cold"], bound,
                 "from the scale call on; fetched, checked, loaded")
        self.row("cold: first group on a node, model from a peer → first token", times["cold from a peer"], bound,
                 "the same, the source is not asked")

    def first_group(self, from_peer):
        """Seconds from a scale call to the first token on this node, which has to fetch the model; at zero without the model afterwards."""
        pool = "/apis/serving.baton.dev/v1alpha1/namespaces/default/workerpools/cold-unified"
        self.stack_module.eventually(lambda: self.api.call("GET", pool), 60, message="the pool")
        asked = self.hub.sent
        seconds = self.promote_new(lambda: self.api.scale("cold-unified", 1))
        assert (self.hub.sent - asked < self.bytes // 2) == from_peer, f"the source sent {self.hub.sent - asked} bytes"
        self.api.scale("cold-unified", 0)
        self.stack_module.eventually(lambda: not [p for p in self.api.pods() if p["metadata"]["labels"].get(P + "infd") == "cold"], 120,
                                     message="the group is gone")
        self.forget_images()
        self.forget_files()
        return seconds

    @contextlib.contextmanager
    def agent_b(self):
        """An agent as node b; gives a function that waits for its fetch of the model and returns the seconds it took."""
        d = pathlib.Path(tempfile.mkdtemp(prefix="baton-standby-b-"))
        (d / "models").mkdir()
        port = self.stack_module.free_port()
        env = {**os.environ, "BATON_AGENT_DIR": str(d), "BATON_MODELS_DIR": str(d / "models"), "BATON_KUBECONFIG": str(self.stack.kubeconfig),
               "BATON_NODE_NAME": "b", "BATON_POD_IP": "127.0.0.1", "BATON_AGENT_PORT": str(port)}
        with open(d / "log", "wb") as log:
            agent = subprocess.Popen([self.build / "bin/baton-agent"], env=env, stdout=log, stderr=log)

        def fetched():
            line = self.stack_module.eventually(lambda: [x for x in (d / "log").read_text().splitlines() if '"model fetched"' in x], 60, 0.02,
                                                f"the model on b: {(d / 'log').read_text()[-500:]}")[0]
            return json.loads(line)["seconds"]
        try:
            self.stack_module.eventually(lambda: self.api.call("GET", "/apis/serving.baton.dev/v1alpha1/nodeinventories/b"), 60,
                                         message="b is known: only then can it be asked to keep a model")
            yield fetched
        finally:
            agent.kill()
            agent.wait()
            shutil.rmtree(d, ignore_errors=True)
            self.stack.kubectl("delete", "ninv", "b", "--ignore-not-found")

    def run(self, parts):
        memory, network = self.memory_bandwidth(), self.http_bandwidth()
        steps = {"ladder": lambda: self.ladder(memory), "flip": self.flip, "new": lambda: self.new_pods(memory, network),
                 "peers": lambda: self.peers(memory, network)}
        for part in parts or steps:
            steps[part]()
        print(f"SmolLM2-135M-Instruct Q4_1, {self.bytes / 1e6:.0f} MB; KV pool 268 MB. Read bandwidth {memory / 1e9:.1f} GB/s (page cache, one thread), "
              f"the test's source over loopback {network / 1e6:.0f} MB/s; {os.cpu_count()} cores. Median of {self.runs} runs (new pods and fetches: "
              f"{max(2, self.runs // 2)}); everything that Kubernetes and the router do is in it.\n")
        print("| step | median | range, ms | bound: bytes / bandwidth | |\n|---|---|---|---|---|")
        print("\n".join(self.rows))
        if self.seen:
            print(f"\n`status.standby` afterwards: `{json.dumps(self.seen)}`")


if __name__ == "__main__":
    a = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    a.add_argument("--runs", type=int, default=5)
    a.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    a.add_argument("--part", action="append", choices=["ladder", "flip", "new", "peers"], help="only this one; may be repeated")
    o = a.parse_args()
    b = Bench(o.build.resolve(), o.runs)
    try:
        b.run(o.part)
    finally:
        b.close()
