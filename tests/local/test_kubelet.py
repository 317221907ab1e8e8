"""The process kubelet: real kubectl, real processes."""
import calendar
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from kubelet_cluster import Cluster, patience, processes_with, wait_for  # noqa: E402


@pytest.fixture(scope="module")
def cluster():
    c = Cluster("--backoff-ms", "300")
    yield c
    c.close()


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_the_node_is_ready_and_renews_its_lease(cluster):
    node = wait_for(lambda: (cluster.get("node", "local") or {}).get("status", {}).get("conditions") and cluster.get("node", "local"))
    assert {c["type"]: c["status"] for c in node["status"]["conditions"]}["Ready"] == "True"
    assert int(node["status"]["capacity"]["memory"].removesuffix("Ki")) > 100_000
    lease = wait_for(lambda: cluster.get("lease", "local", "kube-node-lease"))
    assert lease["spec"]["holderIdentity"] == "local"


def test_a_pod_is_bound_and_runs_its_command(cluster):
    cluster.pod("plain", ["sh", "-c", "echo hello; sleep 1000"])
    cluster.wait_running("plain")
    p = cluster.get("pod", "plain")
    assert p["spec"]["nodeName"] == "local" and re.match(r"127\.\d+\.\d+\.\d+$", p["status"]["podIP"])
    assert cluster.condition("plain", "Ready") == "True" and p["status"]["phase"] == "Running"
    wait_for(lambda: "hello" in cluster.logs("plain"), message="its log")
    pid = cluster.main_pid("plain")
    cluster.kubectl("delete", "pod", "plain", "--grace-period=1")
    assert not alive(pid) and cluster.get("pod", "plain") is None


def test_pods_have_different_addresses(cluster):
    for n in ("ip-a", "ip-b"):
        cluster.pod(n, ["sleep", "1000"])
    ips = [wait_for(lambda n=n: cluster.status(n).get("podIP")) for n in ("ip-a", "ip-b")]
    assert ips[0] != ips[1]
    cluster.kubectl("delete", "pod", "ip-a", "ip-b", "--grace-period=1")


def test_the_environment_and_volumes_are_as_the_pod_says(cluster):
    cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"secret": "hush"}})
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"k": "v", "file.txt": "text"}})
    script = ("echo $A $IP $NODE $CPU $MEM $S $M $UNSET $(cat $DIR/secret) $(cat $CONF/file.txt) $(cat $DOWN/labels); "
              "echo x > $TMP/x && echo $TMP $SHM $MODEL; sleep 1000")
    cluster.pod("env", ["sh", "-c", script], metadata={"labels": {"app": "envtest"}}, container={
        "env": [
            {"name": "BASE", "value": "one"}, {"name": "A", "value": "$(BASE)-$(NONE)-$$(BASE)"},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
            {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1"}}},
            {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "secret"}}},
            {"name": "M", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
            {"name": "UNSET", "valueFrom": {"secretKeyRef": {"name": "none", "key": "x", "optional": True}}},
            {"name": "DIR", "value": "/etc/peer"}, {"name": "CONF", "value": "/etc/conf"}, {"name": "DOWN", "value": "/etc/down"},
            {"name": "TMP", "value": "/scratch"}, {"name": "SHM", "value": "/dev/shm"},
            {"name": "MODEL", "value": "file:///var/lib/baton/models/a.gguf"}],
        "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}},
        "volumeMounts": [{"name": n, "mountPath": p} for n, p in (
            ("peer", "/etc/peer"), ("conf", "/etc/conf"), ("down", "/etc/down"), ("tmp", "/scratch"), ("shm", "/dev/shm"),
            ("models", "/var/lib/baton/models"))]},
        volumes=[{"name": "peer", "secret": {"secretName": "s", "defaultMode": 256}}, {"name": "conf", "configMap": {"name": "m"}},
                 {"name": "down", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                 {"name": "tmp", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}},
                 {"name": "models", "hostPath": {"path": "/var/lib/baton/models"}}])
    cluster.wait_running("env")
    out = wait_for(lambda: (lambda t: t if t.count("\n") >= 2 else None)(cluster.logs("env")))
    first, second = out.splitlines()[:2]
    words = first.split()
    assert words[0] == "one-$(NONE)-$(BASE)" and words[2:7] == ["local", "1500", str(64 << 20), "hush", "v"]
    assert words[7:] == ["hush", "text", 'app="envtest"'] and words[1] == cluster.status("env")["podIP"]
    tmp, shm, model = second.split()
    assert tmp.startswith(str(cluster.data.resolve())) and shm.startswith("/dev/shm/baton-") and model.endswith("/models/a.gguf")
    assert (pathlib.Path(tmp) / "x").read_text() == "x\n"
    cluster.kubectl("delete", "pod", "env", "--grace-period=1")
    wait_for(lambda: not pathlib.Path(shm).exists() and not pathlib.Path(tmp).exists(), message="volumes removed")


def test_a_missing_secret_is_said_and_then_found(cluster):
    cluster.pod("late", ["sh", "-c", "echo $X; sleep 1000"],
                container={"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "later", "key": "x"}}}]})
    wait_for(lambda: cluster.container("late").get("state", {}).get("waiting", {}).get("reason") == "CreateContainerConfigError")
    assert "later" in cluster.container("late")["state"]["waiting"]["message"]
    cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "later"}, "stringData": {"x": "found"}})
    cluster.wait_running("late")
    wait_for(lambda: "found" in cluster.logs("late"))
    cluster.kubectl("delete", "pod", "late", "--grace-period=1")


def test_a_crashing_container_restarts_with_back_off(cluster):
    cluster.pod("crash", ["sh", "-c", "echo attempt; echo because >&2; exit 7"])
    at = {}

    def ever_later():  # 300 ms, doubling; where a look came late the next restarts tell
        at.setdefault(cluster.container("crash").get("restartCount", 0), time.monotonic())
        return any(n + 2 in at and n + 1 in at and at[n + 2] - at[n + 1] > (at[n + 1] - at[n]) * 1.2 for n in at)
    wait_for(ever_later)
    wait_for(lambda: cluster.container("crash").get("restartCount", 0) >= 2)
    wait_for(lambda: cluster.container("crash").get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff")
    last = cluster.container("crash")["lastState"]["terminated"]
    assert last["exitCode"] == 7 and last["reason"] == "Error" and last["message"] == "because"
    assert "attempt" in cluster.logs("crash", "--previous")
    assert cluster.status("crash")["phase"] == "Running"
    cluster.kubectl("delete", "pod", "crash", "--grace-period=1")


@pytest.mark.parametrize("policy,code,phase", [("Never", 0, "Succeeded"), ("Never", 3, "Failed"), ("OnFailure", 0, "Succeeded")])
def test_restart_policies_end_in_the_right_phase(cluster, policy, code, phase):
    name = f"once-{policy.lower()}-{code}"
    cluster.pod(name, ["sh", "-c", f"exit {code}"], restartPolicy=policy)
    cluster.wait_phase(name, phase)
    t = cluster.container(name)["state"]["terminated"]
    assert t["exitCode"] == code and t["reason"] == ("Completed" if code == 0 else "Error")
    assert cluster.container(name)["restartCount"] == 0
    cluster.kubectl("delete", "pod", name)


def test_a_signal_is_in_the_status(cluster):
    cluster.pod("sig", ["sleep", "1000"], restartPolicy="Never")
    cluster.wait_running("sig")
    os.kill(cluster.main_pid("sig"), signal.SIGSEGV)
    cluster.wait_phase("sig", "Failed")
    t = cluster.container("sig")["state"]["terminated"]
    assert t["signal"] == signal.SIGSEGV and t["exitCode"] == 128 + signal.SIGSEGV
    cluster.kubectl("delete", "pod", "sig")


def test_init_containers_run_first_and_in_order(cluster):
    cluster.pod("inits", ["sh", "-c", "cat $D/o; sleep 1000"], container={
        "env": [{"name": "D", "value": "/d"}], "volumeMounts": [{"name": "d", "mountPath": "/d"}]},
        initContainers=[{"name": f"i{n}", "image": "none", "command": ["sh", "-c", f"sleep 0.2; echo {n} >> $D/o"],
                         "env": [{"name": "D", "value": "/d"}], "volumeMounts": [{"name": "d", "mountPath": "/d"}]}
                        for n in (1, 2)], volumes=[{"name": "d", "emptyDir": {}}])
    cluster.wait_running("inits")
    wait_for(lambda: cluster.logs("inits") == "1\n2\n")
    assert all(c["state"]["terminated"]["exitCode"] == 0 for c in cluster.status("inits")["initContainerStatuses"])
    cluster.kubectl("delete", "pod", "inits", "--grace-period=1")


def test_grace_ends_in_a_kill_of_everything_the_pod_started(cluster):
    cluster.pod("deaf", ["sh", "-c", "trap '' TERM; sleep 1001 & setsid sleep 1002 & echo ready; while :; do sleep 0.1; done"])
    cluster.wait_running("deaf")
    wait_for(lambda: "ready" in cluster.logs("deaf"))
    begin = time.monotonic()
    cluster.kubectl("delete", "pod", "deaf", "--grace-period=1")
    assert 0.8 < time.monotonic() - begin < patience(6)
    left = subprocess.run(["pgrep", "-f", "sleep 100[12]$"], capture_output=True, text=True).stdout.split()
    assert not [p for p in left if alive(int(p))]


def test_a_term_that_is_heeded_ends_the_pod_at_once(cluster):
    cluster.pod("polite", ["sh", "-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"])
    cluster.wait_running("polite")
    wait_for(lambda: "ready" in cluster.logs("polite"))
    begin = time.monotonic()
    cluster.kubectl("delete", "pod", "polite", "--grace-period=600", timeout=500)
    assert time.monotonic() - begin < patience(10)


def test_probes_of_every_kind(cluster):
    serve = ("import http.server, os, threading\n"
             "class H(http.server.BaseHTTPRequestHandler):\n"
             "    def do_GET(self):\n"
             "        bad = os.path.exists(os.environ['D'] + self.path)\n"
             "        self.send_response(500 if bad else 200); self.end_headers()\n"
             "    def log_message(self, *a): pass\n"
             "http.server.ThreadingHTTPServer((os.environ['IP'], 8000), H).serve_forever()\n")
    cluster.pod("probed", [sys.executable, "-c", serve], container={
        "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}, {"name": "D", "value": "/d"}],
        "ports": [{"name": "http", "containerPort": 8000}], "volumeMounts": [{"name": "d", "mountPath": "/d"}],
        "startupProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 1, "failureThreshold": 60},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 1, "failureThreshold": 1},
        "livenessProbe": {"exec": {"command": ["sh", "-c", "test ! -e $D/dead"]}, "periodSeconds": 1, "failureThreshold": 2}},
        volumes=[{"name": "d", "emptyDir": {}}], terminationGracePeriodSeconds=1)
    wait_for(lambda: cluster.condition("probed", "Ready") == "True")
    d = cluster.data / "pods" / cluster.get("pod", "probed")["metadata"]["uid"] / "volumes/d"
    (d / "readyz").touch()
    wait_for(lambda: cluster.condition("probed", "Ready") == "False")
    assert cluster.container("probed")["restartCount"] == 0
    (d / "readyz").unlink()
    wait_for(lambda: cluster.condition("probed", "Ready") == "True")
    (d / "dead").touch()
    wait_for(lambda: cluster.container("probed")["restartCount"] == 1)
    (d / "dead").unlink()
    wait_for(lambda: cluster.condition("probed", "Ready") == "True")
    events = cluster.kubectl("get", "events", "-o", "json").stdout
    assert "Unhealthy" in events and "Killing" in events
    cluster.kubectl("delete", "pod", "probed", "--grace-period=1")


def test_readiness_gates_hold_ready_back(cluster):
    cluster.pod("gated", ["sleep", "1000"], readinessGates=[{"conditionType": "example.com/gate"}])
    cluster.wait_running("gated")
    wait_for(lambda: cluster.condition("gated", "ContainersReady") == "True")
    assert cluster.condition("gated", "Ready") == "False"
    for value in ("True", "False"):
        cluster.kubectl("patch", "pod", "gated", "--subresource=status", "-p", json.dumps(
            {"status": {"conditions": [{"type": "example.com/gate", "status": value}]}}))
        wait_for(lambda: cluster.condition("gated", "Ready") == value)
    assert cluster.condition("gated", "example.com/gate") == "False"  # the kubelet left it alone
    cluster.kubectl("delete", "pod", "gated", "--grace-period=1")


def test_logs_tail_since_follow_and_rotate(cluster):
    cluster.pod("talk", ["sh", "-c", "for i in $(seq 1 20); do echo line $i; done; sleep 4; echo late; sleep 1000"])
    cluster.wait_running("talk")
    wait_for(lambda: "line 20" in cluster.logs("talk"))
    assert cluster.logs("talk", "--tail=2") == "line 19\nline 20\n"
    assert re.match(r"\d{4}-\d\d-\d\dT\S+Z line 20\n$", cluster.logs("talk", "--tail=1", "--timestamps"))
    assert cluster.logs("talk", "--limit-bytes=8") == "line 1\nl"
    assert "not found" in cluster.kubectl("logs", "talk", "--previous", check=False).stderr
    f = subprocess.Popen([str(x) for x in (cluster.kubectl.__globals__["KUBECTL"], "--kubeconfig", cluster.kubeconfig, "logs", "-f",
                                           "talk")], stdout=subprocess.PIPE, text=True)
    wait_for(lambda: "late" in cluster.logs("talk"))
    at = re.match(r"\S+", cluster.logs("talk", "--tail=1", "--timestamps"))[0][:19]
    late = calendar.timegm(time.strptime(at, "%Y-%m-%dT%H:%M:%S"))
    # Between the two lie four seconds; kubectl takes some of them.
    wait_for(lambda: cluster.logs("talk", f"--since={int(time.time() - late) + 2}s") == "late\n")
    cluster.kubectl("delete", "pod", "talk", "--grace-period=1")
    out, _ = f.communicate(timeout=patience(10))
    assert out.splitlines() == [f"line {i}" for i in range(1, 21)] + ["late"]


def test_static_pods_have_mirrors_and_follow_their_file(cluster):
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "static", "namespace": "made-for-it"},
                "spec": {"containers": [{"name": "main", "image": "none", "command": ["sleep", "1000"]}]}}
    path = cluster.data / "static/static.json"

    def mirror():
        p = cluster.get("pod", "static-local", "made-for-it")
        return p if p and p.get("status", {}).get("phase") == "Running" else None
    path.write_text(json.dumps(manifest))
    first = wait_for(mirror)
    cluster.kubectl("delete", "pod", "static-local", "-n", "made-for-it", "--force", "--grace-period=0")
    again = wait_for(lambda: (lambda p: p if p and p["metadata"]["uid"] != first["metadata"]["uid"] else None)(mirror()))
    assert again["status"]["containerStatuses"][0]["containerID"] == first["status"]["containerStatuses"][0]["containerID"]
    manifest["spec"]["containers"][0]["command"] = ["sleep", "1003"]
    path.write_text(json.dumps(manifest))
    wait_for(lambda: (lambda p: p and p["spec"]["containers"][0]["command"] == ["sleep", "1003"])(mirror()))
    path.unlink()
    wait_for(lambda: cluster.get("pod", "static-local", "made-for-it") is None)


def test_a_pod_that_does_not_fit_says_so_and_runs_when_there_is_room(cluster):
    cluster.pod("huge", ["sleep", "1000"], container={"resources": {"requests": {"memory": "64Ti"}}})
    wait_for(lambda: cluster.condition("huge", "PodScheduled") == "False")
    why = [c for c in cluster.status("huge")["conditions"] if c["type"] == "PodScheduled"][0]
    assert why["reason"] == "Unschedulable" and "Insufficient memory" in why["message"]
    cluster.kubectl("delete", "pod", "huge")
    assert cluster.get("pod", "huge") is None


def test_a_cordoned_node_takes_no_pod_until_it_is_uncordoned(cluster):
    cluster.kubectl("cordon", "local")
    try:
        cluster.pod("corded", ["sleep", "1000"])
        wait_for(lambda: "unschedulable" in json.dumps(cluster.status("corded")))
    finally:
        cluster.kubectl("uncordon", "local")
    cluster.kubectl("annotate", "pod", "corded", "look=again")
    cluster.wait_running("corded")
    cluster.kubectl("delete", "pod", "corded", "--grace-period=1")


def test_a_killed_shim_leaves_no_process_and_the_container_restarts(cluster):
    cluster.pod("shimless", ["sh", "-c", "setsid sleep 1011 & sleep 1012"])
    cluster.wait_running("shimless")
    pid = cluster.main_pid("shimless")
    wait_for(lambda: subprocess.run(["pgrep", "-f", "^sleep 1011"], capture_output=True).returncode == 0)
    old = subprocess.run(["pgrep", "-f", "^sleep 101[12]"], capture_output=True, text=True).stdout.split()
    os.kill(int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]), signal.SIGKILL)
    wait_for(lambda: cluster.container("shimless").get("restartCount") == 1)
    assert not [p for p in [*old, pid] if alive(int(p))]
    assert cluster.container("shimless")["lastState"]["terminated"]["exitCode"] == 137
    cluster.kubectl("delete", "pod", "shimless", "--grace-period=1")


def test_a_pod_without_a_command_is_refused_with_advice(cluster):
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "imageonly"},
                   "spec": {"containers": [{"name": "main", "image": "nginx"}]}})
    wait_for(lambda: "no command" in cluster.container("imageonly").get("state", {}).get("waiting", {}).get("message", ""))
    cluster.pod("nofile", ["/does/not/exist"])
    wait_for(lambda: "/does/not/exist" in json.dumps(cluster.container("nofile")))
    cluster.kubectl("delete", "pod", "imageonly", "nofile")


def test_an_active_deadline_fails_the_pod(cluster):
    cluster.pod("dead-line", ["sleep", "1000"], activeDeadlineSeconds=1, terminationGracePeriodSeconds=1)
    cluster.wait_phase("dead-line", "Failed")
    assert cluster.status("dead-line")["reason"] == "DeadlineExceeded"
    cluster.kubectl("delete", "pod", "dead-line")


def test_a_killed_kubelet_adopts_everything_and_restarts_nothing():
    c = Cluster()
    try:
        c.pod("keep", ["sh", "-c", "while :; do echo tick; sleep 0.1; done"])
        go = c.dir / "go"
        c.pod("ends", ["sh", "-c", f"while ! [ -e {go} ]; do sleep 0.05; done; exit 9"], restartPolicy="Never")
        c.pod("goes", ["sleep", "1000"])
        for n in ("keep", "ends", "goes"):
            c.wait_running(n)
        before = {n: (c.main_pid(n), c.status(n)["podIP"], c.container(n)["containerID"]) for n in ("keep", "goes")}
        for _ in range(3):
            c.kill()
            go.touch()
            c.start()
        for n, was in before.items():
            assert (c.main_pid(n), c.status(n)["podIP"], c.container(n)["containerID"]) == was
            assert alive(was[0]) and c.container(n)["restartCount"] == 0
        c.wait_phase("ends", "Failed")  # it ended while or after nobody watched: its code is not lost
        assert c.container("ends")["state"]["terminated"]["exitCode"] == 9
        ticks = c.logs("keep").count("tick")
        assert ticks  # what it said before and while nobody watched is kept, and what it says now still arrives
        wait_for(lambda: c.logs("keep").count("tick") > ticks)
        c.kubectl("delete", "pod", "goes", "--grace-period=1")
        assert not alive(before["goes"][0])
    finally:
        c.close()


def test_the_supervisor_restarts_baton_local_and_ends_everything():
    c = Cluster("--drain-seconds", "2", supervised=True)
    try:
        c.pod("keep", ["sh", "-c", "trap '' TERM; sleep 1004 & while :; do sleep 0.1; done"])
        c.wait_running("keep")
        pid, mark = c.main_pid("keep"), c.instance()
        c.kill()
        c.wait_api()
        assert alive(pid)
        c.p.send_signal(signal.SIGTERM)
        assert c.p.wait(patience(25)) == 0
        assert not alive(pid) and processes_with(mark) == []
    finally:
        c.close()


def test_cleanup_ends_what_a_killed_supervisor_left():
    c = Cluster(supervised=True)
    try:
        c.pod("left", ["sh", "-c", "setsid sleep 1005 & sleep 1006"])
        c.wait_running("left")
        mark = c.instance()
        assert processes_with(mark)
        os.kill(c.p.pid, signal.SIGKILL)
        c.p.wait()
        subprocess.run([c.p.args[0], "cleanup", "--data", c.data, "--grace", "1"], check=True, stdout=subprocess.DEVNULL)
        wait_for(lambda: processes_with(mark) == [], message="no process")
    finally:
        c.close()
