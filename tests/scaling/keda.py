"""KEDA 2.21 itself (operator and metrics adapter, built by `tools/setup keda`) drives two WorkerPools on a real API server: prefill
by its metrics-api trigger, to zero and back, decode by its Prometheus trigger. Run by `make keda`, which writes
docs/reports/keda.md; not part of `make test`, for the build takes a quarter of an hour of CPU time."""
import json
import os
import pathlib
import subprocess
import time

import pytest
import world as w
from test_prometheus import Prometheus
from world import Process, kubernetes, load_of, openssl, scaled_infd, wait

CACHE = pathlib.Path(os.environ.get("BATON_CACHE", pathlib.Path.home() / ".cache/baton"))
KEDA = CACHE / "keda"
NAMES = "subjectAltName=DNS:localhost,DNS:keda-operator.keda.svc,DNS:keda-metrics-apiserver.keda.svc"
BEGAN = time.monotonic()


def say(text):
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}", flush=True)


def make_certs(folder):
    """What KEDA's cert rotation would make: a CA and one certificate for both programs."""
    folder.mkdir()
    w.make_ca(folder, "ca")
    (folder / "san").write_text(NAMES + "\nextendedKeyUsage=serverAuth,clientAuth\n")
    openssl("req", "-new", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=keda-operator.keda.svc", "-keyout", folder / "tls.key",
            "-out", folder / "tls.csr")
    openssl("x509", "-req", "-in", folder / "tls.csr", "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key", "-CAcreateserial",
            "-days", "2", "-extfile", folder / "san", "-out", folder / "tls.crt")


class Keda:
    def __init__(self, cluster, folder):
        port, grpc, certs = kubernetes.free_port(), kubernetes.free_port(), folder / "certs"
        make_certs(certs)
        crds = pathlib.Path((KEDA / "source").read_text().strip()) / "config/crd/bases"
        cluster.kubectl("apply", "--server-side", "-f", crds)
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        cluster.kubectl("create", "namespace", "keda")
        env = {"KUBECONFIG": str(cluster.kubeconfig), "POD_NAMESPACE": "keda", "WATCH_NAMESPACE": "", "KEDA_CLUSTER_OBJECT_NAMESPACE": "keda", "BATON_KUBECONFIG": ""}
        self.operator = Process("keda-operator", [
            str(KEDA / "operator"), "--kubeconfig", str(cluster.kubeconfig), "--cert-dir", str(certs), "--ca-dir", str(certs),
            "--metrics-bind-address", f"127.0.0.1:{kubernetes.free_port()}", "--health-probe-bind-address",
            f"127.0.0.1:{kubernetes.free_port()}", "--metrics-service-bind-address", f"127.0.0.1:{grpc}"], folder, env)
        self.adapter = Process("keda-adapter", [
            str(KEDA / "adapter"), "--lister-kubeconfig", str(cluster.kubeconfig), "--authentication-kubeconfig", str(cluster.kubeconfig),
            "--authorization-kubeconfig", str(cluster.kubeconfig), "--secure-port", str(port), "--bind-address", "127.0.0.1",
            "--port", str(kubernetes.free_port()), "--cert-dir", str(certs), "--tls-cert-file", str(certs / "tls.crt"),
            "--tls-private-key-file", str(certs / "tls.key"), "--metrics-service-address", f"localhost:{grpc}",
            "--metrics-service-grpc-authority", "keda-operator.keda.svc"], folder, env)
        self.register(cluster, port)

    def register(self, cluster, port):
        def apply(o):
            cluster.kubectl("apply", "-f", "-", input=json.dumps(o))
        apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "keda-metrics-apiserver", "namespace": "keda"},
               "spec": {"type": "ExternalName", "externalName": "localhost"}})
        name = "v1beta1.external.metrics.k8s.io"
        apply({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name}, "spec": {
            "group": "external.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "insecureSkipTLSVerify": True, "service": {"name": "keda-metrics-apiserver", "namespace": "keda", "port": port}}})

        def available():
            assert self.operator.alive(), self.operator.log()[-2000:]
            assert self.adapter.alive(), self.adapter.log()[-2000:]
            s = cluster.get("apiservice", name).get("status", {})
            return any(c["type"] == "Available" and c["status"] == "True" for c in s.get("conditions", []))
        wait(available, 90, "KEDA's metrics API")

    def stop(self):
        self.operator.kill()
        self.adapter.kill()


@pytest.fixture
def keda(cluster, tmp_path):
    assert (KEDA / "operator").exists(), "tools/setup keda"
    k = Keda(cluster, tmp_path)
    yield k
    k.stop()


def scaled_object(role, low, trigger):
    return {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": f"chat-{role}"}, "spec": {
        "scaleTargetRef": {"apiVersion": "serving.baton.dev/v1alpha1", "kind": "WorkerPool", "name": f"chat-{role}"},
        "minReplicaCount": low, "maxReplicaCount": 4, "pollingInterval": 1, "cooldownPeriod": 3,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 2}}}},
        "triggers": [trigger]}}


def test_keda_drives_worker_pools(world, router, keda, tmp_path):
    version = subprocess.run(["go", "version", "-m", str(KEDA / "operator")], capture_output=True, text=True).stdout
    say("KEDA " + next((line.split()[2] for line in version.splitlines() if "kedacore/keda/v2" in line and "mod" not in line.split()[:0]
                        and len(line.split()) > 2), "2.21"))
    c = world.controller("--router-address", router.address)
    world.apply(scaled_infd("External"))
    wait(lambda: len(world.pods()) == 2, what="a pod a role")
    world.make_ready()
    router.answer = load_of(world)
    prometheus = Prometheus(tmp_path, f"127.0.0.1:{c.port}", [])
    try:
        world.apply(scaled_object("prefill", 0, {"type": "metrics-api", "metadata": {
            "url": f"http://127.0.0.1:{c.port}/v1/scaling/{world.ns}/chat/prefill", "valueLocation": "needed_groups",
            "targetValue": "1"}}))
        world.apply(scaled_object("decode", 1, {"type": "prometheus", "metadata": {
            "serverAddress": prometheus.url, "threshold": "1",
            "query": f'max(baton_needed_groups{{infd_namespace="{world.ns}",infd="chat",role="decode"}})'}}))
        begin = time.monotonic()
        story(world, router)
        say(f"done in {time.monotonic() - begin:.0f} s")
    except AssertionError:
        print(f"controller: {c.proc.poll()}", c.log()[-1500:], keda.operator.log()[-3000:], keda.adapter.log()[-1500:])
        print(world.kubectl("describe", "scaledobject,hpa", check=False).stdout[-4000:])
        raise
    finally:
        prometheus.p.kill()


def story(world, router):
    def reach(role, number, seconds, **load):
        def there():
            world.make_ready()
            router.answer = load_of(world, **load)
            return world.scaled(role) == number
        wait(there, seconds, f"{role} at {number}")
        say(f"{role} has {number} groups ({load or 'no load'})")
    reach("prefill", 0, 90)
    reach("prefill", 1, 60, held=2)
    wait(lambda: len(world.pods("prefill")) == 1 and world.sustain(), 30, "its pod")
    router.answer = load_of(world, waiting_tokens=2000)  # one worker, 2,000 tokens within 1 s at 800 tokens/s: 2.5 groups
    wait(lambda: world.scaled("prefill") == 3, 90, "prefill at 3")
    say("prefill has 3 groups (2,000 prompt tokens wait for one worker)")
    assert world.scaled("decode") == 1
    reach("prefill", 0, 120)
    router.answer = load_of(world, used=140)  # of 100 blocks, 0.7 of them to be used: 2 groups
    wait(lambda: world.scaled("decode") == 2, 90, "decode at 2")
    say("decode has 2 groups (140 KV blocks held)")
    reach("decode", 1, 120)
    assert world.scaled("prefill") in (0, 1)
