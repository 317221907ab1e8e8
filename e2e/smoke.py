"""On a real cluster of two nodes: helm install, a sample becomes Ready, an answer through prefill and decode, scale by kubectl,
uninstall; nothing is left. Part of `make test`."""
import pathlib
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from baton import NAMESPACE, ROOT, Baton, Cluster, eventually, images  # noqa: E402

MACHINE = ["vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
           "kernel/keys/root_maxbytes", "net/ipv4/ip_forward"]


def machine():
    """What a kubelet would change on this machine if it could, its mounts and its network."""
    mounts = sorted(line.split()[4] for line in open("/proc/self/mountinfo"))
    links = sorted(p.name for p in pathlib.Path("/sys/class/net").iterdir())
    return [pathlib.Path("/proc/sys", f).read_text() for f in MACHINE], mounts, links


@pytest.fixture(scope="module")
def baton():
    before = machine()
    with tempfile.TemporaryDirectory(prefix="baton-smoke-") as d:
        c = Cluster(pathlib.Path(d) / "cluster")
        try:
            c.up(2, images())
            yield Baton(c)
        finally:
            pid = (c.dir / "pid").read_text().split()[0] if (c.dir / "pid").exists() else "0"
            c.down()
        assert not c.cgroups() and not pathlib.Path("/proc", pid).exists(), "the cluster left something behind"
    assert machine() == before, "the cluster changed this machine"


def test_helm_installs_the_chart(baton):
    baton.namespace()
    baton.install(**{"crds.keep": "false"})
    assert len(baton.get("pods", "-l", "app.kubernetes.io/name=baton-agent")["items"]) == 2


def test_an_applied_sample_answers_through_prefill_and_decode(baton):
    baton.kubectl("apply", "-f", "-", input=baton.sample())
    baton.wait_ready()
    text, headers = eventually(lambda: baton.ask("What is the capital of France?"), 60, message="an answer")
    print(text, headers)
    assert "Paris" in text
    names = {w["name"]: w["role"] for w in baton.workers()}
    assert names[headers["x-baton-prefill"].split(":")[0]] == "prefill" and names[headers["x-baton-decode"].split(":")[0]] == "decode"
    assert int(headers["x-baton-kv-bytes"]) > 0


def test_kubectl_scales_a_pool(baton):
    baton.kubectl("scale", "wp/chat-decode", "--replicas=2")
    eventually(lambda: len(baton.ready("decode")) == 2, 120, message="two ready decode workers")
    assert baton.get("wp", "chat-decode")["status"]["readyReplicas"] == 2
    baton.kubectl("scale", "wp/chat-decode", "--replicas=1")
    eventually(lambda: len(baton.workers("decode")) == 1, 120, message="one decode worker")
    assert "Paris" in baton.ask("What is the capital of France?")[0]


def test_uninstall_leaves_nothing(baton):
    """Not the running deployment, not the definitions (crds.keep is false here), nothing that programs wrote."""
    assert baton.workers(), "something runs"
    baton.uninstall()
    eventually(lambda: not baton.get("pods")["items"], 90, message="the end of all pods")  # routers linger
    eventually(lambda: not [n for n in baton.everything() if not n.startswith("namespace")], 60, message="no object of ours")
    baton.cluster.kubectl("delete", "namespace", NAMESPACE, "--wait", timeout=180)
    assert baton.everything() == [], "left after the namespace"
