#!/usr/bin/env python3
"""The controller at size: 1,000 simulated nodes (kwok) and 10,000 worker pods on a real API server, etcd, scheduler and
controller-manager. Controllers with the chart's rights, the leader killed twice; prints a Markdown report.

  scale.py [--nodes 1000] [--deployments 100] [--pods 100] [--profile]     (pods a deployment, half prefill, half decode)
  scale.py --small                                                         (100 nodes, 1,000 pods)"""
import argparse
import collections
import contextlib
import datetime
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "e2e/cluster"))
from cluster import Cluster  # noqa: E402

BUILD = pathlib.Path(os.environ.get("BATON_BUILD", ROOT / "build")).resolve()
NS = "baton"
HISTOGRAMS = {"a key waits in the queue": "baton_controller_queue_seconds",
              "decision (caches to requests that are ready)": "baton_controller_decide_seconds",
              "decision, its CPU time": "baton_controller_decide_cpu_seconds",
              "one write, as the controller sees it": "baton_controller_request_seconds",
              "reconciliation, its requests included": "baton_controller_reconcile_seconds"}
SERVER = {  # apiserver_request_duration_seconds
    "one POST of a pod, as the API server sees it": 'group="" resource="pods" subresource="" verb="POST"',
    "one look at a deployment, as the API server sees it":
        'group="serving.baton.dev" resource="inferencedeployments" subresource="" verb="GET"'}
KILL_AT = 0.8  # of the pods


def say(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def until(condition, seconds, what, every=1.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if got := condition():
            return got
        time.sleep(every)
    raise SystemExit(f"{what}: not within {seconds} s")


def node(i):
    size = {"cpu": "32", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"sim-{i}", "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": f"sim-{i}", "topology.kubernetes.io/zone": f"z{i % 3}"}},
            "status": {"allocatable": size, "capacity": size}}


def deployment(i, pods):
    role = {"replicas": pods // 2, "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}}
    return {"apiVersion": "serving.baton.dev/v1alpha1", "kind": "InferenceDeployment", "metadata": {"name": f"m{i}", "namespace": NS},
            "spec": {"model": {"name": f"model-{i}", "source": "file:///var/lib/baton/models/m.gguf"}, "prefill": role, "decode": role,
                     "kvCache": {"size": "256Mi"}}}


class Process:
    """A process in the control plane's namespaces, seen from this machine."""

    def __init__(self, cluster, name, *command, env=()):
        self.log = cluster.dir / f"{name}.log"
        with open(self.log, "wb") as log:
            self.popen = subprocess.Popen(cluster.inside("env", *env, *command), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                          env=cluster._env(), start_new_session=True)
        time.sleep(0.5)
        # nsenter forks to enter the pid namespace: the program is its child.
        kids = pathlib.Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children").read_text().split()
        self.pid = int(kids[0]) if kids else self.popen.pid

    def cpu(self):
        f = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self):
        """MB: resident (all, highest so far), its own (no file's), and with shared pages divided among those who map them."""
        text = pathlib.Path(f"/proc/{self.pid}/status").read_text() + pathlib.Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        return {k: int(re.search(rf"^{k}:\s+(\d+)", text, re.M)[1]) / 1024 for k in ("VmRSS", "VmHWM", "RssAnon", "Pss")}

    def memory_text(self):
        m = self.memory()
        return f"{m['VmRSS']:.1f} MB ({m['RssAnon']:.1f} MB its own, {m['Pss']:.1f} MB PSS; highest {m['VmHWM']:.1f} MB)"

    def kill(self):
        os.kill(self.pid, 9)
        self.popen.wait()


class Controller(Process):
    def __init__(self, cluster, name, port, kubeconfig):
        super().__init__(cluster, name, BUILD / "bin/baton-controller", "--namespace", NS, "--pod-namespace", NS, "--identity", name,
                         "--port", str(port), env=[f"BATON_KUBECONFIG={kubeconfig}"])
        self.url = f"http://127.0.0.1:{cluster.forward('127.0.0.1', port)}"

    def metrics(self):
        return urllib.request.urlopen(self.url + "/metrics", timeout=10).read().decode()

    def state(self):
        return json.loads(urllib.request.urlopen(self.url + "/debug/state", timeout=10).read())

    def leads(self):
        return self.state()["leading"]

    def first_pod(self, after):
        """When it first made a pod, by its own log: seconds after that time; None: not yet."""
        for line in self.log.read_text().splitlines():
            if '"acted"' in line and '"create-pod"' in line.lower():
                at = datetime.datetime.fromisoformat(json.loads(line)["ts"].replace("Z", "+00:00")).timestamp()
                if at >= after:
                    return at - after
        return None

    def buckets(self, name):
        return summed(self.metrics(), name)


def summed(text, name, labels=""):
    """Buckets of a histogram, over all series with these labels: [(edge, count), …]."""
    n = collections.Counter()
    for series, count in re.findall(rf"^{name}_bucket{{([^}}]*)}} (\S+)", text, re.M):
        if all(x in series for x in labels.split()):
            n[float(re.search(r'le="([^"]+)"', series)[1])] += float(count)
    return sorted(n.items())


def quantile(buckets, q):
    """Upper edge, interpolated as Prometheus does."""
    total = buckets[-1][1] if buckets else 0
    if not total:
        return None
    below, edge = 0.0, 0.0
    for le, n in buckets:
        if n >= q * total:
            return edge if le == float("inf") else edge + (le - edge) * (q * total - below) / max(n - below, 1e-9)
        below, edge = n, le
    return edge


def minus(now, before):
    old = dict(before)
    return [(le, n - old.get(le, 0)) for le, n in now]


def milliseconds(s):
    return "–" if s is None else f"{s * 1000:.1f} ms"


class Run:
    def __init__(self, options, folder):
        self.o, self.c = options, Cluster(pathlib.Path(folder) / "cluster")
        self.pods = options.deployments * options.pods
        self.rows, self.gone = [], set()
        self.every = 5 if self.pods > 2000 else 1

    def row(self, what, value):
        self.rows.append((what, value))
        say(f"{what}: {value}")

    def apply(self, objects, *args):
        self.c.kubectl("create", *args, "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}), timeout=600)

    def prepare(self):
        audit = self.c.dir / "audit.log"
        self.audit = audit
        rate = "--kube-api-qps=1000 --kube-api-burst=2000"
        self.c.up(0, apiserver_args=f"--audit-policy-file={HERE}/audit.yaml --audit-log-path={audit} --max-requests-inflight=2000 "
                                    "--max-mutating-requests-inflight=1000",
                  controller_manager_args=f"{rate} --node-monitor-grace-period=300s", scheduler_args=rate)
        Process(self.c, "kwok", "kwok", f"--kubeconfig={self.c.dir}/pki/admin.conf", "--manage-all-nodes=false",
                "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake", "--node-lease-duration-seconds=200",
                f"--config={HERE}/stages.yaml", "--server-address=127.0.0.1:10247")
        started = time.monotonic()
        self.apply([node(i) for i in range(self.o.nodes)])
        until(lambda: self.c.ready_nodes() >= self.o.nodes, 900, "nodes", 3)
        self.row(f"{self.o.nodes} nodes Ready after", f"{time.monotonic() - started:.0f} s")
        self.c.kubectl("apply", "-f", ROOT / "manifests/crds")
        self.c.kubectl("apply", "-f", ROOT / "manifests/cluster/00-namespace.yaml", "-f", ROOT / "manifests/cluster/10-rbac.yaml")
        token = self.c.kubectl("-n", NS, "create", "token", "baton-controller", "--duration=12h").strip()
        text = (self.c.dir / "pki/admin.conf").read_text()
        self.config = self.c.dir / "controller.conf"
        self.config.write_text(re.sub(r"user: \{client-cert.*", f'user: {{token: "{token}"}}}}]', text))
        self.started_controllers = 0
        self.lead = self.controller()
        until(self.lead.leads, 60, "a leader")
        self.next = self.controller()

    def controller(self):
        self.started_controllers += 1
        return Controller(self.c, f"controller-{self.started_controllers}", 8088 + 2 * self.started_controllers, self.config)

    def pools(self):
        items = json.loads(self.c.kubectl("-n", NS, "get", "wp", "-o", "json"))["items"]
        return [w.get("status", {}) for w in items]

    def count(self, field):
        return sum(s.get(field, 0) for s in self.pools())

    def server(self):
        text = self.c.kubectl("get", "--raw", "/metrics")
        return {what: summed(text, "apiserver_request_duration_seconds", labels) for what, labels in SERVER.items()}

    def mark(self, who):
        return {n: who.buckets(n) for n in HISTOGRAMS.values()}, who.cpu(), self.server(), time.monotonic()

    def quantiles(self, phase, what, b):
        if b and b[-1][1]:
            self.row(f"{phase}: {what}, p50 / p99 of {b[-1][1]:.0f}", f"{milliseconds(quantile(b, 0.5))} / {milliseconds(quantile(b, 0.99))}")

    def report(self, phase, who, before):
        """Quantiles, CPU and memory of `who` since `before`."""
        for what, name in HISTOGRAMS.items():
            self.quantiles(phase, what, minus(who.buckets(name), before[0][name]))
        for what, now in self.server().items():
            self.quantiles(phase, what, minus(now, before[2][what]))
        cpu, wall = who.cpu() - before[1], time.monotonic() - before[3]
        self.row(f"{phase}: CPU of the controller", f"{cpu:.2f} s, {100 * cpu / wall:.1f} % of a core")
        self.row(f"{phase}: memory of the controller", who.memory_text())

    def writes(self, since=0):
        n = collections.Counter()
        with open(self.audit) as f:
            for i, line in enumerate(f):
                if i >= since:
                    o = json.loads(line)
                    r = o["objectRef"]
                    n[f"{o['verb']} {r['resource']}" + (f"/{r['subresource']}" if r.get("subresource") else "")] += 1
        return n

    def pods_made(self):
        text = self.c.kubectl("get", "--raw", "/metrics")
        m = re.search(r'^apiserver_request_total{code="201",[^}]*group="",resource="pods",[^}]*subresource="",verb="POST"[^}]*} (\S+)', text, re.M)
        return float(m[1]) if m else 0

    def make_all(self):
        """Until all pods are counted and Ready; the leader is killed on the way. Times since the first deployment was created."""
        started, counted, made, killed = time.monotonic(), None, None, False
        while True:
            while not killed and self.pods_made() < KILL_AT * self.pods:
                say(f"{time.monotonic() - started:.0f} s: {self.pods_made():.0f} made; controller {self.lead.cpu():.1f} s CPU, "
                    f"{self.lead.memory()['VmRSS']:.1f} MB")
                time.sleep(self.every)
            current, ready, posted = self.count("replicas"), self.count("readyReplicas"), self.pods_made()
            t = time.monotonic() - started
            say(f"{t:.0f} s: {posted:.0f} made, {current} counted, {ready} ready; controller {self.lead.cpu():.1f} s CPU, "
                f"{self.lead.memory()['VmRSS']:.1f} MB")
            if not killed and posted >= KILL_AT * self.pods:
                self.row(f"{posted:.0f} pods of {self.o.deployments} InferenceDeployments created after", f"{t:.0f} s")
                self.report("creation", self.lead, self.before)
                self.fail_over("while pods are created")
                killed = True
            made = made or (t if max(posted, current) >= self.pods else None)
            counted = counted or (t if current >= self.pods else None)
            if ready >= self.pods:
                return made, counted, t
            if t > 3600:
                raise SystemExit("pods do not get ready")
            time.sleep(self.every)

    def create(self):
        self.before = self.mark(self.lead)
        self.apply([deployment(i, self.o.pods) for i in range(self.o.deployments)])
        profile = subprocess.Popen(["perf", "record", "-q", "-g", "-o", "/tmp/baton-scale.perf", "-p", str(self.lead.pid)]) if self.o.profile else None
        made, counted, ready = self.make_all()
        if profile:
            profile.terminate()
        self.row(f"all {self.pods} pods created / counted in status / Ready there after (the killed leader's time included)",
                 f"{made:.0f} s / {counted:.0f} s / {ready:.0f} s")
        time.sleep(15)
        self.exact("creation")
        n = self.writes()
        per = sum(v for k, v in n.items() if not k.endswith((" events", " leases"))) / self.pods
        self.row("creation: API writes a pod (events and Lease left out / included)", f"{per:.2f} / {sum(n.values()) / self.pods:.2f}")
        self.row("creation: writes by kind", ", ".join(f"{k} {v}" for k, v in n.most_common()))

    def exact(self, phase):
        """Exactly the pods that were asked for, none twice."""
        label = r".metadata.labels.serving\.baton\.dev/"
        columns = f"custom-columns=I:{label}infd,R:{label}role,G:{label}group,D:.metadata.deletionTimestamp"
        rows = [x.split() for x in self.c.kubectl("-n", NS, "get", "pods", "--no-headers", "-o", columns, timeout=300).splitlines()]
        live = [x for x in rows if x[3] == "<none>"]
        roles = collections.Counter((infd, role) for infd, role, _, _ in live)
        groups = collections.Counter((infd, group) for infd, _, group, _ in live)
        wrong = {k: v for k, v in roles.items() if v != self.o.pods // 2}
        twice = [k for k, v in groups.items() if v > 1]
        self.row(f"{phase}: pods, roles with another number than {self.o.pods // 2}, groups that are there twice",
                 f"{len(live)}, {len(wrong)}, {len(twice)}")
        if len(live) != self.pods or wrong or twice or len(roles) != 2 * self.o.deployments:
            raise SystemExit(f"not the pods that were asked for: {wrong} {twice}")

    def churn(self):
        """One pod in fifty is deleted by someone else, all at once; then as many, four a second."""
        for phase, how, pause in (("replacement", "at once", 0), ("steady replacement", "four a second", 0.25)):
            before, started = self.mark(self.lead), time.monotonic()
            n = self.delete_some(pause)
            self.wait_for_all()
            self.row(f"{n} pods, deleted {how}, replaced and ready after", f"{time.monotonic() - started:.0f} s")
            time.sleep(5)
            self.report(phase, self.lead, before)
            self.exact(phase)

    def delete_some(self, pause=0):
        names = self.names()[::50]
        self.gone = set(names)
        if not pause:
            self.c.kubectl("-n", NS, "delete", "pods", "--wait=false", *names, timeout=300)
            return len(names)
        due = time.monotonic()
        for name, (status, _) in zip(names, self.api(("DELETE", f"/{n}") for n in names)):
            if status not in (200, 202):
                raise SystemExit(f"delete {name}: {status}")
            due += pause
            time.sleep(max(0, due - time.monotonic()))
        return len(names)

    def api(self, requests):
        """[(status, body)] of (method, path) requests about the pods, over one connection: kubectl a request, or a list of 10,000 pods
        every other second, would take from the two cores what is measured."""
        server = re.search(r'server: "https://([^"]+)"', self.c.kubeconfig.read_text())[1]
        pki = self.c.dir / "pki"
        tls = ssl.create_default_context(cafile=pki / "ca.crt")
        tls.check_hostname = False  # it is reached through a port of this machine
        tls.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        with contextlib.closing(http.client.HTTPSConnection(server, context=tls, timeout=60)) as c:
            for method, path in requests:
                c.request(method, f"/api/v1/namespaces/{NS}/pods{path}")
                answer = c.getresponse()
                yield answer.status, json.loads(answer.read())

    def names(self):
        return [n.removeprefix("pod/") for n in self.c.kubectl("-n", NS, "get", "pods", "-o", "name", timeout=300).split()]

    def all_there(self):
        """As many pods as are wanted, none of them deleted. (Answered POSTs tell less: one whose sender was killed made a pod, too.)"""
        left = sorted(self.gone)
        self.gone = {n for n, (status, _) in zip(left, self.api(("GET", f"/{n}") for n in left)) if status != 404}
        if self.gone:
            return False
        (_, first), = self.api([("GET", "?limit=1")])
        return len(first["items"]) + first["metadata"].get("remainingItemCount", 0) >= self.pods

    def wait_for_all(self):
        until(lambda: self.all_there() and self.count("readyReplicas") >= self.pods, 900, "replacements", 2)

    def rest(self):
        before = self.mark(self.lead)
        time.sleep(60)
        self.report("60 s at rest", self.lead, before)

    def fail_over(self, when):
        """The leader is killed with -9: the time until the next one leads, has listed everything, and has made a pod."""
        self.lead.kill()
        killed, left = time.time(), not self.all_there()
        leads = listed = None
        while not listed or (left and not self.next.first_pod(killed)):
            state = self.next.state()
            leads = leads or (time.time() - killed if state["leading"] else None)
            listed = listed or (time.time() - killed if state["leading"] and state["synced"] else None)
            if time.time() - killed > 300:
                raise SystemExit("the next leader makes no pod")
            time.sleep(0.2)
        first = f"{self.next.first_pod(killed):.1f} s" if left else "none was left to make"
        self.row(f"leader killed (-9) {when}: the next one leads / has listed everything / has made its first pod after (a Lease lives 15 s)",
                 f"{leads:.1f} s / {listed:.1f} s / {first}")
        self.lead, self.next = self.next, self.controller()

    def failover(self):
        """At rest: the leader is killed, and pods are deleted at the same time."""
        started = time.monotonic()
        n = self.delete_some()
        self.fail_over(f"at rest, as {n} pods are deleted")
        self.wait_for_all()
        self.row("all of them replaced and ready after", f"{time.monotonic() - started:.0f} s")
        self.row("memory of the new leader", self.lead.memory_text())
        self.exact("after both kills")

    def peers(self):
        for name in ("apiserver", "etcd", "scheduler", "controller-manager"):
            inside = (self.c.dir / f"{name}.pid").read_text().strip()
            r = subprocess.run(self.c.inside("sh", "-c", f"grep VmRSS /proc/{inside}/status; cut -d' ' -f14,15 /proc/{inside}/stat"),
                               capture_output=True, text=True).stdout.split()
            self.row(f"beside it: {name}", f"{int(r[1]) / 1024:.0f} MB, {(int(r[3]) + int(r[4])) / os.sysconf('SC_CLK_TCK'):.0f} s CPU")

    def go(self):
        try:
            for step in (self.prepare, self.create, self.rest, self.churn, self.failover, self.peers):
                step()
        finally:
            if self.o.keep_logs:
                shutil.copytree(self.c.dir / "log", self.o.keep_logs, dirs_exist_ok=True)
                for f in self.c.dir.glob("*.log"):
                    shutil.copy(f, self.o.keep_logs)
            self.c.down()
            print("| what | value |\n|---|---|")
            for what, value in self.rows:
                print(f"| {what} | {value} |")


def main():
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the cluster is taken down
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--nodes", type=int, default=1000)
    p.add_argument("--deployments", type=int, default=100)
    p.add_argument("--pods", type=int, default=100)
    p.add_argument("--small", action="store_true", help="100 nodes and 10 deployments, to develop with")
    p.add_argument("--profile", action="store_true", help="perf record of the leader during creation")
    p.add_argument("--keep-logs", help="folder for the programs' logs")
    options = p.parse_args()
    if options.small:
        options.nodes, options.deployments = 100, 10
    with tempfile.TemporaryDirectory(prefix="baton-scale-") as d:
        Run(options, d).go()


if __name__ == "__main__":
    main()
