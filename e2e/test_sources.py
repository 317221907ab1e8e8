"""Models that are mounted, on a real node: from a PersistentVolumeClaim and from an image as a volume. `make e2e-sources`."""
import json
import pathlib
import subprocess
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from baton import ROOT, Baton, Cluster, eventually, images  # noqa: E402
from cluster import CACHE  # noqa: E402

FILE = CACHE / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
IMAGE = "registry.example.com/models/smollm2:1"
CLAIM = [
    {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "models"},
     "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadOnlyMany"], "storageClassName": "", "hostPath": {"path": "/var/lib/claim"},
              "persistentVolumeReclaimPolicy": "Retain"}},
    {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models"},
     "spec": {"accessModes": ["ReadOnlyMany"], "storageClassName": "", "volumeName": "models", "resources": {"requests": {"storage": "1Gi"}}}},
]


def sample(baton, source):
    """The sample on a node of two processors, beside the rest of a cluster."""
    return baton.sample(model__source=source, prefill__resources__requests__cpu="100m", decode__resources__requests__cpu="100m")


def on_node(cluster, script):
    return subprocess.run(cluster.on_node(1, "sh", "-c", script), check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def baton():
    with tempfile.TemporaryDirectory(prefix="baton-sources-") as d:
        model = pathlib.Path(d) / "model.tar"
        subprocess.run([ROOT / "tools/images", "--pack", model, IMAGE, "[]", f"smollm2/model.gguf={FILE}"], check=True, stdout=subprocess.DEVNULL)
        c = Cluster(pathlib.Path(d) / "cluster")
        try:
            c.up(1, [*images(), model])
            b = Baton(c)
            b.namespace()
            b.install()
            on_node(c, f"mkdir -p /var/lib/claim/smollm2 && mv /var/lib/baton/models/{FILE.name} /var/lib/claim/smollm2/model.gguf")
            b.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": CLAIM}))
            yield b
        finally:
            c.down()


@pytest.mark.parametrize("source", ["pvc://models/smollm2/model.gguf", f"image://{IMAGE}?path=/smollm2/model.gguf"], ids=["claim", "image"])
def test_a_mounted_model_answers_through_prefill_and_decode(baton, source):
    assert on_node(baton.cluster, f"test -e /var/lib/baton/models/{FILE.name} && echo yes || echo no") == "no"
    baton.kubectl("apply", "-f", "-", input=sample(baton, source))
    baton.wait_ready()
    text, headers = eventually(lambda: baton.ask("What is the capital of France?"), 60, message="an answer")
    print(source, text, headers)
    assert "Paris" in text and int(headers["x-baton-kv-bytes"]) > 0
    spec = baton.get("pods", "-l", "serving.baton.dev/infd")["items"][0]["spec"]
    assert [v for v in spec["volumes"] if v["name"] == "source" and ("image" in v or "persistentVolumeClaim" in v)]
    baton.kubectl("delete", "infd", "chat", "--wait")
    eventually(lambda: not baton.workers(), 120, message="no worker pods")


def test_a_claim_without_the_file_says_so(baton):
    baton.kubectl("apply", "-f", "-", input=sample(baton, "pvc://models/other.gguf"))

    def told():
        conditions = [c for p in baton.get("pods", "-l", "serving.baton.dev/infd")["items"] for c in p["status"].get("conditions", [])]
        return [c["message"] for c in conditions if c["type"] == "serving.baton.dev/role" and "other.gguf" in c.get("message", "")]
    print(eventually(told, 90, message="a condition that names the file"))
    baton.kubectl("delete", "infd", "chat", "--wait")
