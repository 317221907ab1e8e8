"""What the tests of scaling share: a control plane with the aggregation layer, a controller, a router that says what the test
wants, and the pods' status, which no kubelet writes here."""
import http.client
import importlib.util
import json
import os
import pathlib
import ssl
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("BATON_BUILD", ROOT / "build"))


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


kubernetes = sys.modules.get("kubernetes") or load("kubernetes", ROOT / "tests/controller/kubernetes.py")
base = load("baton_tests", ROOT / "tests/conftest.py")
controller_tests = load("baton_controller_tests", ROOT / "tests/controller/conftest.py")
Process = base.Process
patience = base.patience
FakeRouter, infd = controller_tests.FakeRouter, controller_tests.infd


def wait(condition, seconds=30, what="", every=0.2):
    begin = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < begin + patience(seconds), f"not within {time.monotonic() - begin:.0f} s: {what or condition}"
        time.sleep(every)


def openssl(*args):
    subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True)


def make_ca(folder, name):
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}",
            "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt")


def make_client(folder, ca, name):
    openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
            "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.csr")
    openssl("x509", "-req", "-in", folder / f"{name}.csr", "-CA", folder / f"{ca}.crt", "-CAkey", folder / f"{ca}.key",
            "-CAcreateserial", "-days", "2", "-out", folder / f"{name}.crt")


def front_proxy_args(folder):
    """The API server's own identity towards those it forwards to."""
    make_ca(folder, "front-proxy-ca")
    make_client(folder, "front-proxy-ca", "front-proxy-client")
    make_client(folder, "front-proxy-ca", "somebody-else")
    make_ca(folder, "other-ca")
    make_client(folder, "other-ca", "front-proxy-client-of-another-ca")
    return ["--requestheader-client-ca-file", str(folder / "front-proxy-ca.crt"),
            "--requestheader-allowed-names", "front-proxy-client",
            "--requestheader-username-headers", "X-Remote-User", "--requestheader-group-headers", "X-Remote-Group",
            "--requestheader-extra-headers-prefix", "X-Remote-Extra-",
            "--proxy-client-cert-file", str(folder / "front-proxy-client.crt"),
            "--proxy-client-key-file", str(folder / "front-proxy-client.key")]


MANAGER_ARGS = ["--horizontal-pod-autoscaler-sync-period=1s", "--horizontal-pod-autoscaler-downscale-stabilization=2s"]


def start_cluster(controllers=("garbage-collector-controller", "horizontal-pod-autoscaler-controller")):
    c = kubernetes.Cluster(controllers=controllers, api_args=front_proxy_args, manager_args=MANAGER_ARGS)
    c.kubectl("apply", "-f", ROOT / "manifests/crds")
    c.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    return c


class World(controller_tests.World):
    """A namespace with a controller in it. sustain() plays the kubelet: every pod becomes ready."""

    def controller(self, *args, **kw):
        c = Controller(self.cluster, self.ns, *args, **kw)
        self.controllers.append(c)
        return c

    def scaled(self, role):
        return self.replicas(f"chat-{role}")

    def sustain(self):
        self.make_ready()
        return True


class Controller(controller_tests.Controller):
    def __init__(self, cluster, namespace, *args, **kw):
        self.port, self.metrics_port = kubernetes.free_port(), kubernetes.free_port()
        self.decisions = pathlib.Path(tempfile.mkstemp(prefix="baton-decisions-")[1])
        super().__init__(cluster, namespace, *args, "--metrics-port", str(self.metrics_port), "--decision-log",
                         str(self.decisions), **kw)

    def start(self):
        env = {**os.environ, "BATON_KUBECONFIG": str(self.kubeconfig), "BATON_NAMESPACE": self.ns}
        self.proc = subprocess.Popen([BUILD / "bin/baton-controller", "--port", str(self.port), "--lease-seconds", "15",
                                      "--renew-seconds", "10", "--retry-seconds", "1", "--log-level", "debug", *self.args],
                                     env=env, stderr=open(self.log_path, "ab"), start_new_session=True)

    def get(self, path, headers=None, method="GET", body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patience(10))
        try:
            c.request(method, path, body, headers or {})
            r = c.getresponse()
            data = r.read()
            return r.status, json.loads(data) if "json" in r.getheader("content-type", "") and "nd" not in r.getheader(
                "content-type", "") else data.decode()
        finally:
            c.close()

    def tls(self, path, cert=None, headers=None):
        """(status, body) from the external metrics API, asked for directly."""
        context = ssl._create_unverified_context()
        if cert:
            context.load_cert_chain(self.cluster.dir / f"{cert}.crt", self.cluster.dir / f"{cert}.key")
        c = http.client.HTTPSConnection("127.0.0.1", self.metrics_port, timeout=patience(10), context=context)
        try:
            c.request("GET", path, headers=headers or {})
            r = c.getresponse()
            return r.status, json.loads(r.read() or b"{}")
        finally:
            c.close()

    def stop(self):
        super().stop()
        self.decisions.unlink(missing_ok=True)


def sample(pod, role, **kw):
    return {"pod": pod["metadata"]["name"], "uid": pod["metadata"]["uid"], "incarnation": "1", "role": role, "ready": True,
            "draining": False, "warmup": False, "age_ms": 20, "running": 0, "waiting": 0, "waiting_tokens": 0,
            "kv_blocks": 100, "kv_blocks_used": 0, "prefill_tokens_per_s": 1000.0, "decode_step_s": 0.02, **kw}


def load_of(world, held=0, waiting_tokens=0, used=0):
    """What a router says of this world's pods: the same of each."""
    return {"infd": "chat", "arrival_tokens_per_s": 0.0, "held_requests": held, "held_tokens": 10 * held,
            "goodput": {"met_per_s": 1.5, "requests_per_s": 2.0},
            "roles": {"prefill": {"samples": [sample(p, "prefill", waiting_tokens=waiting_tokens) for p in world.pods("prefill")]},
                      "decode": {"samples": [sample(p, "decode", kv_blocks_used=used, running=4 if used else 0)
                                             for p in world.pods("decode")]}}}


def scaled_infd(mode="Baton", low=1, high=4, **scaling):
    d = infd(scaling={"mode": mode, "downWindow": "3s", **scaling})
    for role in ("prefill", "decode"):
        del d["spec"][role]["replicas"]
        if mode == "Baton":
            d["spec"][role]["bounds"] = {"min": low, "max": high}
    return d
