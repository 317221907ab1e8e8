"""Models from a Hub, https and peers: agents as real processes on a real API (baton-local), a scripted worker that only looks at
the file it is given, and a server on loopback that speaks the Hub's paths. No Internet."""
import base64
import hashlib
import json
import os
import pathlib
import random
import subprocess
import sys
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "agent"), str(HERE.parent / "local"), str(HERE)]
import hub as hubs  # noqa: E402
import test_agent  # noqa: E402
from kubelet_cluster import Cluster, wait_for  # noqa: E402

P = "serving.baton.dev/"
SEED = int(os.environ.get("BATON_TEST_SEED", "7"))


def sha(data):
    return hashlib.sha256(data).hexdigest()


def blob(n, seed=SEED):
    return random.Random(seed).randbytes(n)


@pytest.fixture(scope="module")
def api():
    c = Cluster(kubelet=False)
    c.kubectl("apply", "--server-side", "-f", HERE.parent.parent / "manifests/crds")
    wait_for(lambda: c.kubectl("get", "ninv", check=False).returncode == 0, message="the definitions")
    yield c
    c.close()


@pytest.fixture
def hub():
    h = hubs.Hub()
    yield h
    h.close()


class Node(test_agent.Node):
    """An agent with its own node, models folder and endpoint."""

    def __init__(self, api, name, hub=None, **options):
        super().__init__(api)
        self.name, self.options = name, options
        self.models = self.dir / "models"
        self.models.mkdir()
        self.endpoint = hub.endpoint if hub else ""
        api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        self.start_agent()

    def env(self, **more):
        return super().env(**{"BATON_NODE_NAME": self.name, "BATON_MODELS_DIR": str(self.models), "HF_ENDPOINT": self.endpoint,
                              "BATON_FETCH_CHUNK": "65536", **self.options, **more})

    def pod(self, source, sha256="", infd="", role="prefill"):
        name = f"{self.name}-{random.getrandbits(40):x}"
        self.api.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {P + "role": role, P + "infd": infd or "x",
                                                                                               P + "rank": "0"}},
                        "spec": {"nodeName": self.name, "readinessGates": [{"conditionType": P + "role"}],
                                 "containers": [{"name": "worker", "image": "x", "command": ["baton-agent", "launch"]}]}})
        w = test_agent.Launcher(self, name, self.api.get("pod", name)["metadata"]["uid"])
        return w.start(BATON_MODEL_SOURCE=source, BATON_MODEL_SHA256=sha256, BATON_INFD=infd)

    def restart(self):
        self.agent.kill()
        self.agent.wait()
        self.start_agent()

    def state(self):
        return self.debug()["models"]

    def cached(self):
        return [m for m in self.state()["cached"] if m["complete"]]

    def files(self):
        return {p.name: p.read_bytes() for p in (self.models / "fetched").glob("*/*") if not p.name.startswith(".")}

    def inventory(self):
        return (self.api.get("ninv", self.name) or {}).get("status", {})


@pytest.fixture
def node(api, hub):
    made = []

    def make(name="a", hub=hub, **options):
        made.append(Node(api, name, hub, **options))
        return made[-1]
    yield make
    for n in made:
        n.close()
        api.kubectl("delete", "ninv", n.name, "--ignore-not-found", "--wait=false")


@pytest.fixture
def infd(api):
    made = []

    def make(name, source, **model):
        notes = model.pop("notes", {})
        api.apply({"apiVersion": "serving.baton.dev/v1alpha1", "kind": "InferenceDeployment", "metadata": {"name": name, "annotations": notes},
                   "spec": {"model": {"name": name, "source": source, **model}, "unified": {"replicas": 1}}})
        secret(api, f"{name}-peer", "secret", "ab" * 32)
        made.append(name)
    yield make
    for name in made:
        api.kubectl("delete", "infd", name, "--ignore-not-found")
        api.kubectl("delete", "secret", f"{name}-peer", "--ignore-not-found")


def secret(api, name, key, value):
    api.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
               "data": {key: base64.b64encode(value.encode()).decode()}})


def said(w, text, seconds=15):
    wait_for(lambda: text in w.gate().get("message", ""), seconds, f"{text!r}: {w.gate()} {(w.dir / 'log').read_text()[-800:]}")
    return w.gate()["message"]


def get(node, path, secret=None, headers=()):
    """(status, body)"""
    r = subprocess.run(["curl", "-s", "-w", "\n%{http_code}", "--max-time", "10", *(["-H", f"Authorization: Bearer {secret}"] if secret else []),
                        *[x for h in headers for x in ("-H", h)], f"http://127.0.0.1:{node.port}{path}"], capture_output=True)
    body, _, status = r.stdout.rpartition(b"\n")
    return int(status), body


# ---- sources ----

def test_one_file_of_a_repository_is_fetched_once_for_all_pods_of_the_node(hub, node):
    data = blob(1_000_000)
    hub.repo("org/m", {"README.md": b"hi", "sub/model.gguf": data})
    hub.rate = 60_000  # a connection: all pods ask while it is on its way
    n = node()
    pods = [n.pod("hf://org/m/sub/model.gguf", role=r) for r in ("prefill", "prefill", "decode", "decode")]
    for w, role in zip(pods, ("prefill", "prefill", "decode", "decode")):
        w.wait_active(role)
    assert n.files() == {"model.gguf": data}
    assert n.state()["fetched"] == 1 and hub.sent < 1.2 * len(data)
    assert n.cached()[0]["sha256"] == sha(data) and n.cached()[0]["users"] == 4
    listed = wait_for(lambda: [m for m in n.inventory().get("models", []) if m["rung"] == "nvme" and m["source"].startswith("hf://")])
    assert listed[0]["sha256"] == sha(data) and listed[0]["bytes"] == len(data)


def test_a_repository_of_safetensors_is_fetched_as_a_set(hub, node):
    files = {"config.json": b"{}", "tokenizer.json": b"{}" * 900, "model-00001-of-00002.safetensors": blob(200_000, 1),
             "model-00002-of-00002.safetensors": blob(150_000, 2), "model.safetensors.index.json": b"{}"}
    hub.repo("org/st", {**files, "README.md": b"x", "pytorch_model.bin": blob(5000), "consolidated.safetensors": blob(9000),
                        "onnx/model.safetensors": blob(7000)})
    digest = sha("".join(f"{sha(d)}  {name}\n" for name, d in sorted(files.items())).encode())
    n = node()
    n.pod("hf://org/st@main", sha256=digest).wait_active()
    assert n.files() == files and n.cached()[0]["sha256"] == digest
    assert any("/resolve/c0ffee" in p for _, p, _ in hub.requests)  # the commit, not the branch


def test_a_repository_with_several_gguf_files_asks_for_one(hub, node):
    hub.repo("org/g", {"a.Q4.gguf": b"1", "b.Q8.gguf": b"2"})
    w = node().pod("hf://org/g")
    assert "hf://org/repo/a.Q4.gguf" in said(w, "has 2 GGUF files")
    assert json.loads(w.notes()["last-crash"])["reason"] == "ModelUnavailable"


def test_a_plain_https_source_with_its_own_authority(api, node):
    tls = hubs.certificate()
    hub = hubs.Hub(tls)
    try:
        data = blob(300_000)
        hub.files["m.gguf"] = data
        n = node(hub=None, BATON_SOURCE_CA=str(tls / "cert.pem"))
        n.pod(f"{hub.endpoint}/files/m.gguf", sha256=sha(data)).wait_active()
        assert n.files() == {"m.gguf": data}
    finally:
        hub.close()


# ---- faults ----

def test_a_cut_connection_goes_on_where_it_was(hub, node):
    data = blob(400_000)
    hub.repo("org/m", {"m.gguf": data})
    hub.cut_after = 90_000  # more than a piece of 64 KiB, less than the file
    n = node()
    n.pod("hf://org/m/m.gguf").wait_active()
    assert n.files()["m.gguf"] == data


def test_a_killed_agent_goes_on_from_its_parts(hub, node):
    data = blob(2_000_000)
    hub.repo("org/m", {"m.gguf": data})
    hub.rate = 400_000
    n = node(BATON_FETCH_CONNECTIONS="2")
    w = n.pod("hf://org/m/m.gguf")
    wait_for(lambda: hub.sent > 700_000, message="some bytes")
    n.agent.kill()
    n.agent.wait()
    before, hub.sent, hub.rate = hub.sent, 0, None
    n.start_agent()
    w.wait_active()
    assert n.files()["m.gguf"] == data
    assert hub.sent < len(data) - before + 4 * 65536 + 20_000, f"{before} bytes were there, {hub.sent} came again"


def test_server_errors_and_throttling_are_waited_out(hub, node):
    data = blob(100_000)
    hub.repo("org/m", {"m.gguf": data})
    hub.fail = [500, 429, 503]
    n = node()
    n.pod("hf://org/m/m.gguf").wait_active()
    assert n.files()["m.gguf"] == data


def test_signed_links_that_expire_are_asked_for_again(hub, node):
    data = blob(600_000)
    hub.repo("org/m", {"m.gguf": data})
    hub.expire_links = 3
    n = node(BATON_FETCH_CONNECTIONS="1")
    n.pod("hf://org/m/m.gguf").wait_active()
    assert n.files()["m.gguf"] == data


def test_a_server_without_ranges_serves_too(hub, node):
    data = blob(200_000)
    hub.files["m"] = data
    hub.repo("org/m", {"m.gguf": data})
    hub.ranges = False
    n = node(BATON_FETCH_CHUNK="1048576")
    n.pod("hf://org/m/m.gguf").wait_active()
    assert n.files()["m.gguf"] == data


def test_a_token_that_is_missing_wrong_or_right(hub, node, infd, api):
    data = blob(50_000)
    hub.repo("org/private", {"m.gguf": data})
    hub.token = "hf_right"
    n = node()
    w = n.pod("hf://org/private/m.gguf")
    assert "spec.model.tokenSecret" in said(w, "needs a token (HTTP 401")
    infd("priv", "hf://org/private/m.gguf", tokenSecret={"name": "hub"})
    w = n.pod("hf://org/private/m.gguf", infd="priv", sha256=sha(data))
    said(w, "the Secret default/hub can't be read")
    secret(api, "hub", "token", "hf_wrong")
    said(w, "denies access to this token's owner (HTTP 403: Access to this model is restricted.)", 40)
    secret(api, "hub", "token", "hf_right\n")
    wait_for(lambda: w.gate().get("status") == "True", 90, "the token is read again")


def test_a_missing_file_says_so(hub, node):
    hub.repo("org/m", {"m.gguf": b"x"})
    assert "Entry not found" in said(node().pod("hf://org/m/nope.gguf"), "does not exist (HTTP 404")


def test_other_bytes_than_pinned_are_refused(hub, node):
    data = blob(100_000)
    hub.repo("org/m", {"m.gguf": data})
    n = node()
    w = n.pod("hf://org/m/m.gguf", sha256="0" * 64)
    assert sha(data) in said(w, "the sha256 of m.gguf is")
    assert not n.files() and w.told("start") == []


def test_bytes_damaged_on_the_way_are_not_kept(hub, node):
    data = blob(100_000)
    hub.repo("org/m", {"m.gguf": data})
    hub.corrupt = True
    n = node()
    w = n.pod("hf://org/m/m.gguf")
    said(w, "the sha256 of m.gguf is")
    hub.corrupt = False
    wait_for(lambda: w.gate().get("status") == "True", 40)
    assert n.files()["m.gguf"] == data


def test_a_redirect_never_carries_the_token_or_leaves_https(hub, node):
    hub.token = "t"
    hub.repo("org/m", {"m.gguf": blob(50_000)})
    n = node()
    w = n.pod("hf://org/m/m.gguf")
    said(w, "needs a token")  # and the CDN asserts that it never sees one
    assert not any("Authorization" in h for m, p, h in hub.requests if p.startswith("/blob/"))


# ---- the cache ----

def test_the_cache_keeps_its_budget_and_what_is_in_use(hub, node):
    a, b, c = blob(300_000, 1), blob(300_000, 2), blob(300_000, 3)
    hub.repo("org/m", {"a.gguf": a, "b.gguf": b, "c.gguf": c})
    n = node(BATON_CACHE_BUDGET="700000")
    first, second = n.pod("hf://org/m/a.gguf"), n.pod("hf://org/m/b.gguf")
    first.wait_active()
    second.wait_active()
    third = n.pod("hf://org/m/c.gguf")
    assert "(the rest is in use)" in said(third, "needs 0.0 GiB, the node's model cache can have 0.0")
    second.p.kill()  # its model may go now
    third.wait_active()
    assert set(n.files()) == {"a.gguf", "c.gguf"}


def test_a_restarted_agent_adopts_its_cache_and_mends_what_is_damaged(hub, node):
    data = blob(300_000)
    hub.repo("org/m", {"m.gguf": data})
    n = node()
    w = n.pod("hf://org/m/m.gguf", sha256=sha(data))
    w.wait_active()
    w.p.kill()
    w.p.wait()
    asked = len(hub.requests)
    n.restart()
    n.pod("hf://org/m/m.gguf", sha256=sha(data)).wait_active()
    assert len(hub.requests) == asked and n.state()["fetched"] == 0
    for x in n.launchers:
        x.p.kill()
    path = next((n.models / "fetched").glob("*/m.gguf"))
    path.chmod(0o644)
    path.write_bytes(data[:1000])
    n.restart()
    n.pod("hf://org/m/m.gguf", sha256=sha(data)).wait_active()
    assert n.files()["m.gguf"] == data and n.state()["fetched"] == 1


def test_a_model_that_a_worker_refuses_is_checked_and_fetched_again(hub, node):
    data = blob(200_000)
    hub.repo("org/m", {"m.gguf": data})
    n = node()
    w = n.pod("hf://org/m/m.gguf", sha256=sha(data))
    (w.dir / "fill-fails").write_text("its sha256 is another")
    said(w, "its sha256 is another")
    path = next((n.models / "fetched").glob("*/m.gguf"))
    path.chmod(0o644)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))  # same size, other bytes
    wait_for(lambda: path.exists() and path.read_bytes() == data, 40, "the file is mended")
    (w.dir / "fill-fails").unlink()
    w.wait_active()


def test_progress_is_told_to_pods_and_in_the_inventory(hub, node):
    hub.repo("org/m", {"m.gguf": blob(1_500_000)})
    hub.rate = 100_000
    n = node()
    w = n.pod("hf://org/m/m.gguf")
    said(w, "from the source: ")
    f = wait_for(lambda: [x for x in n.inventory().get("fetches", []) if x["percent"] > 0], message="the inventory")
    assert f[0]["source"] == "hf://org/m/m.gguf" and f[0]["bytes"] == 1_500_000
    hub.rate = None
    w.wait_active()


# ---- peers ----

def test_a_second_node_fetches_from_the_first(hub, node, infd):
    data = blob(500_000)
    hub.repo("org/m", {"m.gguf": data})
    infd("p2p", "hf://org/m/m.gguf", sha256=sha(data))
    a, b = node("a"), node("b")
    a.pod("hf://org/m/m.gguf", sha256=sha(data), infd="p2p").wait_active()
    wait_for(lambda: any(m.get("sha256") == sha(data) for m in a.inventory().get("models", [])))
    asked = len(hub.requests)
    time.sleep(0.5)  # b's watch
    b.pod("hf://org/m/m.gguf", sha256=sha(data), infd="p2p").wait_active()
    assert b.files()["m.gguf"] == data and len(hub.requests) == asked and a.state()["offered_bytes"] >= len(data)


def test_a_peer_that_dies_is_replaced_by_others_and_the_source(hub, node, infd):
    data = blob(3_000_000)
    hub.repo("org/m", {"m.gguf": data})
    infd("p2p", "hf://org/m/m.gguf", sha256=sha(data))
    a, b = node("a"), node("b")
    a.pod("hf://org/m/m.gguf", sha256=sha(data), infd="p2p").wait_active()
    wait_for(lambda: any(m.get("sha256") == sha(data) for m in a.inventory().get("models", [])))
    time.sleep(0.5)
    a.agent.kill()
    a.agent.wait()  # its inventory still lists the model
    hub.sent = 0
    b.pod("hf://org/m/m.gguf", sha256=sha(data), infd="p2p").wait_active()
    assert b.files()["m.gguf"] == data and hub.sent >= len(data)


def test_a_damaged_peer_is_not_believed(hub, node, infd):
    data = blob(300_000)
    hub.repo("org/m", {"m.gguf": data})
    infd("p2p", "hf://org/m/m.gguf", sha256=sha(data))
    a, b = node("a"), node("b")
    a.pod("hf://org/m/m.gguf", sha256=sha(data), infd="p2p").wait_active()
    wait_for(lambda: any(m.get("sha256") == sha(data) for m in a.inventory().get("models", [])))
    path = next((a.models / "fetched").glob("*/m.gguf"))
    path.chmod(0o644)
    path.write_bytes(bytes(len(data)))
    time.sleep(0.5)
    b.pod("hf://org/m/m.gguf", sha256=sha(data), infd="p2p").wait_active()
    assert b.files()["m.gguf"] == data


def test_a_file_on_one_node_reaches_another_by_its_pin(node, infd):
    data = blob(200_000)
    a, b = node("a"), node("b")
    (a.models / "local.gguf").write_bytes(data)
    source = f"file://{a.models}/local.gguf"
    infd("local", source, sha256=sha(data))
    wait_for(lambda: any(m.get("sha256") == sha(data) for m in a.inventory().get("models", [])), message="a's inventory")
    # On one machine both nodes see the path; b is told of one that is not there.
    b.pod(f"file://{b.models}/local.gguf", sha256=sha(data), infd="local").wait_active()
    assert b.files()["local.gguf"] == data


def test_cached_nodes_fetch_without_any_pod(hub, node, infd):
    data = blob(200_000)
    hub.repo("org/m", {"m.gguf": data})
    n = node()
    infd("warmish", "hf://org/m/m.gguf", sha256=sha(data), endpoint=hub.endpoint, notes={P + "cached-nodes": json.dumps(["other", "a"])})
    wait_for(lambda: n.files().get("m.gguf") == data, message="the cached model")
    wait_for(lambda: n.cached() and n.cached()[0]["wanted"])


def test_models_are_offered_to_who_knows_the_secret_only(hub, node, infd):
    data = blob(100_000)
    hub.repo("org/m", {"m.gguf": data})
    infd("p2p", "hf://org/m/m.gguf", sha256=sha(data))
    n = node()
    n.pod("hf://org/m/m.gguf", sha256=sha(data), infd="p2p").wait_active()
    at = f"/v1/internal/weights/{sha(data)}"
    assert get(n, at)[0] == 401 and get(n, at, "cd" * 32)[0] == 401
    assert get(n, at, "ab" * 32) == (200, data)
    assert get(n, at + "/m.gguf", "ab" * 32, ["Range: bytes=10-19"]) == (206, data[10:20])
    assert get(n, at, "ab" * 32, ["Range: bytes=99990-"]) == (206, data[-10:])
    assert get(n, at, "ab" * 32, [f"Range: bytes={len(data)}-"])[0] == 416
    assert get(n, at, "ab" * 32, ["Range: bytes=5-1"])[0] == 416 and get(n, at, "ab" * 32, ["Range: lines=1-2"])[0] == 200
    assert json.loads(get(n, at + "?manifest", "ab" * 32)[1])["files"] == [{"name": "m.gguf", "bytes": len(data), "sha256": sha(data)}]
    assert get(n, at + "/..%2f.baton.json", "ab" * 32)[0] == 404 and get(n, at + "/other", "ab" * 32)[0] == 404
    assert get(n, "/v1/internal/weights/" + "0" * 64, "ab" * 32)[0] == 401 and get(n, "/v1/internal/weights/xyz")[0] == 404
