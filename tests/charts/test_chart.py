"""The Helm chart: it is well-formed, says what manifests/ says, and a real API server takes what it renders."""
import base64
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import pytest

from conftest import CACHE, ROOT, program

sys.path.insert(0, str(ROOT / "tests/controller"))
import kubernetes  # noqa: E402

CHART = ROOT / "charts/baton"
HELM = pathlib.Path(os.environ.get("BATON_HELM", CACHE / "bin/helm"))
HELM_LABELS = {"app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"}


def helm(*args, check=True, **env):
    assert HELM.exists(), f"{HELM} is missing: tools/setup kubectl"
    with tempfile.TemporaryDirectory() as home:
        r = subprocess.run([HELM, *map(str, args)], text=True, capture_output=True, timeout=120,
                           env=dict(os.environ, HELM_CACHE_HOME=home, HELM_CONFIG_HOME=home, HELM_DATA_HOME=home, **env))
    assert not check or r.returncode == 0, f"helm {' '.join(map(str, args))}: {r.stderr}"
    return r


def template(*sets, namespace="baton"):
    flags = [f for s in sets for f in ("--set", s)]
    return helm("template", "baton", CHART, "--namespace", namespace, "--kube-version", "1.37.2", *flags).stdout


def foreign_definition(kind):
    plural = kind.lower() + "s"
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": plural + ".monitoring.coreos.com"},
            "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": {"kind": kind, "plural": plural},
                     "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
                         "type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}}}]}}


@pytest.fixture(scope="module")
def cluster():
    c = kubernetes.Cluster(controllers=())
    try:
        c.kubectl("apply", "-f", str(ROOT / "manifests/crds"))
        c.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        for kind in ("PodMonitor", "PrometheusRule"):  # of the Prometheus operator; their contents are checked elsewhere
            c.kubectl("apply", "-f", "-", input=json.dumps(foreign_definition(kind)))
        c.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        for ns in ("baton", "other"):
            c.kubectl("create", "namespace", ns)
        yield c
    finally:
        c.stop()


def decode(text):
    """Objects of kubectl's JSON output: one after another, or a List."""
    found, at, d = [], 0, json.JSONDecoder()
    while at < len(text.rstrip()):
        o, at = d.raw_decode(text, at)
        found += o["items"] if o["kind"] == "List" else [o]
        at += len(text[at:]) - len(text[at:].lstrip())
    return found


_read = {}


def objects(cluster, text):
    """{kind/name: object} of a YAML text, read by kubectl."""
    if text not in _read:
        _read[text] = cluster.kubectl("create", "--dry-run=client", "--validate=ignore", "-o", "json", "-f", "-", input=text).stdout
    return {f"{o['kind']}/{o['metadata']['name']}": o for o in decode(_read[text])}


def test_lint_finds_nothing():
    out = helm("lint", "--strict", CHART).stdout
    assert "0 chart(s) failed" in out and "WARNING" not in out and "ERROR" not in out


def test_its_version_is_that_of_the_programs():
    version = re.search(r"^VERSION := (\S+)", (ROOT / "Makefile").read_text(), re.M)[1]
    chart = (CHART / "Chart.yaml").read_text()
    assert f"\nversion: {version}\n" in chart and f"\nappVersion: {version}\n" in chart


def test_the_plain_manifests_are_those_of_the_chart():
    r = subprocess.run([ROOT / "tools/manifests", "--check"], capture_output=True, text=True, timeout=120)
    assert r.returncode == 0, r.stderr


def test_every_value_is_documented():
    r = subprocess.run([ROOT / "tools/chart-docs", "--check"], capture_output=True, text=True, timeout=60)
    assert r.returncode == 0, r.stderr


def test_the_chart_is_small(tmp_path):
    helm("package", CHART, "-d", tmp_path)
    packed = sum(f.stat().st_size for f in tmp_path.iterdir())
    plain = sum(f.stat().st_size for f in CHART.rglob("*") if f.is_file())
    assert packed < plain < 700_000, (packed, plain)


CA = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nMIIBmDCCAT6gAwIBAgIUFf8kf0ZdO0m6M3z1x1pM0N5l1kUwCgYIKoZIzj0EAwIw\n-----END CERTIFICATE-----\n").decode()
VARIANTS = {
    "default": [],
    "keys and claim": ["router.apiKeys.secret=keys", "router.models.claim=models", "router.corsOrigin=https://x.example"],
    "no agent": ["agent.enabled=false", "policies.enabled=false"],
    "small": ["controller.replicas=1", "router.replicas=1", "agent.weightsGiB=2"],
    "placed": ["agent.nodeSelector.gpu=yes", "router.nodeSelector.zone=a", "controller.tolerations[0].operator=Exists",
               "router.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution=null"],
    "own image": ["image.repository=registry.example/baton", "image.tag=2.0.0", "image.pullPolicy=Always", "image.pullSecrets[0]=pull",
                  "controller.workerImage=registry.example/worker:1"],
    "balancer": ["router.service.type=LoadBalancer", "router.service.port=80", "router.service.annotations.a/b=c", "router.drainSeconds=60"],
    "folders": ["agent.runDir=/srv/run", "agent.segmentDir=/dev/shm/x", "agent.modelsDir=/srv/models", "router.models.hostPath=/srv/models", "agent.tierGiB=4"],
    "logs": ["log.level=debug", "log.format=text", "router.holdSeconds=20"],
    "ingress": ["router.ingress.host=chat.example", "router.ingress.tlsSecret=chat-tls", "router.ingress.className=nginx"],
    "network": ["networkPolicy.clients[0].podSelector.matchLabels.app=web"],
    "no network policy": ["networkPolicy.enabled=false", "monitoring.scrapeAnnotations=false"],
    "external metrics": ["externalMetrics.enabled=true"],
    "external metrics with a certificate": ["externalMetrics.enabled=true", "externalMetrics.tlsSecret=metrics-tls", "externalMetrics.caBundle=" + CA],
    "gpu": ["agent.gpu.enabled=true", "agent.priorityClassName="],
    "monitoring": ["monitoring.podMonitors.enabled=true", "monitoring.alerts.enabled=true", "monitoring.dashboards.enabled=true"],
    "keeps nothing": ["crds.keep=false"],
    "no definitions": ["crds.enabled=false", "uninstall.deleteWorkloads=true"],
    "more environment": ["controller.extraEnv[0].name=BATON_X", "controller.extraEnv[0].value=1", "router.podAnnotations.a/b=c"],
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_api_server_takes_it(cluster, name):
    text = template(*VARIANTS[name])
    r = cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", "-", input=text)
    assert len(r.stdout.splitlines()) == len(re.findall(r"^kind: ", text, re.M)) and "unchanged" not in r.stdout


def containers(o):
    spec = o["spec"]["template"]["spec"]
    return spec["containers"] + spec.get("initContainers", [])


def env(o):
    return {e["name"]: e.get("value") for e in o["spec"]["template"]["spec"]["containers"][0]["env"]}


def test_values_reach_the_programs(cluster):
    o = objects(cluster, template(*VARIANTS["own image"]))
    images = {c["image"] for d in o.values() if d["kind"] in ("Deployment", "DaemonSet") for c in containers(d)}
    assert images == {"registry.example/baton:2.0.0"}
    assert env(o["Deployment/baton-controller"])["BATON_WORKER_IMAGE"] == "registry.example/worker:1"
    o = objects(cluster, template(*VARIANTS["folders"]))
    agent = o["DaemonSet/baton-agent"]
    assert agent["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] == "13Gi", "8 + 4 + 1"
    assert env(agent)["BATON_TIER_BUDGET"] == "4Gi" and env(agent)["BATON_AGENT_DIR"] == "/srv/run"
    assert env(o["Deployment/baton-controller"])["BATON_AGENT_DIR"] == "/srv/run"
    for name in ("controller", "router"):
        assert env(o[f"Deployment/baton-{name}"])["BATON_MODELS_DIR"] == "/srv/models"
    mounts = o["Deployment/baton-router"]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert mounts == [{"name": "models", "mountPath": "/srv/models", "readOnly": True}]
    o = objects(cluster, template(*VARIANTS["keys and claim"]))
    router = o["Deployment/baton-router"]
    assert env(router)["BATON_API_KEYS_FILE"] == "/etc/baton/keys/keys"
    assert {v["name"]: sorted(v)[-1] for v in router["spec"]["template"]["spec"]["volumes"]} == {"models": "persistentVolumeClaim", "keys": "secret"}
    o = objects(cluster, template(*VARIANTS["balancer"], namespace="other"))
    assert o["Deployment/baton-router"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 100
    assert env(o["Deployment/baton-controller"])["BATON_ROUTER_URL"] == "http://baton-router.other.svc:80"
    assert {x["metadata"].get("namespace") for x in o.values()} == {"other", None}
    o = objects(cluster, template(*VARIANTS["small"]))
    assert not any(k.startswith("PodDisruptionBudget/") for k in o), "one replica with a budget could never be drained"
    o = objects(cluster, template(*VARIANTS["no agent"]))
    assert not any("agent" in k or "Admission" in k for k in o)


def test_programs_know_the_environment_that_they_are_given():
    blocks = []
    for sets in (v for k, v in VARIANTS.items() if k in ("keys and claim", "folders", "logs", "balancer")):
        blocks += template(*sets).split("\n---\n")
    for name in ("controller", "router", "agent"):
        text = subprocess.run([program(f"baton-{name}"), "--help"], capture_output=True, text=True, timeout=30).stdout
        known = set(re.findall(r"\[(BATON_\w+)\]", text))
        given = {e for b in blocks if re.search(rf"^kind: (Deployment|DaemonSet)$", b, re.M) and f"\n  name: baton-{name}\n" in b
                 for e in re.findall(r"\{name: (BATON_\w+), value: ", b)}
        assert len(given) >= 4 and given <= known, (name, given - known)


@pytest.mark.parametrize("sets", [[], ["router.models.claim=models", "router.apiKeys.secret=keys"], ["router.models.hostPath="]],
                         ids=["controller", "router with a claim", "router without models"])
def test_it_runs_restricted(cluster, sets):
    cluster.kubectl("label", "namespace", "other", "pod-security.kubernetes.io/enforce=restricted", "--overwrite")
    name = "router" if sets else "controller"
    o = objects(cluster, template(*sets, namespace="other"))[f"Deployment/baton-{name}"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": o["spec"]["template"]["spec"]}
    cluster.kubectl("-n", "other", "create", "--dry-run=server", "-f", "-", input=json.dumps(pod))
    cluster.kubectl("label", "namespace", "other", "pod-security.kubernetes.io/enforce-")


@pytest.mark.parametrize("value, says", [
    ("nope=1", "nope"), ("router.replicas=0", "replicas"), ("router.replicas=two", "replicas"), ("log.level=loud", "level"),
    ("image.pullPolicy=Sometimes", "pullPolicy"), ("image.repository=", "repository"), ("agent.weightsGiB=0", "weightsGiB"),
    ("agent.weightsGiB=1.5", "weightsGiB"), ("agent.modelsDir=models", "modelsDir"), ("router.service.port=70000", "port"),
    ("router.service.type=Ingress", "type"), ("controller.resources.limits.memory=lots", "memory"), ("router.models.hostpath=/x", "hostpath"),
    ("image.tag=a b", "tag"), ("policies.enabled=maybe", "enabled")])
def test_wrong_values_are_refused_with_their_name(value, says):
    r = helm("template", "baton", CHART, "--set", value, check=False)
    assert r.returncode != 0 and says in r.stderr and "values" in r.stderr, r


def test_install_rights_upgrade_and_uninstall(cluster):
    at = ("--kubeconfig", cluster.kubeconfig, "--namespace", "prod")
    out = helm("install", "baton", CHART, *at, "--create-namespace", "--set", "crds.enabled=false").stdout
    assert "kubectl -n prod apply" in out

    def can(who, verb, what, *where):
        what, _, sub = what.partition("/")
        return cluster.kubectl("auth", "can-i", verb, what, *where, *([f"--subresource={sub}"] if sub else []),
                               f"--as=system:serviceaccount:prod:baton-{who}", check=False).stdout.strip()
    for who, what, wanted in [
            ("router", ("list", "infd", "-n", "prod"), "yes"), ("router", ("list", "secrets", "-n", "prod"), "yes"),
            ("router", ("delete", "pods", "-n", "prod"), "no"), ("router", ("list", "infd", "-n", "default"), "no"),
            ("controller", ("create", "pods", "-n", "prod"), "yes"), ("controller", ("update", "workerpools/scale", "-n", "prod"), "yes"),
            ("controller", ("update", "workerpools", "-n", "prod"), "no"), ("controller", ("get", "pods", "-n", "default"), "no"),
            ("agent", ("patch", "pods/status", "-n", "default"), "yes"), ("agent", ("list", "secrets", "-n", "prod"), "no"),
            ("agent", ("delete", "pods", "-n", "prod"), "no"), ("agent", ("patch", "nodeinventories/status"), "yes")]:
        assert can(who, *what) == wanted, (who, what)
    cluster.kubectl("-n", "prod", "create", "-f", "-", input=(ROOT / "manifests/samples/chat.yaml").read_text())
    helm("upgrade", "baton", CHART, *at, "--set", "router.replicas=3,crds.enabled=false")
    assert cluster.get("-n", "prod", "deployment", "baton-router")["spec"]["replicas"] == 3
    helm("uninstall", "baton", *at, "--no-hooks")  # its Jobs need a kubelet; tests/rbac runs what they run
    left = cluster.kubectl("-n", "prod", "get", "all,sa,role,rolebinding,pdb", "-o", "name").stdout.split()
    assert [x for x in left if "baton-" in x] == []
    assert cluster.kubectl("get", "clusterrole,clusterrolebinding,validatingadmissionpolicy", "-o", "name").stdout.count("baton-") == 0
    assert "inferencedeployment.serving.baton.dev/chat" in left, "what users made stays, with its CRD"


def test_definitions_are_upgraded_kept_and_removed(cluster, tmp_path):
    """A release that had them in crds/, where Helm never looks again; then this chart; then nothing."""
    ours = ("inferencedeployments", "workerpools", "nodeinventories")
    at = ("--kubeconfig", cluster.kubeconfig, "--namespace", "kept")

    def columns():
        r = cluster.kubectl("get", "crd", "workerpools.serving.baton.dev", "-o", "json", check=False)
        return len(json.loads(r.stdout)["spec"]["versions"][0]["additionalPrinterColumns"]) if r.returncode == 0 else None
    old = tmp_path / "baton"
    shutil.copytree(CHART, old)
    (old / "templates/crds.yaml").unlink()
    (old / "definitions").rename(old / "crds")
    text, n = re.subn(r"        - name: Role\n          type: string\n(          .*\n)*", "", (old / "crds/workerpools.yaml").read_text(), count=1)
    assert n == 1
    (old / "crds/workerpools.yaml").write_text(text)
    cluster.kubectl("delete", "-f", str(ROOT / "manifests/crds"), "--wait", "--timeout=60s")
    try:
        helm("install", "baton", old, *at, "--create-namespace")
        before = columns()
        cluster.kubectl("-n", "kept", "create", "-f", "-", input=(ROOT / "manifests/samples/chat.yaml").read_text())
        uid = cluster.get("-n", "kept", "infd", "chat")["metadata"]["uid"]
        assert "invalid ownership metadata" in helm("upgrade", "baton", CHART, *at, check=False).stderr
        notes = helm("upgrade", "baton", CHART, *at, "--take-ownership").stdout  # as docs/operations.md says
        assert "kubectl delete crd -l app.kubernetes.io/part-of=baton" in notes
        assert columns() == before + 1, "helm upgrade upgrades them"
        out = helm("uninstall", "baton", *at)  # no hooks: nothing needs a kubelet
        assert all(name in out.stdout + out.stderr for name in ours), "Helm says what it keeps"
        assert cluster.get("-n", "kept", "infd", "chat")["metadata"]["uid"] == uid, "what users made stays"
        assert "EVERY InferenceDeployment" in helm("install", "baton", CHART, *at, "--set", "crds.keep=false").stdout
        helm("uninstall", "baton", *at, "--no-hooks")  # the controller is gone: nobody could take a finalizer away
        cluster.kubectl("wait", "--for=delete", "--timeout=30s", *(f"crd/{name}.serving.baton.dev" for name in ours))
        assert columns() is None
    finally:
        cluster.kubectl("apply", "-f", str(ROOT / "manifests/crds"))
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")


def yaml_blocks():
    for page in sorted((ROOT / "docs").glob("*.md")):
        for i, block in enumerate(re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.M | re.S)):
            if re.search(r"^kind:", block, re.M):  # else a part of an object
                yield pytest.param(block, id=f"{page.name}-{i}")


@pytest.mark.parametrize("block", list(yaml_blocks()))
def test_objects_in_the_documents_are_taken(cluster, block):
    cluster.kubectl("-n", "baton", "create", "--dry-run=server", "--validate=strict", "-f", "-", input=block)
