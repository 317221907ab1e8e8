"""The whole story on a real Kubernetes of three nodes, under an external client with eight long streams and short requests beside them:
helm install, apply, answer, scale by kubectl, by an HPA, by Baton's rule from Prometheus, promote a standby, roll out, drain a node, kill a
node, upgrade the chart, uninstall. `make e2e` runs it and writes docs/reports/e2e.md."""
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from baton import BUILD, MODEL, NAMESPACE, ROOT, Baton, Cluster, eventually, images  # noqa: E402

STREAMS, SECONDS, REQUESTS = 8, 60, 1000
NEXT = "0.1.1"
QUICK = ("--default-not-ready-toleration-seconds=5 --default-unreachable-toleration-seconds=5", "--node-monitor-grace-period=12s "
         "--node-monitor-period=2s --horizontal-pod-autoscaler-sync-period=3s --horizontal-pod-autoscaler-downscale-stabilization=15s")
# Routers on two nodes that stay; the third holds workers only and is the one to be killed.
FRONT = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node1", "node2"]}
VALUES = {"agent.weightsGiB": 1, "agent.requests.memory": "256Mi", "router.resources.requests.cpu": "100m",
          "router.resources.requests.memory": "128Mi", "externalMetrics.enabled": "true", "router.drainSeconds": 150, "router.lingerSeconds": 10,
          "crds.keep": "false"}
WORKER = {"requests": {"cpu": "200m", "memory": "512Mi"}, "limits": {"cpu": "1", "memory": "1400Mi"}}


def apart(role):
    """Workers of a role on different nodes, where there is room: no node is the only holder of a role."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"serving.baton.dev/infd": "chat", "serving.baton.dev/role": role}}}
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}}


class Story:
    """The cluster, the client beside it and what was noted on the way."""

    def __init__(self, folder):
        self.dir = pathlib.Path(folder)
        self.cluster = Cluster(self.dir / "cluster")
        self.baton = Baton(self.cluster)
        self.client, self.phases, self.killed = None, [], {}

    def up(self):
        self.cluster.up(3, [*images(), *images(NEXT)], apiserver_args=QUICK[0], controller_manager_args=QUICK[1], seconds=300)

    def start_client(self):
        self.log.unlink(missing_ok=True)
        url = ",".join(f"http://10.200.0.{10 + n}:{self.baton.node_port()}" for n in (1, 2))
        command = self.cluster.inside("python3", ROOT / "e2e/client.py", "--url", url, "--model", MODEL, "--out", self.log, "--streams", STREAMS,
                                      "--seconds", SECONDS + 30)
        self.client = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=self.cluster._env())
        eventually(lambda: self.requests(), 60, message="the client's first answers")

    @property
    def log(self):
        return BUILD / "e2e-client.jsonl"  # one line a request; stays for whoever asks why one failed

    def requests(self):
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.endswith("}")] if self.log.exists() else []

    @contextlib.contextmanager
    def phase(self, name):
        """A disruption. It ends only when every lane's stream was there before it and went on for long enough."""
        start, facts = time.time(), []
        try:
            yield facts.append
        finally:
            self.phases.append((name, start, time.time(), facts))
            print(f"\n## {name} ({time.time() - start:.0f} s)\n" + "\n".join(f"- {f}" for f in facts), flush=True)

    def settle(self, seconds=SECONDS + 15):
        """Time for streams to span what happened."""
        time.sleep(seconds)

    def stop_client(self):
        for pid in pathlib.Path(f"/proc/{self.client.pid}/task/{self.client.pid}/children").read_text().split():
            subprocess.run(["kill", "-TERM", pid])
        self.client.wait(180)

    def spanning(self, start, end):
        """Streams of at least SECONDS that were running when the disruption began or happened within it."""
        return [r for r in self.requests() if r["kind"] == "stream" and r["end"] - r["start"] >= SECONDS and r["start"] < end and r["end"] > start]

    def excused(self, r):
        """The request's only holder was on the node that was killed while it ran, and it ended within two seconds."""
        k = self.killed
        holders = {r["headers"].get(h, "").split(":")[0] for h in ("x-baton-prefill", "x-baton-decode")}
        return bool(k) and r["start"] <= k["at"] <= r["end"] and bool(holders & k["pods"]) and r["end"] - k["at"] < 2


@pytest.fixture(scope="module")
def story():
    with tempfile.TemporaryDirectory(prefix="baton-story-") as d:
        s = Story(d)
        try:
            s.up()
            yield s
        finally:
            if s.client and s.client.poll() is None:
                s.client.kill()
            s.cluster.down()


def chat(**changes):
    return {"prefill__resources": WORKER, "decode__resources": WORKER, "prefill__replicas": 2, "decode__replicas": 2,
            "prefill__affinity": apart("prefill"), "decode__affinity": apart("decode"),
            "kvCache__size": "768Mi", "rollout__drainTimeout": "20s", **changes}


def apply(story, **changes):
    story.baton.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=story.baton.sample(**chat(**changes)))


def settled(story, role, n):
    """n ready workers of a role, none more."""
    return eventually(lambda: len(story.baton.workers(role)) == n == len(story.baton.ready(role)), 240, message=f"{n} ready {role} workers")


def test_01_helm_installs_the_chart(story):
    b = story.baton
    with story.phase("helm install") as note:
        b.namespace()
        values = story.dir / "values.json"
        values.write_text(json.dumps({"router": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [FRONT]}]}}, "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": {
                    "matchLabels": {"app.kubernetes.io/name": "baton-router"}}}}]}}},
            "controller": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [FRONT]}]}}}}}))
        story.values = values
        b.install("install", values, **VALUES)
        note(f"{story.cluster.ready_nodes()} nodes, "
             + ", ".join(f"{p['metadata']['name']} on {p['spec']['nodeName']}" for p in b.get("pods")["items"]))


def test_02_an_applied_sample_becomes_ready_and_answers(story):
    b = story.baton
    with story.phase("apply") as note:
        started = time.monotonic()
        apply(story)
        b.wait_ready()
        note(f"Ready after {time.monotonic() - started:.1f} s")
        text, headers = eventually(lambda: b.ask("What is the capital of France?"), 60, message="an answer")
        assert "Paris" in text and headers["x-baton-prefill"] != headers["x-baton-decode"]
        note(f"answer {text!r} by prefill {headers['x-baton-prefill']} and decode {headers['x-baton-decode']}, {headers['x-baton-kv-bytes']} bytes of KV")
        settled(story, "decode", 2)
        note("workers: " + ", ".join(f"{w['role']} {w['name']} on {w['node']}" for w in b.workers()))
    story.start_client()
    story.settle(60)


def test_03_kubectl_scales_a_pool(story):
    b = story.baton
    with story.phase("scale by kubectl: decode 2 → 3 → 2") as note:
        started = time.monotonic()
        b.kubectl("scale", "wp/chat-decode", "--replicas=3")
        settled(story, "decode", 3)
        note(f"third decode worker ready after {time.monotonic() - started:.1f} s")
        story.settle(20)
        b.kubectl("scale", "wp/chat-decode", "--replicas=2")
        settled(story, "decode", 2)
        story.settle()


HPA = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "chat-decode"}, "spec": {
    "scaleTargetRef": {"apiVersion": "serving.baton.dev/v1alpha1", "kind": "WorkerPool", "name": "chat-decode"}, "minReplicas": 2, "maxReplicas": 3,
    "metrics": [{"type": "External", "external": {"metric": {"name": "baton_running_requests", "selector": {"matchLabels": {
        "infd": "chat", "role": "decode"}}}, "target": {"type": "AverageValue", "averageValue": "3"}}}]}}


def test_04_an_hpa_scales_a_pool_by_external_metrics(story):
    b = story.baton
    with story.phase("scale by an HPA on baton_running_requests: decode 2 → 3 → 2") as note:
        value = eventually(lambda: json.loads(b.cluster.kubectl(
            "get", "--raw", f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{NAMESPACE}/baton_running_requests"))["items"], 60,
            message="external metrics through the API server")
        note("external.metrics.k8s.io says " + ", ".join(f"{v['metricLabels']}: {v['value']}" for v in value))
        started = time.monotonic()
        b.kubectl("apply", "-f", "-", input=json.dumps(HPA))
        settled(story, "decode", 3)
        status = b.get("hpa", "chat-decode")["status"]
        note(f"third decode worker ready after {time.monotonic() - started:.1f} s; the HPA wants {status['desiredReplicas']} "
             f"for {status['currentMetrics'][0]['external']['current']}")
        story.settle(30)
        b.kubectl("delete", "hpa", "chat-decode")
        b.kubectl("scale", "wp/chat-decode", "--replicas=2")
        settled(story, "decode", 2)
        story.settle()


def prometheus(story):
    """A real Prometheus on the nodes' network that scrapes routers, controllers and agents. (Debian's knows no Kubernetes: the pods that say
    so in their annotations are listed for it.)"""
    c, targets = story.cluster, []
    for p in story.baton.get("pods")["items"]:
        notes = p["metadata"].get("annotations", {})
        if notes.get("prometheus.io/scrape") == "true":
            targets.append({"targets": [f"{p['status']['podIP']}:{notes['prometheus.io/port']}"], "labels": {"pod": p["metadata"]["name"]}})
    (c.dir / "prometheus.yml").write_text(json.dumps({"global": {"scrape_interval": "2s"}, "scrape_configs": [
        {"job_name": "baton", "static_configs": targets}]}))
    with open(c.dir / "log/prometheus.log", "wb") as log:
        subprocess.Popen(c.inside("prometheus", f"--config.file={c.dir}/prometheus.yml", f"--storage.tsdb.path={c.dir}/prometheus",
                                  "--web.listen-address=10.200.0.1:9090"), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    port = c.forward("10.200.0.1", 9090)

    def query(q):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(q)}", timeout=10) as r:
            return json.load(r)["data"]["result"]

    up = eventually(lambda: len(up) >= 4 and up if (up := query("up == 1")) else None, 60, message="targets that are up")
    return query, len(up)


def test_05_batons_rule_scales_a_pool_from_prometheus(story):
    b = story.baton
    with story.phase("scale by Baton's rule from Prometheus: decode 2 → 3 → 2") as note:
        query, up = prometheus(story)
        note(f"Prometheus scrapes {up} pods; workers as routers see them: {len(query('baton_router_worker_requests_running'))} series")
        before = {w["name"] for w in b.workers("decode")}
        started = time.monotonic()
        rule = {"mode": "Baton", "prometheus": {"url": "http://10.200.0.1:9090"}, "downWindow": "20s"}
        apply(story, decode__replicas=None, decode__bounds={"min": 2, "max": 3}, scaling=rule, slo={"tpot": "10ms"})
        settled(story, "decode", 3)
        note(f"third decode worker ready after {time.monotonic() - started:.1f} s beside {len(before)}")
        explained = b.get("wp", "chat-decode")["status"].get("conditions", [])
        note("the pool says: " + "; ".join(f"{c['type']} {c['status']}: {c.get('message', '')}" for c in explained))
        story.settle(30)
        apply(story)
        b.kubectl("scale", "wp/chat-decode", "--replicas=2")
        settled(story, "decode", 2)
        story.settle()


def test_06_a_hot_standby_is_promoted(story):
    b = story.baton
    with story.phase("a hot standby is promoted to decode") as note:
        started = time.monotonic()
        apply(story, standby={"hot": 1})
        hot = eventually(lambda: [p["metadata"]["name"] for p in b.get("pods", "-l", "serving.baton.dev/role=standby")["items"]
                                  if p["metadata"]["annotations"].get("serving.baton.dev/actual-role") == "standby"], 180, message="a hot standby")[0]
        note(f"standby {hot} has its model loaded after {time.monotonic() - started:.1f} s")
        started = time.monotonic()
        b.kubectl("scale", "wp/chat-decode", "--replicas=3")
        eventually(lambda: hot in {w["name"] for w in b.ready("decode")}, 60, every=0.05, message="the standby as a decode worker")
        note(f"it is a ready decode worker {time.monotonic() - started:.2f} s after kubectl scale")
        eventually(lambda: len(b.workers("standby")) == 1, 120, message="another standby behind it")
        story.settle(30)
        apply(story)
        b.kubectl("scale", "wp/chat-decode", "--replicas=2")
        settled(story, "decode", 2)
        story.settle()


def test_08_a_rollout_replaces_every_worker(story):
    b = story.baton
    with story.phase("rollout: a new revision of every worker") as note:
        before, started = {w["revision"] for w in b.workers()}, time.monotonic()
        limits = {**WORKER, "limits": {"cpu": "1", "memory": "1500Mi"}}
        apply(story, prefill__resources=limits, decode__resources=limits)
        eventually(lambda: not before & {w["revision"] for w in b.workers()} and len(b.ready("decode")) == 2 == len(b.ready("prefill")), 400,
                   message="only workers of the new revision")
        note(f"done after {time.monotonic() - started:.1f} s: " + ", ".join(f"{w['role']} {w['name']}" for w in b.workers()))
        story.settle()


def test_09_a_node_is_drained(story):
    b = story.baton
    with story.phase("kubectl drain node2") as note:
        on = [w["name"] for w in b.workers() if w["node"] == "node2"]
        started = time.monotonic()
        r = b.cluster.kubectl("drain", "node2", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=240s", timeout=260, check=False)
        assert r.returncode == 0, r.stderr[-500:] + b.story() + b.kubectl("get", "pdb,wp,infd", "-o", "yaml")
        note(f"drained after {time.monotonic() - started:.1f} s; on it were workers {on or 'none'}")
        eventually(lambda: len(b.ready("decode")) == 2 == len(b.ready("prefill")), 240, message="workers elsewhere")
        note("workers: " + ", ".join(f"{w['role']} {w['name']} on {w['node']}" for w in b.workers()))
        story.settle()
        b.cluster.kubectl("uncordon", "node2")


def test_10_a_node_is_killed(story):
    b = story.baton
    with story.phase("node3 is killed: link cut, every process SIGKILLed") as note:
        eventually(lambda: any(w["node"] == "node3" for w in b.workers()), 60, message="a worker on node3")
        on = {w["name"]: w["role"] for w in b.workers() if w["node"] == "node3"}
        story.killed = {"at": time.time(), "pods": set(on)}
        started = time.monotonic()
        story.cluster.kill_node(3)
        note(f"on it were {on}")
        left = lambda role: len([w for w in b.ready(role) if w["node"] != "node3"])  # noqa: E731
        eventually(lambda: left("decode") == 2 == left("prefill"), 300, message="workers on the nodes that are left")
        note(f"all workers ready on the other nodes after {time.monotonic() - started:.1f} s")
        story.settle()
        b.cluster.kubectl("delete", "node", "node3")  # as an operator does with a machine that is gone; a new one takes its name
        story.cluster.add_node(3)
        eventually(lambda: story.cluster.ready_nodes() == 3, 120, message="the node again")


def test_11_the_chart_is_upgraded(story):
    b = story.baton
    with story.phase(f"helm upgrade to {NEXT}") as note:
        before = {w["name"] for w in b.workers()}
        started = time.monotonic()
        b.install("upgrade", story.values, **{**VALUES, "image.tag": NEXT})
        note(f"upgraded after {time.monotonic() - started:.1f} s")
        assert before == {w["name"] for w in b.workers()}, "an upgrade of the chart replaced workers"
        note("every worker pod is the one it was")
        story.settle()


def test_20_the_client_saw_no_failure(story):
    story.settle(30)
    story.stop_client()
    requests = story.requests()
    streams = [r for r in requests if r["kind"] == "stream"]
    failed = [r for r in requests if r["error"] or r["status"] != 200 or r["finish"] not in ("length", "left")]
    excused = [r for r in failed if story.excused(r)]
    print(f"\n## The external client\n- {len(requests)} requests, of them {len(streams)} streams of which "
          f"{sum(r['end'] - r['start'] >= SECONDS for r in streams)} lasted at least {SECONDS} s; {len(failed)} failed, {len(excused)} excused; longest silence within a stream {max(r['gap'] for r in streams):.1f} s")
    few = []
    for name, start, end, _ in story.phases[2:]:
        spanning = story.spanning(start, end)
        bad = [r for r in failed if r["start"] < end and r["end"] > start]
        gap = max([r["gap"] for r in requests if r["start"] < end and r["end"] > start and r["kind"] == "stream"], default=0)
        print(f"- {name}: {len(spanning)} streams of at least {SECONDS} s over it, {len(bad)} failed, longest silence {gap:.1f} s")
        few += [name] if len({r["lane"] for r in spanning}) < STREAMS else []
    for r in failed:
        print("- failed:", {k: r[k] for k in ("kind", "status", "error", "tokens", "start", "end", "headers")})
    assert len(requests) >= REQUESTS
    assert failed == excused
    assert few == [], f"fewer than {STREAMS} long streams over these"


def test_21_every_answer_is_the_same_text_as_far_as_it_goes(story):
    """At temperature 0: whatever was disrupted, no token was lost, repeated or changed."""
    texts, compared = {}, 0
    for r in story.requests():
        if r["kind"] == "stream" and r["text"]:
            known = texts.setdefault(r["prompt"], r["text"])
            n = min(len(known), len(r["text"]))
            compared += known is not r["text"]
            assert known[:n] == r["text"][:n], f"{r['prompt']!r}: another text after {r['tokens']} tokens ({r['headers']})"
            if len(r["text"]) > len(known):
                texts[r["prompt"]] = r["text"]
    print(f"\n- {compared} streams compared with another answer to their prompt: equal as far as both go")
    assert compared >= STREAMS


def test_30_uninstall_leaves_nothing(story):
    b = story.baton
    with story.phase("uninstall"):
        b.kubectl("delete", "infd", "chat", "--wait")
        eventually(lambda: not b.get("pods", "-l", "serving.baton.dev/infd")["items"], 120, message="no worker pods")
        b.uninstall()
        b.cluster.kubectl("delete", "namespace", NAMESPACE, "--wait", timeout=240)
        assert b.everything() == [], "left after uninstall and namespace"
