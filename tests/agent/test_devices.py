"""Device faults from a scripted management library to inventory, pods and launchers."""
import json
import pathlib
import subprocess
import sys
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "local"), str(HERE)]
import test_agent  # noqa: E402
from kubelet_cluster import wait_for  # noqa: E402
from test_agent import api  # noqa: E402, F401

P = test_agent.P


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    so = tmp_path_factory.mktemp("nvml") / "libnvml.so"
    subprocess.run(["gcc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", so, HERE / "nvml_script.c"], check=True)
    return so


class GpuNode(test_agent.Node):
    def __init__(self, api, library):
        super().__init__(api)
        self.library, self.script = library, self.dir / "script"
        self.script.write_text("devices 2\n")

    def env(self, **more):
        return super().env(**{"BATON_NVML": str(self.library), "NVML_SCRIPT": str(self.script), "BATON_DEVICE_LOOK_MS": "100", **more})

    def happens(self, line):
        with open(self.script, "a") as f:
            f.write(line + "\n")

    def status(self):
        return (self.api.get("ninv", "local") or {}).get("status", {})

    def gpu(self, i):
        return next((d for d in self.status().get("devices", []) if d["name"] == f"gpu{i}"), {})

    def restart(self):
        self.agent.kill()
        self.agent.wait()
        self.start_agent()

    def worker(self, devices):
        w = self.pod().start(NVIDIA_VISIBLE_DEVICES=devices)
        w.wait_active()
        return w


@pytest.fixture
def node(api, library):  # noqa: F811
    n = GpuNode(api, library)
    n.start_agent()
    yield n
    n.close()


def fault(w):
    return json.loads(w.notes().get("device-fault", "null"))


def test_devices_are_listed_beside_the_cpu(node):
    wait_for(lambda: node.gpu(1), message="the inventory")
    assert node.gpu(0) == {"name": "gpu0", "kind": "gpu", "model": "Scripted GPU", "uuid": "GPU-scripted-0", "memoryBytes": 80 << 30,
                           "healthy": True}
    assert node.status()["devices"][0]["kind"] == "cpu"


def test_an_application_fault_restarts_the_ranks_of_that_device_in_place(node):
    hit, other = node.worker("GPU-scripted-0"), node.worker("GPU-scripted-1")
    pid = other.worker_pid()
    node.happens("xid 0 31")
    wait_for(lambda: len(hit.told("start")) == 2, message="the restart")
    crash = wait_for(lambda: json.loads(hit.notes().get("last-crash", "null")))
    assert crash["reason"] == "DeviceFault" and "Xid 31: memory page fault" in crash["message"]
    hit.wait_active()
    assert other.worker_pid() == pid and len(other.told("start")) == 1
    wait_for(lambda: node.gpu(0).get("action") == "Restart" and node.gpu(0)["healthy"])
    wait_for(lambda: (fault(hit) or {}).get("action") == "Restart")
    assert fault(other) is None


def test_restarts_that_do_not_help_become_a_drain_and_then_a_quarantine(node):
    w = node.worker("0")
    for _ in range(3):
        node.happens("xid 0 13")
    wait_for(lambda: (fault(w) or {}).get("action") == "Drain")
    assert "restarts did not help" in fault(w)["reason"]
    for _ in range(2):
        node.happens("xid 0 121")
    wait_for(lambda: node.gpu(0).get("action") == "QuarantineDevice")
    assert not node.gpu(0)["healthy"] and node.gpu(1)["healthy"]
    wait_for(lambda: w.gate().get("reason") == "DeviceFault")


def test_memory_errors_quarantine_the_device_and_outlive_the_agent(node):
    w = node.worker("GPU-scripted-1")
    node.happens("ecc 1 2")
    wait_for(lambda: node.gpu(1).get("action") == "QuarantineDevice")
    assert "2 uncorrected ECC errors" in node.gpu(1)["reason"]
    wait_for(lambda: w.gate().get("status") == "False" and w.gate()["reason"] == "DeviceFault")
    node.restart()
    wait_for(lambda: (node.debug() or {}).get("launchers"))
    late = node.pod().start(NVIDIA_VISIBLE_DEVICES="GPU-scripted-1")
    wait_for(lambda: late.gate().get("reason") == "DeviceFault", message="a new pod there")
    wait_for(lambda: late.notes().get("incarnation"), message="its worker, which waits for nothing but the gate")
    time.sleep(1.5)  # nothing of the pod changes any more: only the lift can open it
    node.api.kubectl("annotate", "ninv", "local", f"{P}lift-quarantine=GPU-scripted-1", "--overwrite")
    wait_for(lambda: node.gpu(1).get("healthy"), message="lifted")
    late.wait_active()
    wait_for(lambda: fault(late) is None, message="the note is gone")
    node.restart()  # lifted once: not again for a new fault
    node.happens("xid 1 48")
    wait_for(lambda: node.gpu(1).get("healthy") is False)


def test_a_fault_that_is_forgiven_is_not_on_the_pod_any_more(node):
    w = node.worker("0")
    node.happens("xid 0 31")
    wait_for(lambda: (fault(w) or {}).get("action") == "Restart")
    node.agent.kill()
    node.agent.wait()
    node.script.write_text("devices 2\n")  # it would tell of the event once more
    state, = node.dir.rglob("devices.json")
    o = json.loads(state.read_text())
    node.start_agent()
    wait_for(lambda: node.gpu(0).get("action") == "Restart" and (node.debug() or {}).get("launchers"))
    time.sleep(0.5)
    assert fault(w)["action"] == "Restart", "a restart of the agent forgives nothing"
    node.agent.kill()
    node.agent.wait()
    o["devices"]["GPU-scripted-0"]["at"] -= 2 * 3600 * 10**9
    state.write_text(json.dumps(o))
    node.start_agent()
    wait_for(lambda: fault(w) is None, message="the note is gone")
    assert node.gpu(0)["healthy"]


def test_a_lighter_fault_does_not_lift_a_quarantine(node):
    node.worker("0")
    node.happens("xid 0 48")
    wait_for(lambda: node.gpu(0).get("action") == "QuarantineDevice")
    node.happens("xid 0 31")
    wait_for(lambda: "Xid 31" in (node.dir / "agent.log").read_text())
    time.sleep(0.5)
    assert node.gpu(0)["action"] == "QuarantineDevice" and not node.gpu(0)["healthy"]


def test_a_lost_device_quarantines_the_node(node):
    node.worker("1")
    node.happens("lost 0")
    wait_for(lambda: node.status().get("quarantined"))
    assert "does not answer" in node.status()["quarantined"] and node.gpu(0)["action"] == "QuarantineNode"


def test_what_needs_no_action_is_only_noted(node):
    w = node.worker("0")
    node.happens("xid 0 63")
    wait_for(lambda: "Xid 63" in node.gpu(0).get("reason", ""))  # events and other signs come by ways of their own
    node.happens("throttle 0 on")
    wait_for(lambda: "hardware" in node.gpu(0).get("reason", ""))
    assert node.gpu(0)["healthy"] and "action" not in node.gpu(0) and fault(w) is None and len(w.told("start")) == 1


def test_other_signs_are_seen_where_events_are_not(node):
    node.happens("noevents")
    node.restart()
    node.happens("remap 0 failed")
    wait_for(lambda: node.gpu(0).get("action") == "QuarantineDevice")


def test_an_agent_without_a_driver_serves_cpus(node):
    node.happens("broken")
    node.restart()
    w = node.pod().start()
    w.wait_active()
    r = subprocess.run(["curl", "-s", f"http://127.0.0.1:{node.port}/healthz"], capture_output=True, text=True)
    assert r.stdout == "ok\n" and "Driver Not Loaded" in (node.dir / "agent.log").read_text()
