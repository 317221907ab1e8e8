"""Scheduling gates of pods and ControllerRevisions. Source: Kubernetes API reference, v1.37."""


def pods(ns, name=""):
    return f"/api/v1/namespaces/{ns}/pods" + (f"/{name}" if name else "")


def revisions(ns, name=""):
    return f"/apis/apps/v1/namespaces/{ns}/controllerrevisions" + (f"/{name}" if name else "")


def gated(*gates):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c", "image": "x"}], "schedulingGates": [{"name": g} for g in gates]}}


def revision(name="r", number=1, **data):
    return {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": name}, "revision": number,
            "data": {"spec": data}}


def test_a_gated_pod_says_that_it_waits(api, ns):
    o = api.do("POST", pods(ns), gated("a.example/x"))
    c = [c for c in o["status"]["conditions"] if c["type"] == "PodScheduled"]
    assert len(c) == 1 and c[0]["status"] == "False" and c[0]["reason"] == "SchedulingGated"


def test_a_gated_pod_can_not_be_bound(api, ns):
    api.do("POST", pods(ns), gated("a.example/x"))
    code, o = api.call("POST", pods(ns, "p/binding"), {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"},
                                                       "target": {"apiVersion": "v1", "kind": "Node", "name": "n"}})[:2]
    assert code == 409 and "non-empty .spec.schedulingGates" in o["message"]


def test_one_gate_is_lifted_and_others_stay(api, ns):
    api.do("POST", pods(ns), gated("a.example/x", "b.example/y"))
    patch = {"spec": {"schedulingGates": [{"$patch": "delete", "name": "a.example/x"}]}}
    o = api.do("PATCH", pods(ns, "p"), patch, content_type="application/strategic-merge-patch+json")
    assert o["spec"]["schedulingGates"] == [{"name": "b.example/y"}]


def test_a_gate_can_not_be_added(api, ns):
    api.do("POST", pods(ns), gated("a.example/x"))
    patch = {"spec": {"schedulingGates": [{"name": "b.example/y"}]}}
    code, o = api.call("PATCH", pods(ns, "p"), patch, content_type="application/strategic-merge-patch+json")[:2]
    assert code == 422 and "only deletion is allowed, but found new scheduling gate 'b.example/y'" in o["message"]


def test_a_revision_keeps_its_data_and_may_be_numbered_anew(api, ns):
    # The server compares bytes, and a patch writes them anew: compact, in order of keys.
    o = api.do("POST", revisions(ns), {**revision(), "data": {}})
    assert o["revision"] == 1 and o["data"] == {}
    o = api.do("PATCH", revisions(ns, "r"), {"revision": 7}, content_type="application/merge-patch+json")
    assert o["revision"] == 7
    code, o = api.call("PATCH", revisions(ns, "r"), {"data": {"a": 2}},
                       content_type="application/merge-patch+json")[:2]
    assert code == 422 and "field is immutable" in o["message"]


def test_a_revision_without_data_or_with_a_negative_number_is_refused(api, ns):
    body = revision()
    del body["data"]
    assert api.call("POST", revisions(ns), body)[0] == 422
    assert api.call("POST", revisions(ns), revision(number=-1))[0] == 422
