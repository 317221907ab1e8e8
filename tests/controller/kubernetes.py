"""A real control plane for tests: etcd, kube-apiserver and kube-controller-manager on random loopback ports.

Binaries come from ~/.cache/baton/k8s (built by the set-up targets). Everything lives in a temporary folder and dies with
stop().
"""
import base64
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from patience import patience  # noqa: E402

BIN = Path(os.environ.get("BATON_K8S_BIN", Path.home() / ".cache/baton/k8s"))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Cluster:
    """kubeconfig, kubectl() and stop()."""

    def __init__(self, controllers=("garbage-collector-controller",), api_args=(), manager_args=()):
        self.api_args, self.manager_args = api_args, manager_args  # or functions of the folder
        self.dir = Path(tempfile.mkdtemp(prefix="baton-k8s-"))
        self.procs = []
        self.token = secrets.token_hex(16)
        self.kubeconfig = self.dir / "kubeconfig"
        try:
            self._start(controllers)
        except BaseException:
            self.stop()
            raise

    def _spawn(self, name, *args):
        log = open(self.dir / f"{name}.log", "wb")
        self.procs.append(subprocess.Popen([BIN / name, *args], stdout=log, stderr=log, start_new_session=True))

    def _args(self, given):
        return given(self.dir) if callable(given) else given

    def _start(self, controllers):
        etcd, peer, api = free_port(), free_port(), free_port()
        self.server = f"https://127.0.0.1:{api}"
        subprocess.run(["openssl", "genrsa", "-out", self.dir / "sa.key", "2048"], check=True, capture_output=True)
        (self.dir / "tokens.csv").write_text(f'{self.token},admin,1,"system:masters"\n')
        self._spawn("etcd", "--data-dir", str(self.dir / "etcd"), "--unsafe-no-fsync",
                    "--listen-client-urls", f"http://127.0.0.1:{etcd}",
                    "--advertise-client-urls", f"http://127.0.0.1:{etcd}",
                    "--listen-peer-urls", f"http://127.0.0.1:{peer}",
                    "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
                    "--initial-cluster", f"default=http://127.0.0.1:{peer}")
        self._spawn("kube-apiserver", "--etcd-servers", f"http://127.0.0.1:{etcd}",
                    "--bind-address", "127.0.0.1", "--secure-port", str(api), "--cert-dir", str(self.dir / "certs"),
                    "--service-account-issuer", "https://kubernetes.default.svc",
                    "--service-account-key-file", str(self.dir / "sa.key"),
                    "--service-account-signing-key-file", str(self.dir / "sa.key"),
                    "--token-auth-file", str(self.dir / "tokens.csv"), "--authorization-mode", "RBAC",
                    "--service-cluster-ip-range", "10.96.0.0/16",
                    "--disable-admission-plugins", "ServiceAccount", *self._args(self.api_args))
        ca = self.dir / "certs" / "apiserver.crt"
        self._wait_file(ca)
        data = base64.b64encode(ca.read_bytes()).decode()
        self.kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.server, "certificate-authority-data": data}}],
            "users": [{"name": "u", "user": {"token": self.token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}))
        # The controller manager gives up on an API server that isn't healthy ten seconds after it asked first.
        self._wait_ready()
        if controllers:
            self._spawn("kube-controller-manager", "--kubeconfig", str(self.kubeconfig),
                        "--controllers", ",".join(controllers), "--leader-elect=false",
                        "--secure-port", str(free_port()), "--cert-dir", str(self.dir / "kcm"),
                        *self._args(self.manager_args))

    def _wait_file(self, path, seconds=60):
        begin = time.monotonic()
        while not path.exists():
            assert time.monotonic() < begin + patience(seconds), f"{path} did not appear"
            assert all(p.poll() is None for p in self.procs), f"a process ended: see {self.dir}"
            time.sleep(0.05)
        time.sleep(0.2)

    def _wait_ready(self, seconds=90):
        begin = time.monotonic()
        while True:
            r = self.kubectl("get", "--raw", "/readyz", check=False)
            if r.returncode == 0 and self.kubectl("get", "ns", "default", check=False).returncode == 0:
                return
            assert all(p.poll() is None for p in self.procs), f"a process ended: see {self.dir}"
            assert time.monotonic() < begin + patience(seconds), f"the API server is not ready: {r.stderr}"
            time.sleep(0.2)

    def kubectl(self, *args, input=None, check=True):
        r = subprocess.run([BIN / "kubectl", "--kubeconfig", self.kubeconfig, *args], input=input, text=True,
                           capture_output=True, timeout=patience(60))
        assert not check or r.returncode == 0, f"kubectl {' '.join(args)}: {r.stderr}"
        return r

    def get(self, *args):
        return json.loads(self.kubectl("get", *args, "-o", "json").stdout)

    def stop(self):
        for p in reversed(self.procs):
            p.kill()
            p.wait()
        shutil.rmtree(self.dir, ignore_errors=True)
