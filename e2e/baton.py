"""Baton installed on a real cluster (e2e/cluster): helm, the sample, questions from outside, and ways to look into it."""
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "e2e/cluster"), str(ROOT / "tests")]
from cluster import CACHE, Cluster  # noqa: E402
from patience import patience  # noqa: E402

BUILD = pathlib.Path(os.environ.get("BATON_BUILD", ROOT / "build")).resolve()
HELM = CACHE / "bin/helm"
MODEL = "smollm2-135m-instruct"
NAMESPACE = "baton"
SETTINGS = {"router.service.type": "NodePort", "agent.weightsGiB": 1}

signal.signal(signal.SIGTERM, signal.default_int_handler)  # fixtures take the cluster down


def eventually(what, seconds=60, every=0.3, message="condition"):
    begin, last = time.monotonic(), None
    while time.monotonic() < begin + patience(seconds):
        try:
            last = what()
            if last:
                return last
        except (OSError, ValueError, KeyError, IndexError, AssertionError, http.client.HTTPException, subprocess.SubprocessError) as e:
            last = e
        time.sleep(every)
    raise AssertionError(f"{message}: not within {time.monotonic() - begin:.0f} s (last: {last!r})")


class Baton:
    """The chart's release `baton` in the namespace `baton` of a cluster."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.ports = {}

    # -- installing --

    def helm(self, *args, timeout=300):
        env = dict(os.environ, KUBECONFIG=str(self.cluster.kubeconfig), HELM_CACHE_HOME=str(self.cluster.dir / "helm"),
                   HELM_CONFIG_HOME=str(self.cluster.dir / "helm"), HELM_DATA_HOME=str(self.cluster.dir / "helm"))
        r = subprocess.run([HELM, *map(str, args)], capture_output=True, text=True, timeout=timeout, env=env)
        assert r.returncode == 0, f"helm {' '.join(map(str, args))}: {r.stderr.strip()}\n{self.story()}"
        return r.stdout

    def namespace(self):
        self.cluster.kubectl("apply", "-f", ROOT / "manifests/cluster/00-namespace.yaml")

    def install(self, verb="install", values=None, **more):
        settings = {**SETTINGS, **more}
        sets = [a for k, v in settings.items() for a in ("--set", f"{k}={v}")] + (["-f", values] if values else [])
        return self.helm(verb, "baton", ROOT / "charts/baton", "-n", NAMESPACE, "--wait", "--timeout", "4m", *sets)

    def uninstall(self):
        self.helm("uninstall", "baton", "-n", NAMESPACE, "--wait")

    # -- objects --

    def everything(self):
        """Every object of every kind whose name has to do with us; events are history."""
        kinds = [k for k in self.cluster.kubectl("api-resources", "--verbs=list", "-o", "name").split() if not k.startswith("events")]
        return [n for k in kinds for n in self.cluster.kubectl("get", k, "-A", "-o", "name", "--ignore-not-found").split() if "baton" in n]

    def kubectl(self, *args, **kw):
        return self.cluster.kubectl("-n", NAMESPACE, *args, **kw)

    def get(self, *args):
        return json.loads(self.kubectl("get", *args, "-o", "json"))

    def sample(self, name="chat", **changes):
        """The sample with some of spec's fields replaced; None removes one."""
        o = yaml.safe_load((ROOT / f"manifests/samples/{name}.yaml").read_text())
        for path, value in changes.items():
            at = o["spec"]
            *way, last = path.split("__")
            for step in way:
                at = at.setdefault(step, {})
            if value is None:
                at.pop(last, None)
            else:
                at[last] = value
        return json.dumps(o)

    def wait_ready(self, name="chat", seconds=180):
        r = self.kubectl("wait", f"infd/{name}", "--for=condition=Ready", f"--timeout={patience(seconds):.0f}s", timeout=patience(seconds) + 10, check=False)
        assert r.returncode == 0, f"{name} does not get Ready: {r.stderr}\n{self.story()}"

    def workers(self, role=None):
        """Worker pods that are not ending: {name, node, ip, role, ready}."""
        out = []
        for p in self.get("pods", "-l", "serving.baton.dev/infd")["items"]:
            m, s = p["metadata"], p.get("status", {})
            w = {"name": m["name"], "node": p["spec"].get("nodeName"), "ip": s.get("podIP"), "role": m["labels"].get("serving.baton.dev/role"),
                 "image": p["spec"]["containers"][0]["image"], "revision": m["labels"].get("serving.baton.dev/revision"),
                 "ready": any(c["type"] == "Ready" and c["status"] == "True" for c in s.get("conditions", []))}
            if "deletionTimestamp" not in m and role in (None, w["role"]):
                out.append(w)
        return out

    def ready(self, role):
        return [w for w in self.workers(role) if w["ready"]]

    def story(self):
        """What a person would look at when something is wrong."""
        parts = [self.cluster.kubectl("get", "pods", "-A", "-o", "wide", check=False).stdout,
                 self.kubectl("get", "infd,wp,events.events.k8s.io", check=False).stdout]
        for p in json.loads(self.kubectl("get", "pods", "-o", "json", check=False).stdout or '{"items": []}')["items"]:
            if not all(c.get("ready") for c in p["status"].get("containerStatuses", [{}])):
                parts.append(self.kubectl("describe", "pod", p["metadata"]["name"], check=False).stdout[-3000:])
                parts.append(self.kubectl("logs", "--tail=15", "--all-containers", p["metadata"]["name"], check=False).stdout)
        return "\n".join(parts)

    # -- asking from outside --

    def node_port(self):
        return self.get("service", "baton-router")["spec"]["ports"][0]["nodePort"]

    def port(self, node=1):
        """A port of 127.0.0.1 that leads to the router through a node."""
        if node not in self.ports:
            self.ports[node] = self.cluster.forward(f"10.200.0.{10 + node}", self.node_port())
        return self.ports[node]

    def ask(self, prompt, max_tokens=24, node=1, timeout=120, **more):
        """(text, headers) of a chat completion at temperature 0."""
        c = http.client.HTTPConnection("127.0.0.1", self.port(node), timeout=timeout)
        body = {"model": MODEL, "max_tokens": max_tokens, "temperature": 0, "messages": [{"role": "user", "content": prompt}], **more}
        try:
            c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            data = r.read()
            assert r.status == 200, f"HTTP {r.status}: {data[:500]!r}"
            return json.loads(data)["choices"][0]["message"]["content"], {k.lower(): v for k, v in r.getheaders()}
        finally:
            c.close()


def images(tag=None):
    """The images' archives, made anew from the built programs."""
    out = BUILD / ("images" if tag is None else f"images-{tag}")
    subprocess.run([ROOT / "tools/images", "--bin", BUILD / "bin", "--out", out, *(["--tag", tag] if tag else [])], check=True,
                   stdout=subprocess.DEVNULL)
    return sorted(out.glob("*.tar"))


__all__ = ["Baton", "Cluster", "MODEL", "NAMESPACE", "ROOT", "eventually", "images"]
