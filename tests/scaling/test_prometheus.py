"""A real Prometheus scrapes a real router with real workers behind it, and what it holds drives the number of groups: by
Baton's rule on the workers' series, and by PromQL of the spec. Pods are in a real API server; workers run as processes that
carry the pods' uids."""
import http.client
import json
import shutil
import threading
import time
import urllib.parse

import pytest
from world import Process, kubernetes, scaled_infd, wait

SCRAPE = """
global: {scrape_interval: 1s, scrape_timeout: 900ms, evaluation_interval: 1s}
scrape_configs:
  - job_name: routers
    static_configs: [{targets: ["%s"]}]
  - job_name: workers
    static_configs: [{targets: [%s]}]
"""


class Prometheus:
    def __init__(self, folder, router, workers):
        program = shutil.which("prometheus")
        assert program, "the Debian package prometheus is missing: tools/setup test_packages"
        (folder / "prometheus.yml").write_text(SCRAPE % (router, ", ".join(f'"{w}"' for w in workers)))
        self.port = kubernetes.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.p = Process("prometheus", [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
                                        f"--web.listen-address=127.0.0.1:{self.port}"], folder)
        wait(self.ready, 60, "prometheus to be ready")

    def ready(self):
        try:
            return self.get("/-/ready")[0] == 200
        except OSError:
            return False

    def get(self, path):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            c.request("GET", path)
            r = c.getresponse()
            return r.status, r.read()
        finally:
            c.close()

    def query(self, promql):
        status, body = self.get("/api/v1/query?query=" + urllib.parse.quote(promql))
        assert status == 200, body
        return json.loads(body)["data"]["result"]

    def value(self, promql):
        r = self.query(promql)
        return sum(float(x["value"][1]) for x in r) if r else None


class Load:
    """Clients that ask without a pause until stopped. Every answer must be a good one."""

    def __init__(self, fleet, clients, tokens, words=250):
        self.fleet, self.stopped, self.bad, self.good = fleet, False, [], 0
        self.tokens, self.prompt = tokens, "one two three " * words
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(clients)]
        for t in self.threads:
            t.start()

    def run(self, i):
        n = 0
        while not self.stopped:
            n += 1
            status, _, body = self.fleet.complete(f"{i} {n} " + self.prompt, max_tokens=self.tokens, ignore_eos=True)
            if status == 200:
                self.good += 1
            else:
                self.bad.append((status, body))

    def stop(self):
        self.stopped = True
        for t in self.threads:
            t.join(60)
        assert not self.bad, self.bad[:3]


@pytest.fixture
def stack(world, fleet, tmp_path):
    """begin(**scaling) applies a deployment, starts its pods' workers, a router, Prometheus."""
    made = []

    def begin(scaling):
        c = world.controller("--router-address", "127.0.0.1:1")  # no router answers the controller: Prometheus has to do
        port = kubernetes.free_port()
        d = scaled_infd(high=3, prometheus={"url": f"http://127.0.0.1:{port}", **scaling})
        d["spec"]["slo"] = {"ttft": "2s", "tpot": "1s"}
        world.apply(d)
        wait(lambda: len(world.pods()) == 2, what="a pod a role")
        f = fleet(prefill=1, decode=1, policy="always", start_router=False)
        for role in ("prefill", "decode"):
            f.workers[f"{role}-0"].uid = world.pods(role)[0]["metadata"]["uid"]
        f.static_more = {"namespace": world.ns, "slo_ttft_s": 2, "slo_tpot_s": 1}
        f.start_router()
        world.make_ready()
        prometheus = Prometheus(tmp_path, f"127.0.0.1:{f.port}", [f"{w.host}:8000" for w in f.workers.values()])
        made.append(prometheus)
        # The spec named a port before Prometheus had one.
        world.patch("chat", {"spec": {"scaling": {"prometheus": {"url": prometheus.url}}}})
        return c, f, prometheus
    yield begin
    for p in made:
        p.p.kill()


def source_of(world, role):
    decisions = world.get("wp", f"chat-{role}")["status"].get("decisions")
    return json.loads(decisions[0]["inputs"])["source"] if decisions else None


def test_batons_rule_follows_the_series_that_prometheus_holds(world, stack):
    c, f, prometheus = stack({})
    labels = f'infd="chat",infd_namespace="{world.ns}"'
    wait(lambda: prometheus.value(f"count(baton_router_worker_ready{{{labels}}})") == 2, 40, "both workers' series")
    wait(lambda: "needed_groups" in c.get(f"/v1/scaling/{world.ns}/chat/prefill")[1], 40, "figures out of Prometheus")
    load = Load(f, 10, 4)
    wait(lambda: world.scaled("prefill") > 1, 90, "prefill to grow with the prompt tokens that wait")
    assert source_of(world, "prefill") == "prometheus"
    assert prometheus.value(f"max_over_time(baton_router_worker_waiting_tokens{{{labels},role=\"prefill\"}}[30s])") > 0
    load.stop()

    def settled():
        world.make_ready()
        return world.scaled("prefill") == 1
    # The pods that came have no worker behind them: they count as full until they go, and go last.
    for p in world.pods("prefill"):
        world.status(p, ready=p["metadata"]["uid"] == f.workers["prefill-0"].uid)
    wait(lambda: world.scaled("prefill") == 1, 120, "prefill to shrink when the load is over")
    assert load.good > 0
    assert prometheus.value("sum(baton_router_slo_requests_total)") >= load.good


def test_promql_of_the_spec_drives_a_role(world, stack):
    which = f'{{infd="chat",infd_namespace="{world.ns}",role="decode"}}'
    query = f"sum(baton_router_worker_requests_running{which}) + sum(baton_router_worker_requests_waiting{which})"
    c, f, prometheus = stack({"queries": [{"role": "decode", "query": query, "target": "2"},
                                          {"role": "prefill", "query": "vector(NaN)"}]})
    load = Load(f, 6, 100, words=20)
    wait(lambda: world.scaled("decode") > 1, 90, "decode to grow with the requests that have their home there")
    assert source_of(world, "decode") == "query"
    said = c.get(f"/v1/scaling/{world.ns}/chat/prefill")[1]
    assert said["code"] == "NoLoadReported" and "no number" in said["query_error"] and world.scaled("prefill") == 1
    load.stop()
    wait(lambda: world.scaled("decode") == 1, 120, "decode to shrink when nothing runs")
    begin = time.monotonic()
    prometheus.p.kill()
    wait(lambda: c.get(f"/v1/scaling/{world.ns}/chat/decode")[1].get("query_error", "").startswith("Prometheus"), 30)
    assert time.monotonic() - begin < 60 and world.scaled("decode") == 1
