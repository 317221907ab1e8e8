"""Programs that run with exactly the rules of the chart, against a real kube-apiserver whose authorizer is RBAC."""
import contextlib
import copy
import json
import os
import pathlib
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import pytest

from conftest import ROOT, free_port, loopback, program, wait_for

sys.path.insert(0, str(ROOT / "tests/controller"))
import kubernetes  # noqa: E402

PROGRAMS = ("controller", "router", "agent")


def api(cluster, method, path, body=None, config=None, kind="application/json"):
    """One request, as the administrator or with a kubeconfig's token; (status, object)."""
    token = json.loads(pathlib.Path(config).read_text())["users"][0]["user"]["token"] if config else cluster.token
    context = ssl.create_default_context(cafile=cluster.dir / "certs" / "apiserver.crt")
    r = urllib.request.Request(cluster.server + path, method=method, data=json.dumps(body).encode() if body else None,
                               headers={"Authorization": "Bearer " + token, "Content-Type": kind})
    try:
        with urllib.request.urlopen(r, context=context, timeout=20) as a:
            return a.status, json.load(a)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


def needs():
    """{program: [rule]} of the manifests (which are the chart's): rules of its Role and its ClusterRole."""
    rules = {p: [] for p in PROGRAMS}
    text = (ROOT / "manifests/cluster/10-rbac.yaml").read_text()
    for doc in text.split("---\n"):
        kind, name = re.search(r"^kind: (\w+)$", doc, re.M), re.search(r"^  name: baton-([a-z]+)(-baton)?$", doc, re.M)
        if not kind or kind[1] not in ("Role", "ClusterRole"):
            continue
        for block in re.split(r"^  - ", doc[doc.index("\nrules:"):], flags=re.M)[1:]:
            field = {k: [x.strip().strip('"') for x in v.split(",") if x.strip()] for k, v in
                     re.findall(r"(\w+): \[(.*?)\]", block)}
            rules[name[1]].append({"cluster": kind[1] == "ClusterRole", "apiGroups": [g for g in field["apiGroups"]] or [""],
                                   "resources": field["resources"], "verbs": field["verbs"], "names": field.get("resourceNames", [])})
    return rules


def rights(name):
    """The single rights of a program: (cluster, group, resource, verb, object's name or None)."""
    return {(r["cluster"], g, res, v, n) for r in needs()[name] for g in r["apiGroups"] for res in r["resources"] for v in r["verbs"]
            for n in (r["names"] or [None])}


def rules_of(rights_):
    return [{"apiGroups": [g], "resources": [res], "verbs": [v], **({"resourceNames": [n]} if n else {})}
            for _, g, res, v, n in sorted(rights_, key=str)]


def grant(ns, name, rights_):
    """ServiceAccount, Role and ClusterRole with these rights, as one List."""
    account, subject = f"baton-{name}", [{"kind": "ServiceAccount", "name": f"baton-{name}", "namespace": ns}]
    group = "rbac.authorization.k8s.io"
    items = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ns}},
             {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": ns}}]
    for kind, full, meta in (("Role", account, {"namespace": ns}), ("ClusterRole", f"{account}-{ns}", {})):
        rules = rules_of(r for r in rights_ if r[0] == (kind == "ClusterRole"))
        items += [{"apiVersion": group + "/v1", "kind": kind, "metadata": {"name": full, **meta}, "rules": rules},
                  {"apiVersion": group + "/v1", "kind": kind + "Binding", "metadata": {"name": full, **meta},
                   "roleRef": {"apiGroup": group, "kind": kind, "name": full}, "subjects": subject}]
    return items


def apply(cluster, items):
    cluster.kubectl("apply", "--server-side", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def account_config(cluster, ns, account, pod=None):
    """A kubeconfig with a ServiceAccount's token, bound to a pod when there is one (the token then names the pod's node)."""
    spec = {"expirationSeconds": 3600}
    if pod:
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    status, o = api(cluster, "POST", f"/api/v1/namespaces/{ns}/serviceaccounts/{account}/token",
                    {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
    assert status == 201, o
    config = copy.deepcopy(json.loads(cluster.kubeconfig.read_text()))
    config["users"] = [{"name": "u", "user": {"token": o["status"]["token"]}}]
    config["contexts"][0]["context"]["namespace"] = ns
    path = cluster.dir / f"kubeconfig-{ns}-{account}"
    path.write_text(json.dumps(config))
    return path


class Running:
    """A program with a kubeconfig; its port is its own."""

    def __init__(self, name, kubeconfig, ns, node="n1", *args):
        self.host, self.port, self.folder = loopback(), free_port(), tempfile.TemporaryDirectory(prefix="baton-rbac-")
        self.path = pathlib.Path(self.folder.name)
        env = {**os.environ, "BATON_KUBECONFIG": str(kubeconfig), "BATON_POD_IP": self.host, "BATON_NODE_NAME": node}
        if name == "agent":
            env |= {"BATON_AGENT_DIR": self.folder.name, "BATON_MODELS_DIR": self.folder.name, "BATON_WEIGHTS_BUDGET": "64Mi"}
        env.pop("BATON_POD_NAMESPACE", None)
        self.proc = subprocess.Popen([program(f"baton-{name}"), "--port", str(self.port), *args], env=env, start_new_session=True,
                                     stderr=open(self.path / "log", "ab"), stdin=subprocess.DEVNULL)

    def ready(self):
        """(status, text) of /readyz; (0, "") while nobody listens."""
        try:
            with urllib.request.urlopen(f"http://{self.host}:{self.port}/readyz", timeout=5) as a:
                return a.status, a.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()
        except OSError:
            return 0, ""

    def metrics(self):
        with urllib.request.urlopen(f"http://{self.host}:{self.port}/metrics", timeout=5) as a:
            return a.read().decode()

    def log(self):
        return (self.path / "log").read_text()

    def stop(self):
        self.proc.send_signal(signal.SIGKILL)
        self.proc.wait(10)
        self.folder.cleanup()


@contextlib.contextmanager
def running(*args):
    r = Running(*args)
    try:
        yield r
    finally:
        r.stop()


@pytest.fixture(scope="session")
def cluster():
    c = kubernetes.Cluster()
    try:
        c.kubectl("apply", "-f", ROOT / "manifests/crds")
        c.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        c.kubectl("apply", "-f", ROOT / "manifests/cluster")
        for n in ("n1", "n2"):
            c.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": n}}))
        yield c
    finally:
        c.stop()


def pod_on(cluster, ns, name, node, labels=None, **spec):
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {}},
           "spec": {"nodeName": node, "containers": [{"name": "worker", "image": "x"}], **spec}}
    cluster.kubectl("-n", ns, "create", "-f", "-", input=json.dumps(pod))
    return cluster.get("-n", ns, "pod", name)


@pytest.fixture(scope="session")
def agent_config(cluster):
    """The agent of n1 in the namespace baton, as the DaemonSet would run it."""
    me = pod_on(cluster, "baton", "agent-n1", "n1", serviceAccountName="baton-agent")
    return account_config(cluster, "baton", "baton-agent", me)
