"""The embedded API server by raw HTTP: what the conformance suite (both servers) can't ask: kill -9, restarts, tokens, the event window,
watches and their order."""
import base64
import json
import os
import pathlib
import random
import shutil
import signal
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

import pytest
from patience import patience

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("BATON_BUILD", ROOT / "build"))
KUBECTL = pathlib.Path(os.environ.get("BATON_CACHE", pathlib.Path.home() / ".cache/baton")) / "k8s/kubectl"
CMS = "/api/v1/namespaces/default/configmaps"


class Server:
    def __init__(self, *args):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-apiserver-"))
        self.args, self.p = args, None
        self.start()

    def start(self):
        with open(self.dir / "log", "ab") as log:
            self.p = subprocess.Popen([BUILD / "bin/baton-local", "serve", "--data", self.dir / "data", "--kubeconfig", self.dir / "kc",
                                       "--no-kubelet", *self.args], stdout=log, stderr=log, start_new_session=True)
        begin = time.monotonic()
        while True:
            assert self.p.poll() is None and time.monotonic() < begin + patience(20), (self.dir / "log").read_text()[-3000:]
            try:
                self.read_config()
                if self.call("GET", "/readyz")[0] == 200:
                    return
            except (OSError, ValueError, KeyError, IndexError):
                pass
            time.sleep(0.05)

    def read_config(self):
        words = {}
        for line in (self.dir / "kc").read_text().splitlines():
            key, _, value = line.strip().partition(": ")
            words[key] = value
        self.url, self.token = words["server"], words["token"]
        ca = base64.b64decode(words["certificate-authority-data"]).decode()
        self.tls = ssl.create_default_context(cadata=ca)

    def kill(self):
        self.p.kill()
        self.p.wait()

    def close(self):
        self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)

    def open(self, method, path, body=None, token=None, content_type="application/json", timeout=20, headers=None):
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        r = urllib.request.Request(self.url + path, data=data, method=method, headers=headers or {})
        if token != "":
            r.add_header("Authorization", "Bearer " + (token or self.token))
        if data is not None:
            r.add_header("Content-Type", content_type)
        return urllib.request.urlopen(r, context=self.tls, timeout=patience(timeout))

    def call(self, method, path, body=None, **kw):
        try:
            with self.open(method, path, body, **kw) as r:
                status, data = r.status, r.read()
        except urllib.error.HTTPError as e:
            status, data = e.code, e.read()
        try:
            return status, json.loads(data)
        except ValueError:
            return status, data

    def do(self, method, path, body=None, **kw):
        status, o = self.call(method, path, body, **kw)
        assert status in (200, 201), (method, path, status, o)
        return o

    def config_map(self, name, **data):
        return self.do("POST", CMS, {"metadata": {"name": name}, "data": data})


@pytest.fixture(scope="module")
def server():
    s = Server()
    yield s
    s.close()


def test_no_acknowledged_write_is_lost_by_kill_9():
    seed = int(os.environ.get("BATON_SEED", random.randrange(1 << 30)))
    print("BATON_SEED =", seed)
    rng = random.Random(seed)
    s = Server()
    try:
        acked = {}  # name → (value, resourceVersion) of the last acknowledged write
        last_rv = 0
        for round_ in range(4):
            stop = threading.Event()
            lock = threading.Lock()

            def write(worker):
                r = random.Random(seed * 1000 + round_ * 10 + worker)
                n = 0
                while not stop.is_set():
                    name, value = f"w{worker}-{r.randrange(8)}", f"{round_}.{n}"
                    n += 1
                    try:
                        with lock:
                            known = name in acked
                        if known and r.random() < 0.2:
                            s.do("DELETE", f"{CMS}/{name}")
                            with lock:
                                del acked[name]
                            continue
                        body = {"metadata": {"name": name}, "data": {"v": value}}
                        o = s.do("PUT", f"{CMS}/{name}", body) if known else s.do("POST", CMS, body)
                        with lock:
                            acked[name] = (value, int(o["metadata"]["resourceVersion"]))
                    except AssertionError:
                        # A write cut off by the kill may have happened; then POST says that it exists: take what is there as known.
                        with lock:
                            acked.pop(name, None)
                        status, o = s.call("GET", f"{CMS}/{name}")
                        if status == 200:
                            with lock:
                                acked[name] = (o["data"]["v"], int(o["metadata"]["resourceVersion"]))
                    except (OSError, urllib.error.URLError):
                        unsure.add(name)
                        return

            unsure = set()
            threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
            for t in threads:
                t.start()
            time.sleep(0.3 + rng.random() * 0.5)
            s.kill()
            stop.set()
            for t in threads:
                t.join()
            s.start()
            items = {i["metadata"]["name"]: i for i in s.do("GET", CMS)["items"]}
            for name, (value, rv) in acked.items():
                if name in unsure:
                    continue
                assert name in items, f"{name} was acknowledged and is gone"
                assert items[name]["data"]["v"] == value and int(items[name]["metadata"]["resourceVersion"]) == rv, name
            for name in items:
                if name.startswith("w") and name not in unsure:
                    assert name in acked, f"{name} was deleted with an acknowledgement and is back"
            for name in unsure:
                acked.pop(name, None)
                if name in items:
                    acked[name] = (items[name]["data"]["v"], int(items[name]["metadata"]["resourceVersion"]))
            rv = int(s.do("GET", CMS)["metadata"]["resourceVersion"])
            assert rv >= max([v for _, v in acked.values()], default=0) and rv >= last_rv
            last_rv = rv
        assert len(acked) > 4, "the test wrote next to nothing"
    finally:
        s.close()


def test_a_watch_resumes_over_a_kill_9_without_a_gap():
    s = Server()
    try:
        s.config_map("a", v="1")
        rv = s.do("GET", CMS)["metadata"]["resourceVersion"]
        s.do("PUT", f"{CMS}/a", {"metadata": {"name": "a"}, "data": {"v": "2"}})
        s.config_map("b")
        s.do("DELETE", f"{CMS}/b")
        s.kill()
        s.start()
        with s.open("GET", f"{CMS}?watch=1&resourceVersion={rv}&timeoutSeconds=1") as r:
            events = [json.loads(line) for line in r]
        assert [(e["type"], e["object"]["metadata"]["name"]) for e in events] == [("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "b")]
        rvs = [int(e["object"]["metadata"]["resourceVersion"]) for e in events]
        assert rvs == sorted(rvs) and len(set(rvs)) == 3
    finally:
        s.close()


def test_the_address_and_the_tokens_stay_over_a_restart():
    s = Server()
    try:
        before = (s.url, s.token)
        s.p.send_signal(signal.SIGTERM)
        assert s.p.wait(timeout=patience(10)) == 0
        s.start()
        assert (s.url, s.token) == before
    finally:
        s.close()


def test_two_servers_cannot_share_a_data_folder(server):
    r = subprocess.run([BUILD / "bin/baton-local", "serve", "--data", server.dir / "data", "--no-kubelet"], capture_output=True, text=True,
                       timeout=patience(20))
    assert r.returncode != 0 and "locked" in r.stderr + r.stdout


def test_secrets_of_the_data_folder_are_private(server):
    for path in ("kc", "data/tokens", "data/pki/ca.key", "data/pki/server.key"):
        assert (server.dir / path).stat().st_mode & 0o077 == 0, path
    assert (server.dir / "data").stat().st_mode & 0o077 == 0


def test_without_a_token_only_health_and_version_answer(server):
    assert server.call("GET", CMS, token="")[0] == 401
    assert server.call("GET", CMS, token="x" * 64)[0] == 401
    assert server.call("GET", "/healthz", token="x" * 64)[0] == 401
    for path in ("/healthz", "/livez", "/readyz", "/version"):
        assert server.call("GET", path, token="")[0] == 200, path


def test_a_token_of_a_service_account_is_its_user(server):
    o = server.do("POST", "/api/v1/namespaces/default/serviceaccounts/default/token", {"spec": {"expirationSeconds": 600}})
    review = server.do("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, token=o["status"]["token"])
    assert review["status"]["userInfo"]["username"] == "system:serviceaccount:default:default"


def test_a_version_before_the_window_is_expired_on_list_and_watch(server):
    status, o = server.call("GET", f"{CMS}?resourceVersion=1&resourceVersionMatch=Exact")
    assert (status, o["reason"]) == (410, "Expired")
    with server.open("GET", f"{CMS}?watch=1&resourceVersion=1&timeoutSeconds=1") as r:
        assert r.status == 200
        event = json.loads(r.readline())
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


def test_pages_are_of_one_moment_whatever_is_written_between(server):
    for i in range(5):
        server.do("POST", CMS, {"metadata": {"name": f"page-{i}", "labels": {"page": "1"}}})
    path = f"{CMS}?labelSelector=page&limit=2"
    first = server.do("GET", path)
    server.do("DELETE", f"{CMS}/page-3")
    server.do("POST", CMS, {"metadata": {"name": "page-22", "labels": {"page": "1"}}})
    names, token = [i["metadata"]["name"] for i in first["items"]], first["metadata"]["continue"]
    while token:
        o = server.do("GET", f"{path}&continue={token}")
        assert o["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        names += [i["metadata"]["name"] for i in o["items"]]
        token = o["metadata"].get("continue")
    assert names == [f"page-{i}" for i in range(5)]


def test_every_watcher_sees_every_event_in_the_same_order(server):
    rv = server.do("GET", CMS)["metadata"]["resourceVersion"]
    seen = [[] for _ in range(5)]

    def follow(mine):
        with server.open("GET", f"{CMS}?watch=1&resourceVersion={rv}&timeoutSeconds=120") as r:
            for line in r:
                e = json.loads(line)
                mine.append((e["type"], e["object"]["metadata"]["name"], e["object"]["metadata"]["resourceVersion"]))
                if e["object"]["metadata"]["name"] == "order-last":
                    return

    threads = [threading.Thread(target=follow, args=(s,)) for s in seen]
    for t in threads:
        t.start()

    def write(k):
        for i in range(10):
            server.config_map(f"order-{k}-{i}")
            server.do("DELETE", f"{CMS}/order-{k}-{i}")

    writers = [threading.Thread(target=write, args=(k,)) for k in range(3)]
    for t in writers:
        t.start()
    for t in writers:
        t.join()
    server.config_map("order-last")
    for t in threads:
        t.join()
    assert len(seen[0]) == 61 and all(s == seen[0] for s in seen)
    assert [int(v) for _, _, v in seen[0]] == sorted(int(v) for _, _, v in seen[0])


def test_a_watch_by_label_turns_changes_into_arrivals_and_departures(server):
    rv = server.do("GET", CMS)["metadata"]["resourceVersion"]
    server.config_map("mover")
    for value in ("yes", "yes", "no"):
        server.do("PATCH", f"{CMS}/mover", {"metadata": {"labels": {"in": value}, "annotations": {"n": str(time.time())}}},
                  content_type="application/merge-patch+json")
    server.do("DELETE", f"{CMS}/mover")
    with server.open("GET", f"{CMS}?watch=1&resourceVersion={rv}&labelSelector=in%3Dyes&timeoutSeconds=1") as r:
        events = [json.loads(line) for line in r]
    assert [e["type"] for e in events] == ["ADDED", "MODIFIED", "DELETED"]


def test_one_of_many_writers_with_the_same_version_wins(server):
    o = server.config_map("race", v="0")
    results = []

    def put(i):
        body = dict(o, data={"v": f"by {i}"})
        results.append(server.call("PUT", f"{CMS}/race", body)[0])

    threads = [threading.Thread(target=put, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(results) == [200] + [409] * 7


def test_an_object_over_the_limit_is_refused(server):
    status, _ = server.call("POST", "/api/v1/namespaces/default/events",
                            {"metadata": {"name": "big"}, "involvedObject": {"namespace": "default"}, "message": "x" * (1600 * 1024)})
    assert status == 413
    try:
        status, _ = server.call("POST", CMS, {"metadata": {"name": "big"}, "data": {"x": "y" * (4 << 20)}})
        assert status == 413
    except urllib.error.URLError:
        pass  # the server hangs up on a client that goes on sending
    assert server.call("GET", f"{CMS}/big")[0] == 404


def test_hostile_bodies_get_an_answer_and_the_server_lives(server):
    rng = random.Random(7)
    valid = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "labels": {"a": "b"}}, "data": {"k": "v"}}).encode()
    bodies = [b"[" * 100000, b'{"a":' * 5000, b"\x00" * 64, b"k8s\x00" + os.urandom(200), b'{"metadata":{"name":{}}}', b'{"metadata":[]}', b"1",
              b'{"metadata":{"labels":[]}}', b'{"metadata":{"name":"\\ud800"}}', b'{"metadata":{"managedFields":[{"fieldsV1":3}],"name":"m"}}',
              b'{"metadata":{"managedFields":7,"name":"m2"}}', b'{"metadata":{"ownerReferences":[3],"name":"m3"}}']
    for _ in range(150):
        b = bytearray(valid)
        for _ in range(rng.randrange(1, 4)):
            b[rng.randrange(len(b))] = rng.randrange(256)
        bodies.append(bytes(b))
    types = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")
    for i, body in enumerate(bodies):
        status, o = server.call("POST", CMS + "?dryRun=All", body, content_type=types[i % 3])
        assert 200 <= status < 500, (body[:80], status, o)
        for kind in ("application/merge-patch+json", "application/json-patch+json", "application/strategic-merge-patch+json"):
            status, o = server.call("PATCH", f"{CMS}/kube-root-ca.crt?dryRun=All", body, content_type=kind)
            assert 200 <= status < 500, (body[:80], kind, status, o)
        status, o = server.call("PATCH", f"{CMS}/kube-root-ca.crt?dryRun=All&fieldManager=f", body, content_type="application/apply-patch+yaml")
        assert 200 <= status < 500, (body[:80], status, o)
    assert server.call("GET", "/readyz")[0] == 200


def test_exec_and_port_forward_say_what_to_do_instead(server):
    server.do("POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": "shell"}, "spec": {"containers": [{"name": "c", "image": "x"}]}})
    for sub, words in (("exec", "shell here"), ("portforward", "podIP"), ("attach", "shell here")):
        status, o = server.call("POST", f"/api/v1/namespaces/default/pods/shell/{sub}")
        assert status == 501 and words in o["message"], o


def test_an_eviction_is_held_by_a_budget_and_allowed_within_it(server):
    pods = "/api/v1/namespaces/default/pods"
    for i in range(2):
        server.do("POST", pods, {"metadata": {"name": f"e{i}", "labels": {"app": "e"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}})
        server.do("PATCH", f"{pods}/e{i}/status", {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}},
                  content_type="application/strategic-merge-patch+json")
    server.do("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
              {"metadata": {"name": "e"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "e"}}}})
    evict = lambda i: server.call("POST", f"{pods}/e{i}/eviction", {"metadata": {"name": f"e{i}"}})  # noqa: E731
    assert evict(0)[0] == 201
    status, o = evict(1)
    assert (status, o["details"]["causes"][0]["reason"]) == (429, "DisruptionBudget")


def test_a_definition_that_goes_takes_its_objects_and_its_discovery(server):
    crd = {"metadata": {"name": "things.a.dev"}, "spec": {
        "group": "a.dev", "scope": "Cluster", "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]}}
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    server.do("POST", crds, crd)
    server.do("POST", "/apis/a.dev/v1/things", {"apiVersion": "a.dev/v1", "kind": "Thing", "metadata": {"name": "x"}})
    server.do("DELETE", f"{crds}/things.a.dev")
    assert server.call("GET", f"{crds}/things.a.dev")[0] == 404
    assert server.call("GET", "/apis/a.dev/v1/things/x")[0] == 404
    server.do("POST", crds, crd)
    assert server.do("GET", "/apis/a.dev/v1/things")["items"] == []
    server.do("DELETE", f"{crds}/things.a.dev")


def test_typed_commands_of_kubectl_send_protobuf_and_are_understood(server):
    def kubectl(*args):
        r = subprocess.run([KUBECTL, "--kubeconfig", server.dir / "kc", *args], capture_output=True, text=True, timeout=patience(60))
        assert r.returncode == 0, (args, r.stderr)
        return r.stdout

    kubectl("create", "namespace", "typed")
    in_ns = ("-n", "typed")
    kubectl("create", "configmap", "c", "--from-literal=a=b", *in_ns)
    kubectl("create", "secret", "generic", "s", "--from-literal=a=b", *in_ns)
    kubectl("create", "serviceaccount", "sa", *in_ns)
    kubectl("create", "deployment", "d", "--image=x", "--replicas=2", "--port=80", *in_ns)
    kubectl("create", "service", "clusterip", "svc", "--tcp=80:8080", *in_ns)
    kubectl("create", "role", "r", "--verb=get", "--resource=pods", *in_ns)
    kubectl("create", "rolebinding", "rb", "--role=r", "--serviceaccount=typed:sa", *in_ns)
    kubectl("create", "quota", "q", "--hard=pods=2", *in_ns)
    kubectl("create", "pdb", "p", "--selector=a=b", "--min-available=1", *in_ns)
    kubectl("create", "priorityclass", "pc", "--value=7")
    kubectl("autoscale", "deployment", "d", "--min=1", "--max=3", "--cpu=50%", *in_ns)
    assert len(kubectl("create", "token", "sa", *in_ns)) > 20
    assert kubectl("auth", "can-i", "get", "pods", *in_ns).strip() == "yes"
    assert "baton-admin" in kubectl("auth", "whoami")
    d = json.loads(kubectl("get", "deployment", "d", "-o", "json", *in_ns))
    assert d["spec"]["replicas"] == 2 and d["spec"]["template"]["spec"]["containers"][0]["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    s = json.loads(kubectl("get", "secret", "s", "-o", "json", *in_ns))
    assert s["data"] == {"a": "Yg=="} and s["type"] == "Opaque"
    svc = json.loads(kubectl("get", "service", "svc", "-o", "json", *in_ns))
    assert svc["spec"]["ports"][0]["targetPort"] == 8080
    kubectl("delete", "namespace", "typed")


def test_objects_are_read_by_the_schema_of_today_and_of_the_version_asked_for(server):
    spec = lambda **props: {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": props}}}}  # noqa: E731
    text = {"type": "string"}
    crd = {"metadata": {"name": "olds.a.dev"}, "spec": {
        "group": "a.dev", "scope": "Cluster", "names": {"plural": "olds", "kind": "Old"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": spec(a=text)},
                     {"name": "v2", "served": True, "storage": False, "schema": spec(a=text, b=text)}]}}
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    made = server.do("POST", crds, crd)
    server.do("POST", "/apis/a.dev/v2/olds", {"apiVersion": "a.dev/v2", "kind": "Old", "metadata": {"name": "x"}, "spec": {"a": "1", "b": "2"}})
    assert server.do("GET", "/apis/a.dev/v1/olds/x")["spec"] == {"a": "1"}
    assert server.do("GET", "/apis/a.dev/v2/olds/x")["spec"] == {"a": "1", "b": "2"}
    made["spec"]["versions"][1]["schema"] = spec(a=text, b=text, c={"type": "string", "default": "new"})
    server.do("PUT", f"{crds}/olds.a.dev", made)
    assert server.do("GET", "/apis/a.dev/v2/olds")["items"][0]["spec"] == {"a": "1", "b": "2", "c": "new"}
    server.do("DELETE", f"{crds}/olds.a.dev")
