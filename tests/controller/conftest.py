"""The controller against the embedded API server ("local") and a real kube-apiserver with its garbage collector ("real").
There is no kubelet here: the tests write pod status themselves."""
import http.server
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import kubernetes
import pytest
from patience import patience

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("BATON_BUILD", ROOT / "build"))
SIDES = [os.environ["BATON_SIDE"]] if os.environ.get("BATON_SIDE") else ["local", "real"]


class LocalCluster:
    def __init__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-controller-"))
        self.kubeconfig = self.dir / "kubeconfig"
        self.log = open(self.dir / "log", "wb")
        self.proc = None
        self.start()

    def start(self):
        self.proc = subprocess.Popen([BUILD / "bin/baton-local", "serve", "--data", self.dir / "data", "--kubeconfig",
                                      self.kubeconfig, "--no-kubelet"], stdout=self.log, stderr=self.log,
                                     start_new_session=True)
        wait(lambda: self.kubeconfig.exists() and self.kubectl("get", "--raw", "/readyz", check=False).returncode == 0)

    def kubectl(self, *args, input=None, check=True):
        r = subprocess.run([kubernetes.BIN / "kubectl", "--kubeconfig", self.kubeconfig, *args], input=input, text=True,
                           capture_output=True, timeout=patience(60))
        assert not check or r.returncode == 0, f"kubectl {' '.join(map(str, args))}: {r.stderr}"
        return r

    def get(self, *args):
        return json.loads(self.kubectl("get", *args, "-o", "json").stdout)

    def stop(self):
        self.proc.kill()
        self.proc.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def wait(condition, seconds=20, what=""):
    begin = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < begin + patience(seconds), f"not within {time.monotonic() - begin:.0f} s: {what or condition}"
        time.sleep(0.1)


@pytest.fixture(scope="session", params=SIDES)
def cluster(request):
    c = kubernetes.Cluster() if request.param == "real" else LocalCluster()
    c.side = request.param
    c.kubectl("apply", "-f", ROOT / "manifests/crds")
    c.kubectl("wait", "--for=condition=Established", "crd", "--all", f"--timeout={patience(20):.0f}s")
    yield c
    c.stop()


class Controller:
    """The program, and what the tests do with a namespace of their own."""

    def __init__(self, cluster, namespace, *args, kubeconfig=None):
        self.cluster, self.ns = cluster, namespace
        self.log_path = pathlib.Path(tempfile.mkstemp(prefix="baton-controller-log-")[1])
        self.args = args
        self.kubeconfig = kubeconfig or cluster.kubeconfig
        self.proc = None
        self.start()

    def start(self):
        env = {**os.environ, "BATON_KUBECONFIG": str(self.kubeconfig), "BATON_NAMESPACE": self.ns}
        self.proc = subprocess.Popen([BUILD / "bin/baton-controller", "--port", "0", "--lease-seconds", "15", "--renew-seconds",
                                      "10", "--retry-seconds", "1", "--log-level", "debug", *self.args],
                                     env=env, stderr=open(self.log_path, "ab"), start_new_session=True)

    def log(self):
        return self.log_path.read_text()

    def kill(self, sig=signal.SIGKILL):
        self.proc.send_signal(sig)
        return self.proc.wait(timeout=patience(10))

    def stop(self):
        if self.proc.poll() is None:
            self.kill()
        self.log_path.unlink(missing_ok=True)


# A leader that dies is followed within seconds. Everywhere else the lease is long: on a busy machine a write may take its time, and a leader that
# can't renew ends itself.
QUICK = ("--lease-seconds", "4", "--renew-seconds", "3")


class World:
    def __init__(self, cluster, namespace):
        self.cluster, self.ns = cluster, namespace
        self.controllers = []
        cluster.kubectl("create", "namespace", namespace)

    def controller(self, *args, **kw):
        c = Controller(self.cluster, self.ns, *args, **kw)
        self.controllers.append(c)
        return c

    def kubectl(self, *args, **kw):
        return self.cluster.kubectl("-n", self.ns, *args, **kw)

    def get(self, *args):
        return self.cluster.get("-n", self.ns, *args)

    def apply(self, o):
        self.kubectl("apply", "-f", "-", input=json.dumps(o))

    def patch(self, name, body, kind="infd"):
        self.kubectl("patch", kind, name, "--type=merge", "-p", json.dumps(body))

    def pods(self, role=None, infd=None):
        items = self.get("pods")["items"]
        return [p for p in items if "deletionTimestamp" not in p["metadata"]
                and (role is None or p["metadata"]["labels"].get("serving.baton.dev/role") == role)
                and (infd is None or p["metadata"]["labels"].get("serving.baton.dev/infd") == infd)]

    def status(self, pod, ready=True, phase="Running"):
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.kubectl("patch", "pod", pod["metadata"]["name"], "--subresource=status", "--type=merge", "-p", json.dumps(
            {"status": {"phase": phase, "conditions": [
                {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": now}]}}))

    def make_ready(self):
        for p in self.pods():
            if not any(c["type"] == "Ready" and c["status"] == "True" for c in p.get("status", {}).get("conditions", [])):
                self.status(p)

    def condition(self, infd, type):
        for c in self.get("infd", infd).get("status", {}).get("conditions", []):
            if c["type"] == type:
                return c
        return {}

    def replicas(self, wp):
        return self.get("wp", wp)["spec"]["replicas"]


@pytest.fixture
def world(cluster, request):
    cluster.count = getattr(cluster, "count", 0) + 1
    w = World(cluster, f"t{cluster.count}")
    yield w
    for c in w.controllers:
        c.stop()
    w.kubectl("delete", "infd", "--all", "--wait=false", check=False)


def infd(name="chat", prefill=1, decode=1, model=None, **spec):
    role = lambda n: {"replicas": n, "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "memory": "1Gi"}}}
    return {"apiVersion": "serving.baton.dev/v1alpha1", "kind": "InferenceDeployment", "metadata": {"name": name},
            "spec": {"model": {"name": model or name, "source": "file:///var/lib/baton/models/m.gguf"},
                     "prefill": role(prefill), "decode": role(decode), **spec}}


class FakeRouter:
    """GET /v1/internal/load with whatever the test says."""

    def __init__(self):
        self.answer, self.secrets = {}, []
        router = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                router.secrets.append(self.headers.get("Authorization", ""))
                body = json.dumps(router.answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
