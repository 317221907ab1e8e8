"""The verbs of `baton`, with the real programs."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "local"))
from kubelet_cluster import BUILD, CACHE, KUBECTL, processes_with, wait_for  # noqa: E402

BATON = BUILD / "bin/baton"
SMOLLM = CACHE / "models/SmolLM2-135M-Instruct.Q4_1.gguf"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def baton(*args, timeout=180, **kw):
    return subprocess.run([BATON, *map(str, args)], capture_output=True, text=True, timeout=timeout, **kw)


class Up:
    def __init__(self, folder):
        self.data, self.port = folder / "state", free_port()
        self.kubeconfig = self.data / "kubeconfig"

    def up(self, *args, **kw):
        return baton("up", "--detach", "--data", self.data, "--port", self.port, *args, **kw)

    def down(self, *args):
        return baton("down", "--data", self.data, *args)

    def kubectl(self, *args):
        return subprocess.run([KUBECTL, "--kubeconfig", self.kubeconfig, *args], capture_output=True, text=True, timeout=60)

    def supervisor(self):
        return json.loads((self.data / "supervisor.json").read_text())["pid"]

    def mark(self):
        """What this cluster's processes carry in their environment."""
        for d in (self.data / "pods").glob("*/c/*/*/run.json"):
            pid = json.loads(d.read_text())["main"]["pid"]
            try:
                for e in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    if e.startswith(b"BATON_INSTANCE="):
                        return e.decode()
            except OSError:
                pass  # of an earlier attempt
        raise AssertionError("nothing runs")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    u = Up(tmp_path_factory.mktemp("cli"))
    r = u.up()
    assert r.returncode == 0, r.stderr
    yield u
    u.down("--purge")


def test_help_names_every_verb_and_wrong_usage_is_told():
    text = baton("--help").stdout
    for verb in ("up", "down", "run", "status", "score", "plan"):
        assert f"  {verb} " in text
        r = baton(verb, "--help")
        assert r.returncode == 0 and f"baton {verb}" in r.stdout, verb
    assert baton("nonsense").returncode == 2 and "unknown verb" in baton("nonsense").stderr
    assert baton("up", "--nonsense").returncode == 2
    assert baton("--version").stdout.startswith("baton ")


def test_up_makes_a_cluster_and_is_idempotent(cluster):
    r = cluster.up()
    assert r.returncode == 0 and "already running" in r.stderr
    pods = cluster.kubectl("get", "pods", "-n", "baton-system").stdout
    for part in ("agent", "controller", "router"):
        assert f"baton-{part}-local" in pods
    crds = cluster.kubectl("get", "crd").stdout
    assert all(x in crds for x in ("inferencedeployments", "workerpools", "nodeinventories"))
    assert cluster.kubectl("get", "infd").returncode == 0
    with socket.create_connection(("127.0.0.1", cluster.port), 5):
        pass


def test_ctrl_c_ends_a_cluster_in_the_foreground(tmp_path):
    log = open(tmp_path / "log", "w+")
    p = subprocess.Popen([BATON, "up", "--data", tmp_path / "fg", "--port", str(free_port())], stderr=log, start_new_session=True)
    wait_for(lambda: "Ctrl-C" in (tmp_path / "log").read_text(), 30, "up")
    p.send_signal(signal.SIGINT)
    assert p.wait(30) == 0, (tmp_path / "log").read_text()
    assert not (tmp_path / "fg/supervisor.json").exists()
    assert "nothing was running" in baton("down", "--data", tmp_path / "fg").stderr


def test_a_taken_port_and_a_foreign_folder_are_clear_errors(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        r = baton("up", "--detach", "--data", tmp_path / "x", "--port", s.getsockname()[1])
    assert r.returncode == 1 and "is taken by another program" in r.stderr and "--port" in r.stderr
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("do not touch")
    r = baton("up", "--detach", "--data", tmp_path / "mine", "--port", free_port())
    assert r.returncode == 1 and "holds no cluster" in r.stderr and sorted(os.listdir(tmp_path / "mine")) == ["thesis.txt"]


def test_status_shows_the_cluster_as_text_and_json(cluster):
    r = baton("status", "--once", "--data", cluster.data)
    assert r.returncode == 0 and "router" in r.stdout and "\033" not in r.stdout
    o = json.loads(baton("status", "--once", "--json", "--data", cluster.data).stdout)
    assert o["router_up"] is True and isinstance(o["deployments"], list)
    r = baton("status", "--once", "--data", cluster.data / "nothing")
    assert r.returncode == 1 and "baton up" in r.stderr


def test_run_without_a_question_says_how():
    r = baton("run")
    assert r.returncode == 2 and "question" in r.stderr


def test_score_is_the_workers_own():
    a = baton("score", "--model", SMOLLM, "--ids", "504,3575,282,4649,314")
    b = subprocess.run([BUILD / "bin/baton-worker", "--score", "--model", SMOLLM, "--ids", "504,3575,282,4649,314"],
                       capture_output=True, text=True)
    assert a.returncode == 0 and a.stdout == b.stdout
    assert [x["id"] for x in json.loads(a.stdout)] == [504, 3575, 282, 4649, 314]


def test_run_answers_from_the_deployed_model(cluster):
    r = baton("run", "What is the capital of France?", "--data", cluster.data, "--max-tokens", 40)
    assert r.returncode == 0, r.stderr
    assert len(r.stdout.split()) > 3 and "first token after" in r.stderr
    assert "prefilled by chat-" in r.stderr and "decoded by chat-" in r.stderr
    status = baton("status", "--once", "--data", cluster.data).stdout
    assert "prefill" in status and "decode" in status and "ready" in status
    r = baton("run", "Name a colour.", "--data", cluster.data, "--max-tokens", 4)
    assert r.returncode == 0 and r.stdout.strip()


def test_killed_parts_come_back(cluster):
    """kill -9 of baton-local, then of the supervisor: the same pods go on."""
    def system():
        return {c["containerID"] for p in json.loads(cluster.kubectl("get", "pods", "-A", "-o", "json").stdout)["items"]
                for c in p["status"]["containerStatuses"] if "running" in c["state"]}
    before = system()
    child = int(subprocess.run(["pgrep", "-P", str(cluster.supervisor())], capture_output=True, text=True).stdout.split()[0])
    os.kill(child, signal.SIGKILL)
    wait_for(lambda: cluster.kubectl("get", "--raw", "/readyz").returncode == 0, 20)
    assert system() == before
    os.kill(cluster.supervisor(), signal.SIGKILL)
    time.sleep(0.3)
    assert baton("status", "--once", "--data", cluster.data).returncode == 1
    r = cluster.up()
    assert r.returncode == 0, r.stderr
    assert system() == before


def test_down_leaves_no_process_and_up_goes_on(cluster):
    mark = cluster.mark()
    assert processes_with(mark)
    r = cluster.down()
    assert r.returncode == 0 and "keeps its data" in r.stderr, r.stderr
    assert processes_with(mark) == []
    assert not list(pathlib.Path("/dev/shm").glob(f"baton-{mark.split('=')[1]}*"))
    r = cluster.down()
    assert r.returncode == 0 and "nothing was running" in r.stderr
    r = cluster.up()
    assert r.returncode == 0, r.stderr
    assert cluster.kubectl("get", "infd", "chat").returncode == 0


def test_down_cleans_up_after_a_killed_supervisor(cluster):
    mark = cluster.mark()
    os.kill(cluster.supervisor(), signal.SIGKILL)
    r = cluster.down()
    assert r.returncode == 0, r.stderr
    wait_for(lambda: processes_with(mark) == [], 5)
