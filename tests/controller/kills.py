"""kill -9 of the controller right after the k-th of its writes has reached a real API server, before it has the answer; another process
goes on. `make kills` does BATON_KILLS (20) of them at seeded k; test_kills.py does a few.

The controller's way to the API server is a proxy that counts: a write that succeeded is one, those of Leases and events aside. A node is played
here: it makes pods ready, starts the ranks of groups and ends pods that are deleted. It sees every event, and so checks budgets at each."""
import collections
import http.client
import http.server
import json
import os
import pathlib
import random
import ssl
import threading
import time
import urllib.parse

from conftest import QUICK, World, wait
from patience import patience

P = "serving.baton.dev/"
CRD = "/apis/serving.baton.dev/v1alpha1"
STORIES = ["create", "scale", "rollout", "restart", "delete"]
HOP = {"connection", "transfer-encoding", "content-length", "host", "keep-alive"}


class Api:
    """The API server, without a way around."""

    def __init__(self, cluster):
        config = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json").stdout)
        self.config = config
        self.url = urllib.parse.urlsplit(config["clusters"][0]["cluster"]["server"])
        self.token = config["users"][0]["user"]["token"]
        self.tls = ssl._create_unverified_context()

    def connect(self, timeout=60):
        return http.client.HTTPSConnection(self.url.hostname, self.url.port, timeout=timeout, context=self.tls)

    def call(self, method, path, body=None, type="application/merge-patch+json"):
        c = self.connect()
        c.request(method, path, json.dumps(body) if body is not None else None,
                  {"Authorization": f"Bearer {self.token}", "Content-Type": type if method == "PATCH" else "application/json"})
        r = c.getresponse()
        data = r.read()
        c.close()
        return r.status, json.loads(data) if data.startswith(b"{") else {}

    def items(self, path):
        status, body = self.call("GET", path)
        assert status == 200, body
        return body["items"]


class CountingProxy:
    def __init__(self, api):
        self.api, self.writes, self.kill_at, self.kill, self.lock = api, 0, None, None, threading.Lock()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self):
                try:
                    proxy.forward(self)
                except (OSError, http.client.HTTPException):
                    self.close_connection = True

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = forward

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # connections of who was killed
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def count(self, request, status):
        """True: this was the one, the answer is lost."""
        if request.command == "GET" or status >= 300 or any(x in request.path for x in ("/leases", "/events", "reviews")):
            return False
        with self.lock:
            self.writes += 1
            if self.writes != self.kill_at:
                return False
        self.kill()
        return True

    def forward(self, h):
        body = h.rfile.read(int(h.headers.get("Content-Length", 0)))
        c = self.api.connect(timeout=700)
        c.request(h.command, h.path, body or None, {k: v for k, v in h.headers.items() if k.lower() not in HOP})
        r = c.getresponse()
        if self.count(h, r.status):
            h.close_connection = True
            return
        h.send_response(r.status)
        for k, v in r.getheaders():
            if k.lower() not in HOP | {"date", "server"}:
                h.send_header(k, v)
        if "watch=1" in h.path and r.status == 200:
            h.send_header("Transfer-Encoding", "chunked")
            h.end_headers()
            while data := r.read1(65536):
                h.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            h.wfile.write(b"0\r\n\r\n")
        else:
            data = r.read()
            h.send_header("Content-Length", str(len(data)))
            h.end_headers()
            h.wfile.write(data)
        c.close()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


class Node:
    """All pods of a namespace as their events tell: started, ended, and counted."""

    def __init__(self, api, ns):
        self.api, self.path, self.pods, self.ips, self.ends = api, f"/api/v1/namespaces/{ns}/pods", {}, 0, False
        self.most, self.least = collections.Counter(), {}  # groups of a role since `since()`
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.ends:
            c = self.api.connect(timeout=300)
            c.request("GET", f"{self.path}?watch=1&timeoutSeconds=280", headers={"Authorization": f"Bearer {self.api.token}"})
            r = c.getresponse()
            while not self.ends and (line := r.readline()):
                event = json.loads(line)
                pod = event["object"]
                if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                    self.see(event["type"], pod)
            c.close()

    def see(self, type, pod):
        name, meta = pod["metadata"]["name"], pod["metadata"]
        if type == "DELETED":
            self.pods.pop(name, None)
        else:
            self.pods[name] = pod
        for role in ("prefill", "decode"):
            self.most[role] = max(self.most[role], len(self.live(role)))
            self.least[role] = min(self.least.get(role, 99), len(self.ready(role)))
        if type == "DELETED":
            return
        if "deletionTimestamp" in meta:
            self.api.call("DELETE", f"{self.path}/{name}", {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}})
        elif not pod["spec"].get("schedulingGates") and not pod["spec"].get("nodeName"):
            self.api.call("POST", f"{self.path}/{name}/binding", {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
                                                                  "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"}})
        elif pod["spec"].get("nodeName"):
            self.serve(pod)

    def serve(self, pod):
        """An address at once; ready when the peers of its group are known, at its present epoch."""
        notes, ip = pod["metadata"].get("annotations", {}), pod["status"].get("podIP")
        grouped = P + "group-size" in pod["metadata"]["labels"]
        failed = grouped and int(notes.get(P + "failed-epoch", 0)) >= int(notes.get(P + "epoch", 1))
        ready = not grouped or (P + "peers" in notes and not failed)
        if ip and is_ready(pod) == ready:
            return
        self.ips += not ip
        ip = ip or f"10.0.{self.ips // 250}.{self.ips % 250 + 1}"
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.api.call("PATCH", f"{self.path}/{pod['metadata']['name']}/status", {"status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": now}]}})

    def live(self, role):
        return [p for p in self.pods.values() if p["metadata"]["labels"].get(P + "role") == role
                and p["metadata"]["labels"].get(P + "rank") == "0" and "deletionTimestamp" not in p["metadata"]]

    def ready(self, role):
        return [p for p in self.live(role) if is_ready(p)]

    def since(self):
        self.most, self.least = collections.Counter(), {}

    def stop(self):
        self.ends = True


def is_ready(pod):
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))


def deployment(pods):
    role = lambda n: {"replicas": n, **({"parallelism": {"tensor": pods, "pods": pods}} if pods > 1 else {})}
    return {"apiVersion": "serving.baton.dev/v1alpha1", "kind": "InferenceDeployment", "metadata": {"name": "chat"},
            "spec": {"model": {"name": "chat", "source": "file:///var/lib/baton/models/m.gguf"}, "engine": {"image": "baton:1"},
                     "rollout": {"maxUnavailable": 1, "maxSurge": 1}, "prefill": role(2), "decode": role(3)}}


class Story:
    """One deployment in a namespace of its own, one story, one kill."""

    def __init__(self, world, name, tmp):
        self.world, self.name, self.api = world, name, Api(world.cluster)
        self.pods, self.image, self.restarts = (2 if name == "restart" else 1), "baton:1", 0
        self.want = {} if name == "delete" else {"prefill": 2, "decode": 3}
        self.infds = f"{CRD}/namespaces/{world.ns}/inferencedeployments"
        self.proxy, self.node = CountingProxy(self.api), Node(self.api, world.ns)
        config = self.api.config
        config["clusters"][0]["cluster"] = {"server": self.proxy.url}
        path = pathlib.Path(tmp) / f"kubeconfig-{world.ns}"
        path.write_text(json.dumps(config))
        self.controller = world.controller(*QUICK, kubeconfig=path)

    def begin(self):
        if self.name not in ("create", "delete"):
            self.create()
            self.settle()
        self.node.since()
        self.proxy.writes = 0

    def create(self):
        status, body = self.api.call("POST", self.infds, deployment(self.pods))
        assert status == 201, body

    def act(self):
        chat = f"{self.infds}/chat"
        if self.name in ("create", "delete"):
            self.create()
        elif self.name == "scale":
            self.want = {"prefill": 1, "decode": 5}
            self.api.call("PATCH", chat, {"spec": {r: {"replicas": n} for r, n in self.want.items()}})
        elif self.name == "rollout":
            self.image = "baton:2"
            self.api.call("PATCH", chat, {"spec": {"engine": {"image": self.image}}})
        elif self.name == "restart":
            self.restarts = 1
            pod = self.node.live("decode")[0]["metadata"]["name"]
            self.api.call("PATCH", f"{self.node.path}/{pod}", {"metadata": {"annotations": {P + "failed-epoch": "1"}}})

    def delete(self):
        status, body = self.api.call("DELETE", f"{self.infds}/chat")
        assert status == 200, body

    def lacks(self):
        """What is not yet as it should be, in words; "" when everything is."""
        if not self.want:
            kinds = {f"{CRD}/namespaces/{self.world.ns}/{k}": k for k in ("inferencedeployments", "workerpools")}
            kinds |= {f"/api/v1/namespaces/{self.world.ns}/pods": "pods", f"/api/v1/namespaces/{self.world.ns}/secrets": "secrets",
                      f"/apis/policy/v1/namespaces/{self.world.ns}/poddisruptionbudgets": "budgets",
                      f"/apis/apps/v1/namespaces/{self.world.ns}/controllerrevisions": "revisions"}
            left = {k: len(self.api.items(path)) for path, k in kinds.items()}
            return ", ".join(f"{n} {k} are left" for k, n in left.items() if n)
        infd = self.api.call("GET", f"{self.infds}/chat")[1]
        status = infd.get("status", {})
        if not any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", [])):
            return "it is not Ready"
        if status["observedGeneration"] != infd["metadata"]["generation"]:
            return "its status is behind"
        pods = self.api.items(self.node.path)
        have = collections.Counter(p["metadata"]["labels"][P + "role"] for p in pods)
        if have != {r: n * self.pods for r, n in self.want.items()}:
            return f"pods are {dict(have)}, wanted groups {self.want} of {self.pods}"
        epochs = collections.Counter(int(p["metadata"]["annotations"].get(P + "epoch", 1)) for p in pods)
        if epochs[2] != self.restarts * self.pods:
            return f"epochs are {dict(epochs)}"
        images = {p["spec"]["containers"][0]["image"] for p in pods}
        return "" if images == {self.image} else f"images are {images}"

    def settle(self, seconds=90):
        """Everything is as it should be, and nothing is written any more."""
        begin, quiet = time.monotonic(), None
        while True:
            writes, lack = self.proxy.writes, self.lacks()
            if lack or quiet != writes:
                quiet, last = writes, lack
            else:
                return
            assert time.monotonic() < begin + patience(seconds), f"{self.name} has not converged within {time.monotonic() - begin:.0f} s: {last}\n{self.controller.log()[-3000:]}"
            time.sleep(0.6)

    def kill(self):
        """The delete comes with the kill, in the middle of the making: the hardest moment for what was made last."""
        self.controller.kill()
        if self.name == "delete":
            self.delete()
        self.killed = True

    def run(self, k):
        """k: the write that is the controller's last; None: none is."""
        self.killed, self.proxy.kill = False, self.kill
        self.begin()
        self.proxy.kill_at = k
        self.act()
        end = time.monotonic() + 10
        while k and not self.killed:
            if time.monotonic() > end and not self.lacks():  # statuses are merged: there were fewer this time
                self.kill()
            time.sleep(0.02)
        if k:
            self.controller.start()
        elif self.name == "delete":
            wait(lambda: len(self.node.ready("prefill")) == 2 and len(self.node.ready("decode")) == 3, 60)
            self.delete()
        self.settle()
        self.budgets()
        return self.proxy.writes

    def budgets(self):
        for role, n in self.want.items():
            low = 2 if role == "prefill" else 3
            if self.name == "rollout":
                assert self.node.most[role] <= n + 1, f"{self.node.most[role]} {role} groups, wanted {n}, maxSurge 1"
                assert self.node.least[role] >= n - 1, f"{self.node.least[role]} {role} groups were ready, wanted {n}, maxUnavailable 1"
            elif self.name in ("scale", "restart"):
                assert self.node.least[role] >= min(low, n) - (self.name == "restart"), f"{role}: {self.node.least[role]} ready"
                assert self.node.most[role] <= max(low, n), f"{role}: {self.node.most[role]} at once"
            else:
                assert self.node.most[role] <= n, f"{role}: {self.node.most[role]} at once"

    def stop(self):
        self.node.stop()
        self.controller.stop()
        self.proxy.stop()


def test_kills(cluster, tmp_path):
    seed, kills = int(os.environ.get("BATON_SEED", "1")), int(os.environ.get("BATON_KILLS", "20"))
    rng, done = random.Random(seed), 0
    print(f"\nseed {seed}, {kills} kills, on a {cluster.side} API server")
    for story in STORIES:
        share, n = kills // len(STORIES) + (STORIES.index(story) < kills % len(STORIES)), None
        for i in range(share + 1):
            k = rng.randint(1, n) if n else None
            cluster.count = getattr(cluster, "count", 0) + 1
            s = Story(World(cluster, f"k{cluster.count}"), story, tmp_path)
            began = time.monotonic()
            try:
                writes = s.run(k)
            finally:
                s.stop()
            if not n:
                n = writes
                print(f"{story}: {n} writes without a kill", flush=True)
                continue
            done += 1
            print(f"  killed after write {k:3}: converged, {writes} writes in all ({time.monotonic() - began:.1f} s)", flush=True)
            s.world.kubectl("delete", "infd", "--all", "--wait=false", check=False)
    print(f"{done} kills: exact pods, nothing left over, budgets kept")
