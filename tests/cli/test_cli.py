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


# ---- kubectl baton: on the cluster that the tests above left running ----

def plugin(cluster, *args, timeout=240):
    """As kubectl runs it: `kubectl baton …`, with kubectl's own kubeconfig."""
    path = f"{BUILD / 'bin'}:{os.environ['PATH']}"
    return subprocess.run([KUBECTL, "baton", *map(str, args)], capture_output=True, text=True, timeout=timeout,
                          env={**os.environ, "PATH": path, "KUBECONFIG": str(cluster.kubeconfig)})


@pytest.fixture(scope="module")
def chat(cluster):
    """The deployment `chat`, ready."""
    cluster.up()
    r = baton("run", "Hello", "--data", cluster.data, "--max-tokens", 2)
    assert r.returncode == 0, r.stderr
    return cluster


def test_kubectl_finds_the_plugin_and_its_flags(chat):
    assert "kubectl baton VERB" in plugin(chat, "--help").stdout
    r = plugin(chat, "status", "--once", "-n", "default", "chat")
    assert r.returncode == 0 and "default/chat" in r.stdout and "prefill 1/1" in r.stdout, r
    assert "default/chat" not in plugin(chat, "status", "--once", "-n", "kube-system").stdout
    assert "default/chat" in plugin(chat, "status", "--once", "-A").stdout
    r = plugin(chat, "status", "--once", "--context", "nowhere")
    assert r.returncode == 1 and 'no context "nowhere"' in r.stderr
    r = plugin(chat, "status", "--once", "--kubeconfig", "/nonexistent")
    assert r.returncode == 1 and "/nonexistent" in r.stderr


def test_kubeconfigs_merge_and_programs_make_credentials(chat, tmp_path):
    config = json.loads(chat.kubectl("config", "view", "--raw", "-o", "json").stdout)
    token = config["users"][0]["user"].pop("token")
    (tmp_path / "token.sh").write_text('#!/bin/sh\necho "{\\"apiVersion\\":\\"client.authentication.k8s.io/v1\\",\\"kind\\":\\"ExecCredential\\",'
                                       f'\\"status\\":{{\\"token\\":\\"${{PREFIX}}{token[4:]}\\"}}}}"\n')
    (tmp_path / "token.sh").chmod(0o755)
    config["users"][0]["user"]["exec"] = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(tmp_path / "token.sh"),
                                          "env": [{"name": "PREFIX", "value": token[:4]}], "interactiveMode": "Never"}
    users = {"apiVersion": "v1", "kind": "Config", "users": config.pop("users")}
    (tmp_path / "a").write_text(json.dumps(users))
    (tmp_path / "b").write_text(json.dumps(config))
    env = {**os.environ, "KUBECONFIG": f"{tmp_path}/a:{tmp_path}/b:{tmp_path}/absent"}
    r = subprocess.run([BUILD / "bin/kubectl-baton", "status", "--once"], capture_output=True, text=True, timeout=60, env=env)
    assert r.returncode == 0 and "default/chat" in r.stdout, r
    (tmp_path / "token.sh").unlink()
    r = subprocess.run([BUILD / "bin/kubectl-baton", "status", "--once"], capture_output=True, text=True, timeout=60, env=env)
    assert r.returncode == 1 and "not installed" in r.stderr


def spec(cluster):
    return json.loads(cluster.kubectl("get", "infd", "chat", "-o", "json").stdout)["spec"]


def test_rollout_history_status_undo_pause_and_resume(chat):
    before = spec(chat)
    assert plugin(chat, "rollout", "status", "chat", "--timeout", 120).returncode == 0
    r = plugin(chat, "rollout", "undo", "chat")
    assert r.returncode == 1 and "no revision before" in r.stderr, r
    assert plugin(chat, "rollout", "pause", "chat").returncode == 0 and spec(chat)["rollout"]["paused"] is True
    patch = {"spec": {"kvCache": {"size": "192Mi"}, "decode": {"resources": {"limits": {"memory": "1100Mi"}, "requests": {"memory": "400Mi"}}}}}
    chat.kubectl("patch", "infd", "chat", "--type=merge", "-p", json.dumps(patch))
    r = wait_for(lambda: (lambda r: r if "paused" in r.stderr else None)(plugin(chat, "rollout", "status", "infd/chat", "--no-wait")), 30, "paused")
    assert r.returncode == 1 and "rollout resume chat" in r.stderr
    assert plugin(chat, "rollout", "resume", "chat").returncode == 0
    r = plugin(chat, "rollout", "status", "chat", "--timeout", 180)
    assert r.returncode == 0 and "decode: 1 of 1 updated" in r.stderr, r
    r = plugin(chat, "rollout", "history", "chat")
    rows = r.stdout.splitlines()[1:]
    assert len(rows) == 2 and "kvCache.size" in rows[1] and "192Mi" in rows[1] and "wanted" in rows[1], r.stdout
    assert plugin(chat, "rollout", "undo", "chat").returncode == 0
    assert plugin(chat, "rollout", "status", "chat", "--timeout", 180).returncode == 0
    after = spec(chat)
    after["rollout"].pop("paused"), before["rollout"].pop("paused", None)
    assert after == before
    r = plugin(chat, "rollout", "undo", "chat", "--to-revision", 99)
    assert r.returncode == 1 and "revision 99 is not kept" in r.stderr
    assert plugin(chat, "rollout", "sideways", "chat").returncode == 2
    assert "no" in plugin(chat, "rollout", "status", "nobody").stderr.lower()


def test_drain_of_a_pod_waits_until_it_is_gone_and_another_serves(chat):
    chat.kubectl("scale", "wp/chat-decode", "--replicas=2")
    wait_for(lambda: "decode: 2 of 2" in plugin(chat, "rollout", "status", "chat", "--timeout", 120).stderr, 120)
    pod = chat.kubectl("get", "pods", "-l", "serving.baton.dev/role=decode", "-o", "name").stdout.split()[0]
    stream = subprocess.Popen([BATON, "run", "Tell me a long story.", "--data", chat.data, "--max-tokens", "200"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    r = plugin(chat, "drain", pod, "--timeout", 120)
    assert r.returncode == 0 and "is gone after" in r.stderr, r
    out, err = stream.communicate(timeout=120)
    assert stream.returncode == 0 and len(out.split()) > 20, err
    assert pod.split("/")[1] not in chat.kubectl("get", "pods", "-o", "name").stdout
    r = plugin(chat, "drain", "pod/baton-router-local", "-n", "baton-system")
    assert r.returncode == 1 and "not a worker" in r.stderr
    assert plugin(chat, "drain", "service/x").returncode == 1


def test_drain_of_a_node_cordons_it_and_evicts_within_the_budgets(chat):
    node = chat.kubectl("get", "nodes", "-o", "name").stdout.split()[0]
    chat.kubectl("patch", "infd", "chat", "--type=merge", "-p", '{"spec":{"prefill":{"replicas":0},"decode":{"replicas":0}}}')
    wait_for(lambda: not chat.kubectl("get", "pods", "-o", "name").stdout.split(), 60, "no workers")
    r = plugin(chat, "drain", node, "--timeout", 60)
    assert r.returncode == 0 and "is cordoned" in r.stderr and "no workers any more" in r.stderr, r
    assert json.loads(chat.kubectl("get", node, "-o", "json").stdout)["spec"]["unschedulable"] is True
    chat.kubectl("uncordon", node.split("/")[1])
    chat.kubectl("patch", "infd", "chat", "--type=merge", "-p", '{"spec":{"prefill":{"replicas":1},"decode":{"replicas":1}}}')
    assert plugin(chat, "rollout", "status", "chat", "--timeout", 120).returncode == 0
    r = plugin(chat, "drain", node, "--timeout", 12)  # the only node: nothing can take over
    text = r.stderr
    chat.kubectl("uncordon", node.split("/")[1])
    assert "is cordoned" in text and (r.returncode == 0 or "still on" in text), r
