"""The conformance suite runs every case twice: against the embedded API server ("local") and against a real
kube-apiserver v1.37 with etcd and kube-controller-manager ("real"), with the kubectl of the same build. Cases come from the
Kubernetes API's documentation; none may be skipped, and both must pass all of them.

BATON_CONFORMANCE=local or =real runs one side only."""
import json
import os
import pathlib
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import base64
import urllib.error
import urllib.request

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "controller"))
import kubernetes as real_kubernetes  # noqa: E402
from patience import patience  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("BATON_BUILD", ROOT / "build"))
KUBECTL = real_kubernetes.BIN / "kubectl"
SIDES = [os.environ["BATON_CONFORMANCE"]] if os.environ.get("BATON_CONFORMANCE") else ["local", "real"]


class LocalCluster:
    """baton-local alone: the API server, no kubelet."""

    def __init__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-conformance-"))
        self.kubeconfig = self.dir / "kubeconfig"
        log = open(self.dir / "log", "wb")
        self.p = subprocess.Popen([BUILD / "bin/baton-local", "serve", "--data", self.dir / "data", "--kubeconfig", self.kubeconfig,
                                   "--no-kubelet"], stdout=log, stderr=log, start_new_session=True)
        begin = time.monotonic()
        while not self.kubeconfig.exists() or self.kubectl("get", "--raw", "/readyz", check=False).returncode:
            assert self.p.poll() is None and time.monotonic() < begin + patience(30), (self.dir / "log").read_text()[-2000:]
            time.sleep(0.1)

    def kubectl(self, *args, input=None, check=True):
        r = subprocess.run([KUBECTL, "--kubeconfig", self.kubeconfig, *args], input=input, text=True, capture_output=True, timeout=patience(60))
        assert not check or r.returncode == 0, f"kubectl {' '.join(map(str, args))}: {r.stderr}"
        return r

    def stop(self):
        self.p.kill()
        self.p.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


class Api:
    """A cluster seen through kubectl and through plain HTTP."""

    def __init__(self, cluster, side):
        self.cluster, self.side = cluster, side
        c = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json").stdout)
        self.server = c["clusters"][0]["cluster"]["server"]
        self.token = c["users"][0]["user"]["token"]
        self.tls = ssl.create_default_context(cadata=base64.b64decode(c["clusters"][0]["cluster"]["certificate-authority-data"]).decode())
        self.counter = 0

    def kubectl(self, *args, input=None, check=True):
        if isinstance(input, (dict, list)):
            input = json.dumps(input)
        return self.cluster.kubectl(*args, input=input, check=check)

    def open(self, method, path, body=None, content_type="application/json", accept="application/json", token=None, timeout=30):
        if body is not None and not isinstance(body, bytes):
            body = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        r = urllib.request.Request(self.server + path, data=body, method=method, headers={"Accept": accept})
        if body is not None:
            r.add_header("Content-Type", content_type)
        token = self.token if token is None else token
        if token:
            r.add_header("Authorization", "Bearer " + token)
        return urllib.request.urlopen(r, context=self.tls, timeout=patience(timeout))

    def call(self, method, path, body=None, **kw):
        """(status, decoded body, headers)"""
        try:
            with self.open(method, path, body, **kw) as r:
                status, data, headers = r.status, r.read(), r.headers
        except urllib.error.HTTPError as e:
            status, data, headers = e.code, e.read(), e.headers
        try:
            return status, json.loads(data), headers
        except ValueError:
            return status, data, headers

    def do(self, method, path, body=None, expect=(200, 201), **kw):
        status, data, _ = self.call(method, path, body, **kw)
        expect = (expect,) if isinstance(expect, int) else expect
        assert status in expect, f"{method} {path}: {status} {data}"
        return data

    def watch(self, path, seconds=30, until=None, **kw):
        """Events until `until(events)` is true or the stream ends."""
        events = []
        sep = "&" if "?" in path else "?"
        with self.open("GET", f"{path}{sep}watch=1&timeoutSeconds={seconds}", timeout=seconds + 5, **kw) as r:
            for line in r:
                events.append(json.loads(line))
                if until and until(events):
                    break
        return events

    def name(self, stem="x"):
        self.counter += 1
        return f"{stem}-{self.counter}"


@pytest.fixture(scope="session", params=SIDES)
def api(request):
    if request.param == "real":
        cluster = real_kubernetes.Cluster(controllers=("garbage-collector-controller", "namespace-controller", "serviceaccount-controller"))
    else:
        cluster = LocalCluster()
    a = Api(cluster, request.param)
    yield a
    cluster.stop()


@pytest.fixture
def ns(api):
    """A namespace of the case's own."""
    name = api.name("case")
    api.do("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    api.call("DELETE", f"/api/v1/namespaces/{name}")


def eventually(what, seconds=20, every=0.1):
    begin = time.monotonic()
    while True:
        value = what()
        if value:
            return value
        assert time.monotonic() < begin + patience(seconds), f"not within {time.monotonic() - begin:.0f} s: {value!r}"
        time.sleep(every)


WIDGET_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.test.baton.dev"},
    "spec": {
        "group": "test.baton.dev", "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList", "shortNames": ["wi"], "categories": ["all", "testing"]},
        "versions": [{
            "name": "v1", "served": True, "storage": True,
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                                                     "labelSelectorPath": ".status.selector"}},
            "additionalPrinterColumns": [
                {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
                {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"},
                {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "priority": 1},
                {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
            "schema": {"openAPIV3Schema": {
                "type": "object", "description": "A widget for tests.", "required": ["spec"],
                "properties": {
                    "spec": {
                        "type": "object", "description": "What the widget should be.", "required": ["color"],
                        "x-kubernetes-validations": [
                            {"rule": "!has(self.min) || !has(self.max) || self.min <= self.max", "message": "min must not be above max"},
                            {"rule": "!has(oldSelf.fixed) || (has(self.fixed) && self.fixed == oldSelf.fixed)", "message": "fixed can not be changed"}],
                        "properties": {
                            "color": {"type": "string", "description": "The color.", "enum": ["red", "green", "blue"]},
                            "size": {"type": "integer", "minimum": 1, "maximum": 100, "default": 10},
                            "name": {"type": "string", "maxLength": 10, "pattern": "^[a-z]+$"},
                            "min": {"type": "integer"}, "max": {"type": "integer"}, "fixed": {"type": "string"},
                            "replicas": {"type": "integer", "format": "int32", "minimum": 0, "default": 1},
                            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                            "quantity": {"x-kubernetes-int-or-string": True},
                            "tags": {"type": "array", "x-kubernetes-list-type": "set", "maxItems": 5, "items": {"type": "string"}},
                            "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                                      "items": {"type": "object", "required": ["name"], "properties": {
                                          "name": {"type": "string"}, "count": {"type": "integer", "default": 1}, "note": {"type": "string"}}}},
                            "steps": {"type": "array", "items": {"type": "string"}}}},
                    "status": {"type": "object", "properties": {
                        "replicas": {"type": "integer"}, "selector": {"type": "string"}, "observed": {"type": "integer"},
                        "conditions": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
                                       "items": {"type": "object", "required": ["type", "status"],
                                                 "properties": {"type": {"type": "string"}, "status": {"type": "string"}}}}}}}}}}]}}


@pytest.fixture(scope="session")
def widgets(api):
    """The CRD `widgets.test.baton.dev`, established; gives the path of a namespace's collection."""
    api.kubectl("apply", "-f", "-", input=WIDGET_CRD)
    api.kubectl("wait", "--for=condition=Established", "crd/widgets.test.baton.dev", "--timeout=30s")
    eventually(lambda: api.call("GET", "/apis/test.baton.dev/v1/namespaces/default/widgets")[0] == 200)
    return lambda ns, name="": f"/apis/test.baton.dev/v1/namespaces/{ns}/widgets" + (f"/{name}" if name else "")


def widget(called, /, **spec):
    return {"apiVersion": "test.baton.dev/v1", "kind": "Widget", "metadata": {"name": called}, "spec": {"color": "red", **spec}}


def config_map(name, data=None, **meta):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **meta}, "data": data or {}}


def pod(name, **spec):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"containers": [{"name": "main", "image": "none", "command": ["sleep", "1"]}], **spec}}
