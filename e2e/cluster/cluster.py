#!/usr/bin/env python3
"""A real Kubernetes on this machine: control plane and nodes in namespaces of their own, reachable from outside through one port of
127.0.0.1. Needs root; ends without a trace.

  cluster.py up DIR [NODES]     kubeconfig: DIR/kubeconfig; images DIR/images/*.tar are on every node
  cluster.py down DIR
  cluster.py exec DIR COMMAND…  in the control plane's namespaces
  cluster.py check              what this machine lacks, in a sentence each"""
import asyncio
import ctypes
import hashlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tests"))
from patience import patience  # noqa: E402

CACHE = pathlib.Path(os.environ.get("BATON_CACHE", pathlib.Path.home() / ".cache/baton"))
BIN = CACHE / "k8s"
MODEL = CACHE / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
PAUSE = "baton.test/pause:1"
API = ("10.200.0.1", 6443)
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "etcd", "containerd",
            "containerd-shim-runc-v2", "ctr", "runc", "kubectl")
PROBES = {
    "namespaces (unshare as root; a container needs --privileged)":
        "unshare --mount --net --pid --fork --mount-proc --ipc --uts --cgroup true",
    "veth pairs and bridges": "unshare --net sh -c 'ip link add br0 type bridge && ip link add veth0 type veth peer name veth1'",
    "overlay file systems": "unshare --mount sh -c 'd=$(mktemp -d) && mount -t tmpfs t $d && mkdir $d/l $d/u $d/w $d/m && "
                            "mount -t overlay -o lowerdir=$d/l,upperdir=$d/u,workdir=$d/w overlay $d/m'",
    "iptables NAT with statistic and conntrack matches":
        "unshare --net sh -c 'iptables -t nat -A PREROUTING -m statistic --mode random --probability 0.5 -j ACCEPT && "
        "iptables -t nat -A PREROUTING -p tcp -j DNAT --to-destination 10.0.0.1:1 && iptables -A FORWARD -m conntrack --ctstate INVALID -j DROP && "
        "iptables -t nat -A POSTROUTING -j MASQUERADE --random-fully'",
    "cgroups that can be made": "for d in /sys/fs/cgroup/memory /sys/fs/cgroup; do [ -w $d ] && exit 0; done; exit 1",
}


def missing():
    """Sentences about what this machine lacks; [] when all is there."""
    if os.geteuid() != 0:
        return ["A real cluster needs root."]
    out = [f"Missing program {BIN / p}: run tools/setup kubernetes." for p in PROGRAMS if not (BIN / p).exists()]
    out += [f"Missing program {p}: run tools/setup node-packages." for p in ("ip", "iptables", "conntrack", "nsenter", "openssl")
            if not shutil.which(p, path=os.environ["PATH"] + ":/usr/sbin:/sbin")]
    if not pathlib.Path("/usr/lib/cni/bridge").exists():
        out.append("Missing CNI plugins in /usr/lib/cni: run tools/setup node-packages.")
    if out:
        return out
    for what, command in PROBES.items():
        r = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
        if r.returncode:
            out.append(f"This machine's kernel or container does not allow {what}: {r.stderr.strip().splitlines()[-1:] or 'no message'}.")
    return out


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def children(pid):
    try:
        return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def started(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()[19]
    except OSError:
        return None


def pause_image(out):
    """The sandbox image, from pause.c."""
    with tempfile.TemporaryDirectory() as d:
        subprocess.run(["gcc", "-Os", "-s", "-static", "-o", f"{d}/pause", HERE / "pause.c"], check=True)
        subprocess.run([HERE.parent.parent / "tools/images", "--pack", out, PAUSE, '["/pause"]', f"/pause={d}/pause"], check=True)


class Cluster:
    """The cluster of a folder. `keep`: it outlives this process (else it dies with it)."""

    def __init__(self, folder, keep=False):
        self.dir = pathlib.Path(folder).resolve()
        self.name = "baton-" + hashlib.sha256(str(self.dir).encode()).hexdigest()[:10]
        self.kubeconfig = self.dir / "kubeconfig"
        self.keep = keep
        self.forwards = []

    # -- life --

    def up(self, nodes=2, images=(), apiserver_args="", controller_manager_args="", scheduler_args="", model_on=None, seconds=180):
        if lacks := missing():
            raise SystemExit("\n".join(lacks))
        self.down()
        (self.dir / "images").mkdir(parents=True)
        for n, i in enumerate(images):
            link_or_copy(i, self.dir / f"images/{n}.tar")
        pause_image(self.dir / "images/pause.tar")
        (self.dir / "settings").write_text(f'apiserver_args="{apiserver_args}"\ncontroller_manager_args="{controller_manager_args}"\n'
                                           f'scheduler_args="{scheduler_args}"\n')
        with open(self.dir / "control.log", "wb") as log:
            p = subprocess.Popen(["bash", HERE / "control.sh", self.dir, self.name], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                 env=self._env(), start_new_session=True, preexec_fn=None if self.keep else die_with_parent)
        (self.dir / "pid").write_text(f"{p.pid} {started(p.pid)}")
        end = time.monotonic() + patience(seconds)
        self._until(lambda: (self.dir / "ready").exists(), end, "the control plane")
        self._expose()
        for i in range(1, nodes + 1):
            self.add_node(i, model=model_on is None or i in model_on)
        self._until(lambda: self.ready_nodes() >= nodes, end, f"{nodes} nodes")
        return self

    def add_node(self, index, model=True):
        """Starts node<index>; the model file lies on it unless `model` is false. Ready is for the caller to wait for."""
        shutil.rmtree(self.dir / f"node{index}", ignore_errors=True)
        with open(self.dir / f"node{index}.log", "wb") as log:
            subprocess.Popen(self.inside("bash", HERE / "node.sh", self.dir, str(index)), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                             env=self._env(), start_new_session=True)
        models = self.dir / f"node{index}/var/lib/baton/models"
        self._until(models.is_dir, time.monotonic() + patience(30), f"node{index}")
        if model and MODEL.exists():
            link_or_copy(MODEL, models / MODEL.name)

    def kill_node(self, index):
        """As if its power had gone: first nothing comes from it any more, then all of it is gone."""
        subprocess.run(self.inside("ip", "link", "set", f"v{index}", "down"), check=True)
        pid = self.node_pid(index)
        os.kill(pid, signal.SIGKILL)
        self._until(lambda: not pathlib.Path(f"/proc/{pid}").exists(), time.monotonic() + patience(30), f"the end of node{index}")

    def node_pid(self, index):
        """Pid (of this machine) of a node's first process."""
        wanted = f"{self.dir}\0{index}\0inside".encode()
        for p in pathlib.Path("/proc").iterdir():
            try:
                if p.name.isdigit() and wanted in (p / "cmdline").read_bytes() and b"unshare" not in (p / "cmdline").read_bytes():
                    return int(p.name)
            except OSError:
                pass
        raise AssertionError(f"node{index} does not run")

    def down(self):
        for f in self.forwards:
            f.kill()
            f.wait()
        self.forwards = []
        for f in [*self.dir.glob("forward*.pid"), self.dir / "pid"]:
            pid, _, start = f.read_text().partition(" ") if f.exists() else ("0", "", "")
            if int(pid) and started(int(pid)) == start:
                inner = children(int(pid))
                for q in [*inner, int(pid)]:
                    try:
                        os.kill(q, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                for q in [*inner, int(pid)]:
                    gone(q)
        end = time.monotonic() + patience(10)
        while time.monotonic() < end:
            left = self.cgroups()
            if not left:
                break
            for g in left:
                for d in sorted((d for d, _, _ in os.walk(g)), key=len, reverse=True):
                    try:
                        os.rmdir(d)
                    except OSError:
                        pass
            time.sleep(0.1)
        if self.dir.exists():
            shutil.rmtree(self.dir, ignore_errors=True)

    def cgroups(self):
        r = subprocess.run(["find", "/sys/fs/cgroup", "-maxdepth", "6", "-type", "d", "-name", self.name], capture_output=True, text=True)
        return r.stdout.split()

    # -- inside --

    def init(self):
        """Pid (of this machine) of the first process in the control plane's namespaces."""
        pid, _, start = (self.dir / "pid").read_text().partition(" ")
        inner = children(int(pid)) if started(int(pid)) == start else []
        if not inner:
            raise AssertionError(f"the cluster in {self.dir} does not run")
        return inner[0]

    def inside(self, *command):
        """A command line that runs in the control plane's namespaces (an outsider for the nodes, on their network)."""
        return ["nsenter", "-t", str(self.init()), "-m", "-n", "-p", "-u", "-i", "-C", "--", *map(str, command)]

    def on_node(self, index, *command):
        return ["nsenter", "-t", str(self.node_pid(index)), "-m", "-n", "-p", "-u", "-i", "-C", "--", *map(str, command)]

    def _env(self):
        return dict(os.environ, PATH=f"{BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")

    def _until(self, condition, end, what):
        while not condition():
            failed = self.dir / "failed"
            if failed.exists() or time.monotonic() > end:
                raise AssertionError(f"{what}: " + (failed.read_text().strip() if failed.exists() else f"not in time (see {self.dir})"))
            time.sleep(0.1)

    # -- from outside --

    def forward(self, host, port):
        """A port of 127.0.0.1 that leads to host:port on the cluster's network."""
        s = socket.create_server(("127.0.0.1", 0), backlog=256)
        p = subprocess.Popen([sys.executable, __file__, "forward", str(s.fileno()), str(self.init()), host, str(port)],
                             pass_fds=[s.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             start_new_session=True, preexec_fn=None if self.keep else die_with_parent)
        local = s.getsockname()[1]
        s.close()
        if self.keep:
            (self.dir / f"forward{local}.pid").write_text(f"{p.pid} {started(p.pid)}")
        else:
            self.forwards.append(p)
        return local

    def _expose(self):
        text = (self.dir / "pki/admin.conf").read_text()
        self.kubeconfig.write_text(text.replace(f"https://{API[0]}:{API[1]}", f"https://127.0.0.1:{self.forward(*API)}"))
        self.kubeconfig.chmod(0o600)

    def kubectl(self, *args, input=None, check=True, timeout=120):
        r = subprocess.run([BIN / "kubectl", "--kubeconfig", self.kubeconfig, *map(str, args)], input=input, text=True, capture_output=True,
                           timeout=patience(timeout))
        assert not check or r.returncode == 0, f"kubectl {' '.join(map(str, args))}: {r.stderr.strip()}"
        return r.stdout if check else r

    def get(self, *args):
        return json.loads(self.kubectl("get", *args, "-o", "json"))

    def ready_nodes(self):
        r = self.kubectl("get", "nodes", "--no-headers", check=False)
        return sum(line.split()[1] == "Ready" for line in r.stdout.splitlines() if line)


def gone(pid, seconds=20):
    end = time.monotonic() + patience(seconds)
    while time.monotonic() < end:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
        except ChildProcessError:
            if not pathlib.Path(f"/proc/{pid}").exists():
                return
        time.sleep(0.05)


def link_or_copy(source, target):
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


async def pump(reader, writer):
    try:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


async def forwarder(listening, pid, host, port):
    """Accepts on a socket of the network namespace that it was started in, connects in the namespace of `pid`, ends with `pid`."""
    server = socket.socket(fileno=listening)
    pidfd = os.pidfd_open(pid)
    with open(f"/proc/{pid}/ns/net") as ns:
        if ctypes.CDLL(None, use_errno=True).setns(ns.fileno(), 0):
            sys.exit(os.strerror(ctypes.get_errno()))

    async def serve(r, w):
        try:
            far_r, far_w = await asyncio.open_connection(host, port)
            await asyncio.gather(pump(r, far_w), pump(far_r, w))
            far_w.close()
        except OSError:
            pass
        w.close()

    asyncio.get_running_loop().add_reader(pidfd, lambda: os._exit(0))
    await (await asyncio.start_server(serve, sock=server)).serve_forever()


def main(verb="help", *args):
    if verb == "check":
        lacks = missing()
        print("\n".join(lacks) or "This machine can run a real cluster.")
        sys.exit(bool(lacks))
    if verb == "up":
        c = Cluster(args[0], keep=True)
        images = sorted((HERE.parent.parent / "build/images").glob("*.tar"))
        c.up(int(args[1]) if len(args) > 1 else 2, images)
        print(f"{c.ready_nodes()} nodes Ready: export KUBECONFIG={c.kubeconfig}")
    elif verb == "down":
        Cluster(args[0]).down()
    elif verb == "exec":
        c = Cluster(args[0])
        os.execvpe("nsenter", c.inside(*args[1:]), dict(c._env(), KUBECONFIG=str(c.dir / "pki/admin.conf")))
    elif verb == "forward":
        asyncio.run(forwarder(int(args[0]), int(args[1]), args[2], int(args[3])))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
