"""Dashboards, alerts and the page of metrics against what real programs export: `baton up` under load, scraped by a real Prometheus.

BATON_PICTURE=DIR also draws the dashboards there (needs matplotlib; tools/draw-dashboards)."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

import pytest

from conftest import CACHE, ROOT, free_port, program, wait_for

CHART = ROOT / "charts/baton"
KUBECTL = CACHE / "bin/kubectl"
# Debian's Prometheus has no Kubernetes discovery: the test writes what it would find, from the same annotations.
SCRAPE = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: pods
    file_sd_configs: [{{files: ["{targets}"], refresh_interval: 1s}}]
"""


class Monitored:
    """A cluster on this machine, its deployment `chat` under load, and Prometheus."""

    def __init__(self, folder):
        self.data, self.port, self.stopped = folder / "state", free_port(), threading.Event()
        self.baton = program("baton")
        r = subprocess.run([self.baton, "up", "--detach", "--data", self.data, "--port", str(self.port)], capture_output=True, text=True, timeout=120)
        assert r.returncode == 0, r.stderr
        self.kubeconfig, self.prometheus = self.data / "kubeconfig", None
        sample = (ROOT / "manifests/samples/chat.yaml").read_text().replace("  rollout:", "  slo: {ttft: 5s, tpot: 1s}\n  rollout:")
        self.kubectl("apply", "-f", "-", input=sample)
        self.kubectl("wait", "--for=condition=Ready", "infd/chat", "--timeout=180s")
        threading.Thread(target=self.load, daemon=True).start()
        self.discover(folder)
        self.start_prometheus(folder)
        threading.Thread(target=self.work, args=(folder,), daemon=True).start()

    def kubectl(self, *args, input=None):
        r = subprocess.run([KUBECTL, "--kubeconfig", self.kubeconfig, *args], input=input, capture_output=True, text=True, timeout=200)
        assert r.returncode == 0, r.stderr
        return r.stdout

    def load(self):
        n = 0
        while not self.stopped.is_set():
            n += 1
            body = {"model": "smollm2-135m-instruct", "max_tokens": 24, "messages": [
                {"role": "user", "content": f"Tell me a short story about the number {n % 7}, a router and two workers. " * 3}]}
            try:
                urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/chat/completions", json.dumps(body).encode(),
                                                              {"Content-Type": "application/json"}), timeout=60).read()
            except OSError:
                self.stopped.wait(0.5)

    def work(self, folder):
        """Something for the controller to do: decode goes to two workers and back."""
        n = 0
        while not self.stopped.wait(4):
            n += 1
            self.kubectl("scale", "wp/chat-decode", f"--replicas={1 + (n // 3) % 2}")
            self.discover(folder)

    def discover(self, folder):
        text = json.dumps([{"targets": [f"{ip}:{port}"], "labels": {"pod": pod, "namespace": ns}} for (ns, pod), (ip, port) in self.targets().items()])
        (folder / "fresh").write_text(text)
        (folder / "fresh").rename(folder / "targets.json")

    def targets(self):
        """Addresses of /metrics of every program."""
        pods = json.loads(self.kubectl("get", "pods", "-A", "-o", "json"))["items"]
        return {(p["metadata"]["namespace"], p["metadata"]["name"]): (p["status"]["podIP"], p["metadata"]["annotations"]["prometheus.io/port"]) for p in pods
                if p["metadata"].get("annotations", {}).get("prometheus.io/port") and p["status"].get("podIP")}

    def start_prometheus(self, folder):
        binary = shutil.which("prometheus")
        assert binary, "the Debian package prometheus is missing: tools/setup test_packages"
        (folder / "prometheus.yml").write_text(SCRAPE.format(targets=folder / "targets.json"))
        port = free_port()
        self.url, self.log = f"http://127.0.0.1:{port}", open(folder / "prometheus.log", "wb")
        self.prometheus = subprocess.Popen([binary, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
                                            f"--web.listen-address=127.0.0.1:{port}"], stdout=self.log, stderr=self.log)

    def query(self, expression, seconds=0, step=1):
        end = time.time()
        path = f"/api/v1/query?query={urllib.parse.quote(expression)}"
        if seconds:
            path = f"/api/v1/query_range?query={urllib.parse.quote(expression)}&start={end - seconds}&end={end}&step={step}"
        with urllib.request.urlopen(self.url + path, timeout=20) as a:
            return json.load(a)["data"]["result"]

    def stop(self):
        self.stopped.set()
        if self.prometheus:
            self.prometheus.kill()
            self.prometheus.wait()
        subprocess.run([self.baton, "down", "--data", self.data, "--purge"], capture_output=True, timeout=120)


@pytest.fixture(scope="module")
def monitored(tmp_path_factory):
    m = Monitored(tmp_path_factory.mktemp("monitored"))
    try:
        wait_for(lambda: len(m.query("count by (pod) (up == 1)")) >= 5, 90, 0.5, "agent, controller, router and two workers to be scraped")
        wait_for(lambda: m.query("sum(increase(baton_router_requests_total[30s])) > 5"), 120, 0.5, "requests")
        time.sleep(float(os.environ.get("BATON_PICTURE_SECONDS", "10")))
        yield m
    finally:
        m.stop()


def boards():
    return {p.stem: json.loads(p.read_text()) for p in sorted((CHART / "dashboards").glob("*.json"))}


def expressions():
    for name, board in boards().items():
        for panel in board["panels"]:
            for t in panel["targets"]:
                yield pytest.param(t["expr"], id=f"{name}-{panel['title']}-{t['refId']}".replace(" ", "_"))


def concrete(expression):
    return expression.replace("$__rate_interval", "30s").replace("$infd", ".*")


def test_dashboards_and_metrics_pages_are_fresh():
    for tool in ("dashboards", "metrics-docs"):
        r = subprocess.run([ROOT / "tools" / tool, "--check"], capture_output=True, text=True)
        assert r.returncode == 0, r.stderr


@pytest.mark.parametrize("expression", list(expressions()))
def test_every_panel_has_data(monitored, expression):
    wait_for(lambda: [x for x in monitored.query(concrete(expression)) if x["value"][1] not in ("NaN", "+Inf")], 60, 1, concrete(expression))


def documented():
    """{name: (type, labels, meaning)} of docs/metrics.md"""
    rows = re.findall(r"^\| `(baton_\w+)` \| (\w+) \| (.*?) \| .*? \| (.*) \|$", (ROOT / "docs/metrics.md").read_text(), re.M)
    return {n: (kind, set(re.findall(r"`(\w+)`", labels)), meaning.replace("\\|", "|").rstrip(".")) for n, kind, labels, meaning in rows}


def test_what_programs_export_is_what_the_page_says(monitored):
    page, seen = documented(), set()
    def fetch(ip, port):
        try:
            return urllib.request.urlopen(f"http://{ip}:{port}/metrics", timeout=10).read().decode()
        except OSError:
            return ""  # a worker that is just coming or going
    texts = [fetch(*a) for a in monitored.targets().values()]
    assert sum(t != "" for t in texts) >= 5
    for text in [*texts, monitored.kubectl("get", "--raw", "/metrics")]:
        helps = dict(re.findall(r"^# HELP (baton_\w+) (.*)$", text, re.M))
        for name, kind in re.findall(r"^# TYPE (baton_\w+) (\w+)$", text, re.M):
            assert name in page, f"{name} is not in docs/metrics.md: tools/metrics-docs"
            assert page[name][0] == kind and page[name][2] == helps[name].rstrip("."), (name, page[name], kind, helps[name])
            for labels in re.findall(rf"^{name}(?:_bucket|_sum|_count)?\{{(.*)\}} ", text, re.M):
                assert set(re.findall(r'(\w+)="', labels)) - {"le"} == page[name][1], (name, labels)
            seen.add(name)
    assert len(seen) > 50, sorted(set(page) - seen)


def test_alerts_fire_on_what_they_are_for(tmp_path):
    rules = CHART / "alerts.yaml"
    text = (pathlib.Path(__file__).parent / "alerts_test.yaml").read_text().replace("RULES", str(rules))
    (tmp_path / "test.yaml").write_text(text)
    r = subprocess.run(["promtool", "test", "rules", tmp_path / "test.yaml"], capture_output=True, text=True, timeout=60)
    assert r.returncode == 0, r.stdout + r.stderr
    for alert in re.findall(r"- alert: (\w+)", rules.read_text()):
        assert text.count(f"alertname: {alert}\n") >= 1 and text.count(f"alertname: {alert}}}") == 1, f"{alert} is not tested both ways"


def test_alerts_speak_of_documented_metrics_and_are_silent_here(monitored):
    page = documented()
    text = (CHART / "alerts.yaml").read_text()
    names = set(re.findall(r"\b(baton_[a-z0-9_]+)\b", "".join(re.findall(r"expr:(.*?)\n +(?:for|labels):", text, re.S))))
    assert names and {n for n in names if re.sub(r"_(bucket|sum|count)$", "", n) not in page} == set()
    for expr in re.findall(r"expr: (?:\|\n)?(.*?)\n +(?:for|labels):", text, re.S):
        if "slo_requests" not in expr and "leader" not in expr:
            assert monitored.query(expr.strip()) == [], expr


def test_pictures_can_be_drawn(monitored):
    """Only when asked for: BATON_PICTURE names a folder and BATON_PICTURE_PYTHON a Python with matplotlib."""
    folder = os.environ.get("BATON_PICTURE")
    if folder:
        time.sleep(30)
        subprocess.run([os.environ.get("BATON_PICTURE_PYTHON", sys.executable), ROOT / "tools/draw-dashboards", monitored.url, folder], check=True)
