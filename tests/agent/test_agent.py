"""Agent and launchers as real processes on a real API (baton-local without its kubelet), with a scripted worker."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "local"), str(HERE.parent / "controller")]
from kubelet_cluster import BUILD, Cluster, patience, wait_for  # noqa: E402

P = "serving.baton.dev/"


class RealApi(Cluster):
    """The same tests against a real kube-apiserver: BATON_AGENT_API=real."""

    def __init__(self):
        import kubernetes
        self.real = kubernetes.Cluster()
        self.kubeconfig, self.access = self.real.kubeconfig, None

    def log(self):
        return ""

    def close(self):
        self.real.stop()


@pytest.fixture(scope="module")
def api():
    c = RealApi() if os.environ.get("BATON_AGENT_API") == "real" else Cluster(kubelet=False)
    c.kubectl("apply", "--server-side", "-f", HERE.parent.parent / "manifests/crds")
    wait_for(lambda: c.kubectl("get", "ninv", check=False).returncode == 0, message="the definitions")
    c.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "local"}})
    yield c
    c.close()


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Node:
    """An agent, and launchers on one machine."""

    def __init__(self, api):
        self.api = api
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-agent-"))
        self.shm = pathlib.Path(tempfile.mkdtemp(prefix="baton-agent-", dir="/dev/shm"))
        self.model = self.dir / "m.gguf"
        self.model.write_bytes(b"GGUF")
        self.port = free_port()
        self.launchers, self.budget, self.agent = [], "64Mi", None

    def env(self, **more):
        return {**os.environ, "BATON_AGENT_DIR": str(self.dir), "BATON_SEGMENT_DIR": str(self.shm / "w"),
                "BATON_KUBECONFIG": str(self.api.kubeconfig), "BATON_NODE_NAME": "local", "BATON_POD_IP": "127.0.0.1",
                "BATON_AGENT_PORT": str(self.port), "BATON_MODELS_DIR": str(self.dir), **more}

    def start_agent(self):
        with open(self.dir / "agent.log", "ab") as log:
            self.agent = subprocess.Popen([BUILD / "bin/baton-agent", "--weights-budget", self.budget], env=self.env(),
                                          stdout=log, stderr=log)
        wait_for(lambda: self.debug() is not None, message="the agent")

    def debug(self):
        r = subprocess.run(["curl", "-s", "--max-time", "10", f"http://127.0.0.1:{self.port}/debug/state"], capture_output=True)
        return json.loads(r.stdout) if r.returncode == 0 and r.stdout else None

    def pod(self, role="prefill"):
        name = f"w-{uuid.uuid4().hex[:6]}"
        self.api.apply({"apiVersion": "v1", "kind": "Pod",
                        "metadata": {"name": name, "labels": {P + "role": role, P + "infd": "x", P + "rank": "0"}},
                        "spec": {"nodeName": "local", "readinessGates": [{"conditionType": P + "role"}],
                                 "containers": [{"name": "worker", "image": "x", "command": ["baton-agent", "launch"]}]}})
        return Launcher(self, name, self.api.get("pod", name)["metadata"]["uid"])

    def close(self):
        for x in self.launchers:
            if x.p and x.p.poll() is None:
                x.p.kill()
                x.p.wait()
            self.api.kubectl("delete", "pod", x.name, "--force", "--grace-period=0", check=False)
        if self.agent and self.agent.poll() is None:
            self.agent.kill()
            self.agent.wait()
        shutil.rmtree(self.dir, ignore_errors=True)
        shutil.rmtree(self.shm, ignore_errors=True)


class Launcher:
    def __init__(self, node, name, uid):
        self.node, self.name, self.uid, self.p = node, name, uid, None
        self.dir = node.dir / name
        self.dir.mkdir()
        node.launchers.append(self)

    def start(self, **env):
        with open(self.dir / "log", "ab") as log:
            self.p = subprocess.Popen(
                [BUILD / "bin/baton-agent", "launch"], stdout=log, stderr=log,
                env=self.node.env(**{
                    "BATON_POD_NAME": self.name, "BATON_POD_NAMESPACE": "default", "BATON_POD_UID": self.uid,
                    "BATON_MODEL_SOURCE": f"file://{self.node.model}", "BATON_MEMORY_LIMIT_BYTES": str(64 << 20),
                    "BATON_WORKER": str(HERE / "scripted_worker.py"), "SCRIPT_DIR": str(self.dir), "BATON_BACKOFF_MS": "100",
                    "BATON_DRAIN_SECONDS": "5", **env}))
        return self

    def events(self):
        f = self.dir / "events"
        return [json.loads(x) for x in f.read_text().splitlines()] if f.exists() else []

    def told(self, kind):
        return [e for e in self.events() if e.get("type") == kind]

    def object(self):
        return self.node.api.get("pod", self.name)

    def gate(self):
        for c in (self.object() or {}).get("status", {}).get("conditions", []):
            if c["type"] == P + "role":
                return c
        return {}

    def notes(self):
        return {k.removeprefix(P): v for k, v in (self.object()["metadata"].get("annotations") or {}).items()}

    def fills(self):
        f = self.dir / "fills"
        return len(f.read_text().splitlines()) if f.exists() else 0

    def wait_active(self, role="prefill"):
        def active():  # by its words: the gate may still be open for the role that it had
            gate = self.gate()
            return (gate.get("status") == "True" and gate["message"].startswith(f"the worker serves as {role}")
                    and self.notes().get("actual-role") == role)
        wait_for(active, 40,
                 message=f"{self.name} {role}: {(self.dir / 'log').read_text()[-1500:]}")

    def worker_pid(self):
        return self.events()[-1]["pid"]


@pytest.fixture
def node(api):
    n = Node(api)
    n.start_agent()
    yield n
    n.close()


def gone(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_a_worker_takes_its_role_and_the_gate_opens(node):
    w = node.pod().start()
    w.wait_active()
    start = w.told("start")[0]
    assert start["role"] == "prefill" and start["ranks"] == 1 and start["weights_bytes"] == 1 << 20
    assert w.notes()["incarnation"] == start["incarnation"] and len(start["incarnation"]) == 16
    assert w.gate()["reason"] == "RoleActive"
    managers = {f["manager"] for f in json.loads(node.api.kubectl(
        "get", "pod", w.name, "-o", "json", "--show-managed-fields").stdout)["metadata"]["managedFields"]}
    assert "baton-agent" in managers


def test_a_role_is_changed_while_the_worker_runs(node):
    w = node.pod("decode").start()
    w.wait_active("decode")
    node.api.kubectl("label", "pod", w.name, f"{P}role=prefill", "--overwrite")
    w.wait_active("prefill")
    node.api.kubectl("label", "pod", w.name, f"{P}role=standby", "--overwrite")
    wait_for(lambda: w.gate().get("reason") == "Standby")
    assert w.gate()["status"] == "False" and len(w.told("start")) == 1


def test_the_gate_stays_closed_until_the_engine_of_this_worker_is_ready(node):
    w = node.pod("standby")
    (w.dir / "not-ready").touch()
    w.start()
    wait_for(lambda: w.told("start"))
    node.api.kubectl("label", "pod", w.name, f"{P}role=decode", "--overwrite")
    wait_for(lambda: w.told("role") and w.told("role")[-1]["role"] == "decode")
    wait_for(lambda: w.notes().get("actual-role") == "decode")
    time.sleep(0.5)
    assert w.gate()["status"] == "False"
    (w.dir / "not-ready").unlink()
    w.wait_active("decode")


def test_rungs_are_told_and_a_role_wakes(node):
    w = node.pod("standby")
    node.api.kubectl("annotate", "pod", w.name, f"{P}rung=warm")
    w.start()
    wait_for(lambda: w.told("rung"))
    assert w.told("rung")[-1]["rung"] == "warm"
    wait_for(lambda: w.gate().get("reason") == "Standby")
    node.api.kubectl("label", "pod", w.name, f"{P}role=decode", "--overwrite")
    w.wait_active("decode")
    kinds = [(e["type"], e.get("rung") or e.get("role")) for e in w.events() if e.get("type") in ("rung", "role")]
    assert kinds[-2:] == [("rung", "hot"), ("role", "decode")]  # awake before it has work
    lead = json.loads(wait_for(lambda: w.notes().get("lead")))
    assert lead["rung"] in ("hot", "warm") and 0 < lead["seconds"] < 30


def test_two_workers_map_one_image_that_was_filled_once(node):
    a, b = node.pod(), node.pod("decode")
    (a.dir / "slow-fill").write_text("0.5")
    (b.dir / "slow-fill").write_text("0.5")
    a.start()
    b.start()
    a.wait_active()
    b.wait_active("decode")
    assert a.fills() + b.fills() == 1
    images = [[e for e in x.events() if "image" in e][0] for x in (a, b)]
    assert images[0]["image"] == images[1]["image"]
    assert all(not i["writable"] and i["whole"] for i in images)
    state = node.debug()
    assert state["fills"] == 1 and state["images"][0]["users"] == 2 and state["images"][0]["checksum"] == "00000000deadbeef"


def test_the_whole_image_is_allocated_when_it_is_made(node):
    w = node.pod()
    (w.dir / "slow-fill").write_text("600")  # nobody has written a byte
    w.start()
    wait_for(lambda: any(image.stat().st_blocks * 512 >= 1 << 20 for image in (node.shm / "w").glob("*.image")))


def test_a_filler_that_dies_leaves_the_image_to_the_next(node):
    a, b = node.pod(), node.pod("decode")
    (a.dir / "slow-fill").write_text("60")
    a.start()
    wait_for(lambda: a.fills() == 1)
    b.start()
    wait_for(lambda: "another worker" in b.gate().get("message", ""))
    a.p.kill()
    b.wait_active("decode")
    assert b.fills() == 1 and [e for e in b.events() if "image" in e][0]["whole"]


def test_a_failed_fill_is_said_and_tried_again(node):
    w = node.pod()
    (w.dir / "fill-fails").write_text("tensor blk.3.attn_q is cut off")
    w.start()
    wait_for(lambda: "blk.3.attn_q is cut off" in w.gate().get("message", ""))
    assert json.loads(w.notes()["last-crash"])["reason"] == "ModelUnusable"
    (w.dir / "fill-fails").unlink()
    w.wait_active()


def test_too_little_memory_is_said_before_anything_is_loaded(node):
    w = node.pod()
    (w.dir / "plan.json").write_text(json.dumps({"weights_bytes": 8 << 30, "kv_bytes": 1 << 30, "other_bytes": 100 << 20, "isa": "t",
                                                 "layout": "r"}))
    w.start(BATON_MEMORY_LIMIT_BYTES=str(int(7.8 * (1 << 30))))
    wait_for(lambda: w.gate().get("reason") == "InsufficientMemory")
    message = w.gate()["message"]
    assert message.startswith("needs 9.1 GiB, ") and "has 7.8 GiB" in message
    crash = json.loads(w.notes()["last-crash"])
    assert crash["reason"] == "InsufficientMemory" and crash["message"] == message
    assert w.fills() == 0 and w.told("start") == [] and w.p.poll() is None


def test_the_weight_budget_refuses_in_words_and_evicts_what_nobody_uses(node):
    a = node.pod().start()
    a.wait_active()
    (node.dir / "m2.gguf").write_bytes(b"GGUF2")
    b = node.pod("decode")
    (b.dir / "plan.json").write_text(json.dumps({"weights_bytes": 63 << 20, "kv_bytes": 0, "other_bytes": 0, "isa": "t", "layout": "r"}))
    (b.dir / "drain").write_text("0")
    b.start(BATON_MODEL_SOURCE=f"file://{node.dir}/m2.gguf")
    b.wait_active("decode")  # both fit: 1 + 63 of 64 MiB
    (node.dir / "other.gguf").write_bytes(b"GGUF3")
    c = node.pod("unified")
    c.start(BATON_MODEL_SOURCE=f"file://{node.dir}/other.gguf")
    wait_for(lambda: "weight budget" in c.gate().get("message", ""))
    b.p.terminate()
    b.p.wait(patience(10))
    c.wait_active("unified")
    assert {i["source"].rsplit("/", 1)[1] for i in node.debug()["images"]} == {"m.gguf", "other.gguf"}


def test_a_crash_is_recorded_and_the_worker_comes_back_as_another(node):
    w = node.pod().start()
    w.wait_active()
    first = w.told("start")[0]["incarnation"]
    os.kill(w.worker_pid(), signal.SIGUSR1)
    wait_for(lambda: "last-crash" in w.notes())
    crash = json.loads(w.notes()["last-crash"])
    assert crash["exitCode"] == 3 and "boom: out of cheese" in crash["message"] and crash["incarnation"] == first
    wait_for(lambda: w.notes().get("epoch") == "1")
    w.wait_active()
    second = w.told("start")[1]["incarnation"]
    assert second != first and w.notes()["incarnation"] == second and w.fills() == 1
    os.kill(w.worker_pid(), signal.SIGKILL)
    wait_for(lambda: json.loads(w.notes()["last-crash"])["signal"] == 9)
    wait_for(lambda: w.notes().get("epoch") == "2")
    w.wait_active()


def test_a_restarted_launcher_counts_on(node):
    w = node.pod().start()
    w.wait_active()
    w.p.kill()
    w.p.wait()
    wait_for(lambda: w.gate().get("reason") == "LauncherNotConnected")
    w.start()
    w.wait_active()
    assert wait_for(lambda: w.notes().get("epoch") == "1")


def test_a_worker_never_outlives_its_launcher(node):
    w = node.pod().start()
    w.wait_active()
    pid = w.worker_pid()
    w.p.kill()
    w.p.wait()
    wait_for(lambda: gone(pid), 3, "the worker's end")


def test_term_drains_and_ends_with_code_0(node):
    w = node.pod().start()
    (w.dir / "drain").write_text("0.7")
    w.wait_active()
    begin = time.monotonic()
    w.p.terminate()
    wait_for(lambda: w.gate().get("reason") == "Draining")
    assert w.p.wait(patience(10)) == 0 and time.monotonic() - begin > 0.6
    assert w.told("drain")


def test_a_drain_that_does_not_end_is_cut_off(node):
    w = node.pod()
    (w.dir / "drain").write_text("never")
    w.start(BATON_DRAIN_SECONDS="1")
    w.wait_active()
    pid, begin = w.worker_pid(), time.monotonic()
    w.p.terminate()
    assert w.p.wait(patience(10)) == 0 and 0.9 < time.monotonic() - begin < patience(6)
    assert gone(pid)


def test_a_deleted_pod_drains_before_its_term(node):
    w = node.pod().start()
    w.wait_active()
    node.api.kubectl("delete", "pod", w.name, "--wait=false")
    wait_for(lambda: w.told("drain"))
    wait_for(lambda: w.gate().get("reason") == "Draining")
    assert w.p.poll() is None


def test_launchers_outlive_a_killed_agent(node):
    w = node.pod().start()
    w.wait_active()
    pid, image = w.worker_pid(), node.debug()["images"][0]
    for _ in range(2):
        node.agent.kill()
        node.agent.wait()
        node.start_agent()
        wait_for(lambda: (node.debug() or {}).get("launchers"))
    wait_for(lambda: node.debug()["images"] and node.debug()["images"][0]["users"] == 1)
    assert node.debug()["images"][0]["checksum"] == image["checksum"]
    node.api.kubectl("label", "pod", w.name, f"{P}role=decode", "--overwrite")
    w.wait_active("decode")
    assert w.worker_pid() == pid and w.fills() == 1 and w.gate()["status"] == "True"
    b = node.pod("unified").start()
    b.wait_active("unified")
    assert b.fills() == 0  # the adopted image


def test_a_crash_while_the_agent_is_away_is_healed_and_told_later(node):
    w = node.pod().start()
    w.wait_active()
    node.agent.kill()
    node.agent.wait()
    os.kill(w.worker_pid(), signal.SIGKILL)
    wait_for(lambda: len(w.told("start")) == 2)
    node.start_agent()
    wait_for(lambda: w.notes().get("incarnation") == w.told("start")[1]["incarnation"])
    assert json.loads(w.notes()["last-crash"])["signal"] == 9
    w.wait_active()


def test_the_inventory_names_devices_models_and_tiers(node):
    w = node.pod().start()
    w.wait_active()
    inv = wait_for(lambda: (lambda o: o if o and any(m["rung"] == "dram" and "m.gguf" in m["source"] and str(node.dir) in m["source"]
                                                     for m in o.get("status", {}).get("models", [])) else None)(
        node.api.get("ninv", "local")), message="the inventory")
    s = inv["status"]
    assert s["devices"][0]["kind"] == "cpu" and s["devices"][0]["healthy"] and s["devices"][0]["milliCPUs"] > 0
    assert {m["rung"] for m in s["models"]} == {"dram", "nvme"} and s["tiers"][0]["name"] == "dram" and s["links"][0]["bytesPerSecond"] > 1e8
    assert inv["metadata"]["ownerReferences"][0]["kind"] == "Node"


def test_the_endpoints_answer(node):
    for path, want in (("healthz", ""), ("readyz", ""), ("metrics", "baton_agent_launchers")):
        def answers():
            r = subprocess.run(["curl", "-sf", f"http://127.0.0.1:{node.port}/{path}"], capture_output=True, text=True)
            return r.returncode == 0 and want in r.stdout
        wait_for(answers, message=path)  # it is ready once its rights are known and its watch is open
