"""A cluster of baton-local alone, with its kubelet, for tests: real kubectl, real processes, a data folder of its own."""
import base64
import http.client
import json
import os
import pathlib
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from patience import patience  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("BATON_BUILD", ROOT / "build"))
CACHE = pathlib.Path(os.environ.get("BATON_CACHE", pathlib.Path.home() / ".cache/baton"))
KUBECTL = next((p for p in (CACHE / "bin/kubectl", CACHE / "k8s/kubectl") if p.exists()), "kubectl")


def wait_for(what, seconds=45, message="condition"):
    begin, last = time.monotonic(), None
    while time.monotonic() < begin + patience(seconds):
        last = what()
        if last:
            return last
        time.sleep(0.05)
    raise AssertionError(f"{message}: not within {time.monotonic() - begin:.0f} s (last: {last!r})")


def processes_with(entry):
    """pids whose environment holds NAME=value."""
    found = []
    for p in pathlib.Path("/proc").iterdir():
        if p.name.isdigit():
            try:
                env = (p / "environ").read_bytes().split(b"\0")
                if entry.encode() in env and (p / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                    found.append(int(p.name))
            except OSError:
                pass
    return found


class Cluster:
    def __init__(self, *args, supervised=False, kubelet=True):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-kubelet-"))
        self.data = self.dir / "data"
        self.kubeconfig = self.data / "kubeconfig"
        self.args = list(args) + ([] if kubelet else ["--no-kubelet"])
        self.supervised = supervised
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self):
        self.access = None
        serve = ["serve", "--data", str(self.data), *self.args]
        args = ["supervise", "--data", str(self.data), "--", *serve] if self.supervised else serve
        with open(self.dir / "log", "ab") as log:
            self.p = subprocess.Popen([BUILD / "bin/baton-local", *args], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                      start_new_session=True)
        self.wait_api()

    def wait_api(self):
        def up():
            assert self.p.poll() is None, self.log()
            return self.kubeconfig.exists() and self.http("/readyz")[0] == 200
        wait_for(up, 20, "the API")

    def log(self):
        return (self.dir / "log").read_text(errors="replace")[-4000:]

    def kubectl(self, *args, input=None, check=True, timeout=30):
        r = subprocess.run([KUBECTL, "--kubeconfig", self.kubeconfig, *map(str, args)], input=input, text=True,
                           capture_output=True, timeout=patience(timeout))
        assert not check or r.returncode == 0, f"kubectl {' '.join(map(str, args))}: {r.stderr}\n{self.log()}"
        return r

    def apply(self, obj):
        return self.kubectl("apply", "-f", "-", input=json.dumps(obj))

    def http(self, path):
        """(status, body) of a GET: cheaper than kubectl where a test looks again and again."""
        config = json.loads(subprocess.run([KUBECTL, "--kubeconfig", self.kubeconfig, "config", "view", "--raw", "-o", "json"],
                                           capture_output=True, check=True).stdout) if not self.access else None
        if config:
            server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
            tls = ssl.create_default_context(cadata=base64.b64decode(server["certificate-authority-data"]).decode())
            self.access = (server["server"].removeprefix("https://"), tls, {"Authorization": "Bearer " + user["token"]})
        host, tls, headers = self.access
        c = http.client.HTTPSConnection(host, context=tls, timeout=patience(20))
        try:
            c.request("GET", path, headers=headers)
            r = c.getresponse()
            return r.status, r.read()
        except OSError:
            return 0, b""
        finally:
            c.close()

    def get(self, kind, name, ns="default"):
        where = {"pod": f"/api/v1/namespaces/{ns}/pods", "node": "/api/v1/nodes",
                 "lease": f"/apis/coordination.k8s.io/v1/namespaces/{ns}/leases",
                 "ninv": "/apis/serving.baton.dev/v1alpha1/nodeinventories"}[kind]
        status, body = self.http(f"{where}/{name}")
        return json.loads(body) if status == 200 else None

    def pod(self, name, command, **spec):
        """Applies a pod of one container `main`."""
        main = {"name": "main", "image": "none", "command": command, **spec.pop("container", {})}
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **spec.pop("metadata", {})},
                    "spec": {"containers": [main], **spec}})

    def status(self, name):
        p = self.get("pod", name)
        return (p or {}).get("status", {})

    def container(self, name):
        return (self.status(name).get("containerStatuses") or [{}])[0]

    def wait_running(self, name, seconds=15):
        return wait_for(lambda: self.container(name).get("state", {}).get("running"), seconds, f"{name} runs")

    def wait_phase(self, name, phase, seconds=15):
        return wait_for(lambda: self.status(name).get("phase") == phase, seconds, f"{name} {phase}: {self.status(name)}")

    def condition(self, name, kind):
        for c in self.status(name).get("conditions", []):
            if c["type"] == kind:
                return c["status"]
        return None

    def main_pid(self, name):
        uid = self.get("pod", name)["metadata"]["uid"]
        runs = sorted((self.data / "pods" / uid / "c" / "main").glob("*/run.json"), key=lambda p: int(p.parent.name))
        return json.loads(runs[-1].read_text())["main"]["pid"]

    def logs(self, name, *args, check=True):
        if not args:
            return self.http(f"/api/v1/namespaces/default/pods/{name}/log")[1].decode()
        return self.kubectl("logs", name, *args, check=check).stdout

    def kill(self):
        """kill -9 of the process that serves."""
        if self.supervised:
            child = int(subprocess.run(["pgrep", "-P", str(self.p.pid)], capture_output=True, text=True).stdout.split()[0])
            os.kill(child, signal.SIGKILL)
            return child
        self.p.kill()
        self.p.wait()

    def instance(self):
        """What marks this cluster's processes."""
        for d in (self.data / "pods").glob("*/c/*/*/run.json"):
            pid = json.loads(d.read_text())["main"]["pid"]
            try:
                for e in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    if e.startswith(b"BATON_INSTANCE="):
                        return e.decode()
            except OSError:
                pass
        return None

    def close(self):
        if self.p.poll() is None:
            self.p.terminate()
            try:
                self.p.wait(patience(20))
            except subprocess.TimeoutExpired:
                self.p.kill()
                self.p.wait()
        subprocess.run([BUILD / "bin/baton-local", "cleanup", "--data", self.data, "--grace", "0"], stdout=subprocess.DEVNULL)
        shutil.rmtree(self.dir, ignore_errors=True)
