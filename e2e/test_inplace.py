"""A user's server with a second container, on a real kubelet: when the first one fails, both start again in the pod as it is. `make e2e-inplace`."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from baton import ROOT, Cluster, eventually  # noqa: E402
from cluster import BIN, PAUSE  # noqa: E402

BUILD = pathlib.Path(os.environ.get("BATON_BUILD", ROOT / "build"))
INFD = {"apiVersion": "serving.baton.dev/v1alpha1", "kind": "InferenceDeployment", "metadata": {"name": "own"},
        "spec": {"model": {"name": "own", "source": "file:///models/m.gguf"}, "unified": {"replicas": 1}, "routing": {"disaggregation": "never"},
                 "engine": {"port": 9000, "template": {"spec": {"terminationGracePeriodSeconds": 1, "containers": [
                     {"name": "server", "image": PAUSE}, {"name": "proxy", "image": PAUSE}]}}}}}


@pytest.fixture
def cluster():
    with tempfile.TemporaryDirectory(prefix="baton-inplace-") as d:
        c, controller = Cluster(pathlib.Path(d) / "cluster"), None
        try:
            c.up(1)
            c.kubectl("apply", "-f", ROOT / "manifests/crds")
            c.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
            with open(pathlib.Path(d) / "controller.log", "wb") as log:
                controller = subprocess.Popen([BUILD / "bin/baton-controller", "--port", "0", "--no-leader-election"], stderr=log,
                                              env={**os.environ, "BATON_KUBECONFIG": str(c.kubeconfig), "BATON_NAMESPACE": "default"})
            yield c
        finally:
            if controller:
                controller.kill()
                controller.wait()
            c.down()


def kill_first(cluster):
    ctr = f"{BIN}/ctr -n k8s.io"
    script = f"""id=$({ctr} containers ls -q 'labels."io.kubernetes.container.name"==server') && {ctr} tasks kill -s SIGKILL $id"""
    subprocess.run(cluster.on_node(1, "sh", "-c", script), check=True, capture_output=True, text=True)


def test_all_containers_start_again_in_the_pod_as_it_is(cluster):
    cluster.kubectl("apply", "-f", "-", input=json.dumps(INFD))

    def pod():
        items = cluster.get("pods", "-l", "serving.baton.dev/infd=own")["items"]
        return items[0] if len(items) == 1 else None

    def restarts():
        states = {s["name"]: s for s in (pod() or {"status": {}})["status"].get("containerStatuses", [])}
        return [states[n]["restartCount"] if "running" in states[n]["state"] else -1 for n in ("server", "proxy")] if len(states) == 2 else None
    eventually(lambda: restarts() == [0, 0], 90, message="both run")
    before = pod()
    print("rule:", before["spec"]["containers"][0]["restartPolicyRules"])
    kill_first(cluster)
    eventually(lambda: restarts() == [1, 1], 60, message="both start again")
    after = pod()
    assert after["metadata"]["uid"] == before["metadata"]["uid"] and after["status"]["podIP"] == before["status"]["podIP"]
    print("restarts:", restarts(), "of pod", after["metadata"]["name"], "at", after["status"]["podIP"])
