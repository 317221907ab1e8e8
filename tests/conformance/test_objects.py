"""Objects: create, read, update, delete, lists, selectors, preconditions, errors.
Source: Kubernetes API concepts, API conventions."""
import re

import pytest
from conftest import config_map, eventually, pod


def cms(ns, name=""):
    return f"/api/v1/namespaces/{ns}/configmaps" + (f"/{name}" if name else "")


def pods(ns, name=""):
    return f"/api/v1/namespaces/{ns}/pods" + (f"/{name}" if name else "")


def test_create_fills_in_what_the_server_owns(api, ns):
    status, o, _ = api.call("POST", cms(ns), config_map("a", {"k": "v"}))
    m = o["metadata"]
    assert status == 201 and o["data"] == {"k": "v"}
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", m["uid"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", m["creationTimestamp"])
    assert m["namespace"] == ns and m["resourceVersion"] and o["kind"] == "ConfigMap" and o["apiVersion"] == "v1"


def test_get_returns_what_was_created(api, ns):
    made = api.do("POST", cms(ns), config_map("a", {"k": "v"}))
    assert api.do("GET", cms(ns, "a")) == made


def test_creating_twice_is_a_conflict(api, ns):
    api.do("POST", cms(ns), config_map("a"))
    status, o, _ = api.call("POST", cms(ns), config_map("a"))
    assert (status, o["reason"], o["kind"]) == (409, "AlreadyExists", "Status")
    assert o["details"]["name"] == "a" and '"a" already exists' in o["message"]


def test_what_is_not_there_is_404_with_details(api, ns):
    status, o, _ = api.call("GET", cms(ns, "nope"))
    assert (status, o["reason"], o["code"]) == (404, "NotFound", 404)
    assert o["details"] == {"name": "nope", "kind": "configmaps"} and o["message"] == 'configmaps "nope" not found'


def test_generate_name_makes_a_fresh_name(api, ns):
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "g-"}}
    a, b = api.do("POST", cms(ns), body), api.do("POST", cms(ns), body)
    assert a["metadata"]["name"] != b["metadata"]["name"] and re.fullmatch(r"g-[a-z0-9]{5}", a["metadata"]["name"])


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash", "a" * 254, "sp ace"])
def test_bad_names_are_422(api, ns, name):
    status, o, _ = api.call("POST", cms(ns), config_map(name))
    assert (status, o["reason"]) == (422, "Invalid")
    assert o["details"]["causes"][0]["field"] == "metadata.name"


def test_no_name_is_422(api, ns):
    status, o, _ = api.call("POST", cms(ns), {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}})
    assert (status, o["reason"]) == (422, "Invalid")


def test_malformed_json_is_400(api, ns):
    status, o, _ = api.call("POST", cms(ns), "{nope")
    assert (status, o["kind"], o["status"]) == (400, "Status", "Failure")


def test_a_body_of_another_kind_is_400(api, ns):
    status, o, _ = api.call("POST", cms(ns), pod("p"))
    assert status == 400, o


def test_a_body_for_another_namespace_is_400(api, ns):
    status, o, _ = api.call("POST", cms(ns), config_map("a", namespace="default"))
    assert (status, o["reason"]) == (400, "BadRequest")


def test_a_missing_namespace_is_404(api):
    status, o, _ = api.call("POST", cms("no-such-namespace"), config_map("a"))
    assert (status, o["reason"]) == (404, "NotFound")


def test_yaml_bodies_are_accepted(api, ns):
    o = api.do("POST", cms(ns), "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: plain\ndata:\n  a: 'b'\n", content_type="application/yaml")
    assert o["data"] == {"a": "b"}


def test_dry_run_persists_nothing(api, ns):
    o = api.do("POST", cms(ns) + "?dryRun=All", config_map("dry"))
    assert o["metadata"]["uid"]
    assert api.call("GET", cms(ns, "dry"))[0] == 404


def test_update_replaces_and_bumps_the_version(api, ns):
    o = api.do("POST", cms(ns), config_map("a", {"k": "1", "gone": "x"}))
    v = o["metadata"]["resourceVersion"]
    o["data"] = {"k": "2"}
    n = api.do("PUT", cms(ns, "a"), o)
    assert n["data"] == {"k": "2"} and n["metadata"]["resourceVersion"] != v and n["metadata"]["uid"] == o["metadata"]["uid"]


def test_a_stale_update_is_409(api, ns):
    o = api.do("POST", cms(ns), config_map("a", {"k": "1"}))
    api.do("PUT", cms(ns, "a"), {**o, "data": {"k": "2"}})
    status, e, _ = api.call("PUT", cms(ns, "a"), {**o, "data": {"k": "3"}})
    assert (status, e["reason"]) == (409, "Conflict") and "modified" in e["message"]


def test_an_update_without_version_is_unconditional(api, ns):
    api.do("POST", cms(ns), config_map("a", {"k": "1"}))
    assert api.do("PUT", cms(ns, "a"), config_map("a", {"k": "2"}))["data"] == {"k": "2"}


def test_an_update_that_changes_nothing_keeps_the_version(api, ns):
    o = api.do("POST", cms(ns), config_map("a", {"k": "1"}))
    assert api.do("PUT", cms(ns, "a"), o)["metadata"]["resourceVersion"] == o["metadata"]["resourceVersion"]


def test_an_update_of_what_is_not_there_is_404(api, ns):
    assert api.call("PUT", cms(ns, "a"), config_map("a"))[0] == 404


def test_an_update_with_another_uid_is_409(api, ns):
    o = api.do("POST", cms(ns), config_map("a"))
    o["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    assert api.call("PUT", cms(ns, "a"), o)[0] == 409


def test_name_in_path_and_body_must_agree(api, ns):
    api.do("POST", cms(ns), config_map("a"))
    assert api.call("PUT", cms(ns, "a"), config_map("b"))[0] == 400


def test_delete_removes(api, ns):
    api.do("POST", cms(ns), config_map("a"))
    o = api.do("DELETE", cms(ns, "a"))
    assert o["kind"] in ("Status", "ConfigMap")
    assert api.call("GET", cms(ns, "a"))[0] == 404
    assert api.call("DELETE", cms(ns, "a"))[0] == 404


def test_delete_preconditions_protect(api, ns):
    o = api.do("POST", cms(ns), config_map("a"))
    status, e, _ = api.call("DELETE", cms(ns, "a"), {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "other"}})
    assert (status, e["reason"]) == (409, "Conflict")
    status, _, _ = api.call("DELETE", cms(ns, "a"), {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"resourceVersion": "1"}})
    assert status == 409
    api.do("DELETE", cms(ns, "a"), {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": o["metadata"]["uid"]}})


def test_delete_collection_takes_the_selected(api, ns):
    for n, l in (("a", "x"), ("b", "x"), ("c", "y")):
        api.do("POST", cms(ns), config_map(n, labels={"l": l}))
    api.do("DELETE", cms(ns) + "?labelSelector=l%3Dx")
    left = {o["metadata"]["name"] for o in api.do("GET", cms(ns))["items"]}
    assert "c" in left and not {"a", "b"} & left


def test_finalizers_hold_a_deletion(api, ns):
    api.do("POST", cms(ns), config_map("a", finalizers=["test.baton.dev/hold"]))
    api.do("DELETE", cms(ns, "a"))
    o = api.do("GET", cms(ns, "a"))
    assert o["metadata"]["deletionTimestamp"]
    o["metadata"]["finalizers"] = []
    api.do("PUT", cms(ns, "a"), o)
    eventually(lambda: api.call("GET", cms(ns, "a"))[0] == 404)


def test_list_has_a_version_and_no_item_kinds(api, ns):
    api.do("POST", cms(ns), config_map("a"))
    l = api.do("GET", cms(ns))
    assert l["kind"] == "ConfigMapList" and l["metadata"]["resourceVersion"]
    assert all("kind" not in i for i in l["items"])


def test_lists_come_sorted_by_name(api, ns):
    for n in ("b", "a", "c"):
        api.do("POST", cms(ns), config_map(n))
    names = [i["metadata"]["name"] for i in api.do("GET", cms(ns))["items"]]
    assert names == sorted(names)


def test_limit_and_continue_page_through(api, ns):
    for i in range(7):
        api.do("POST", cms(ns), config_map(f"p{i}", labels={"page": "y"}))
    seen, token = [], ""
    while True:
        l = api.do("GET", cms(ns) + f"?limit=3&labelSelector=page%3Dy" + (f"&continue={token}" if token else ""))
        seen += [i["metadata"]["name"] for i in l["items"]]
        token = l["metadata"].get("continue", "")
        if not token:
            break
    assert seen == [f"p{i}" for i in range(7)]


def test_a_malformed_continue_is_400(api, ns):
    assert api.call("GET", cms(ns) + "?limit=3&continue=garbage")[0] == 400


@pytest.mark.parametrize("selector, want", [
    ("l=x", "ab"), ("l==x", "ab"), ("l!=x", "cd"), ("l in (x,y)", "abc"), ("l notin (x)", "cd"), ("l", "abc"), ("!l", "d"), ("l=x,m=1", "a")])
def test_label_selectors(api, ns, selector, want):
    for n, labels in (("a", {"l": "x", "m": "1"}), ("b", {"l": "x"}), ("c", {"l": "y"}), ("d", {"t": "1"})):
        api.do("POST", cms(ns), config_map(n, labels={**labels, "all": "1"}))
    from urllib.parse import quote
    items = api.do("GET", cms(ns) + "?labelSelector=" + quote(f"all=1,{selector}"))["items"]
    assert "".join(i["metadata"]["name"] for i in items) == want


def test_a_malformed_selector_is_400(api, ns):
    assert api.call("GET", cms(ns) + "?labelSelector=a%20in%20(")[0] == 400


def test_field_selectors_by_name_and_node(api, ns):
    api.do("POST", pods(ns), pod("a"))
    api.do("POST", pods(ns), pod("b", nodeName="n1"))
    def names(selector):
        return [i["metadata"]["name"] for i in api.do("GET", pods(ns) + "?fieldSelector=" + selector)["items"]]
    assert names("metadata.name%3Da") == ["a"]
    assert names("spec.nodeName%3Dn1") == ["b"]
    assert names("status.phase%3DPending,spec.nodeName!%3Dn1") == ["a"]


def test_an_unknown_field_selector_is_400(api, ns):
    assert api.call("GET", pods(ns) + "?fieldSelector=spec.nonsense%3D1")[0] == 400


def test_lists_cross_namespaces(api, ns):
    api.do("POST", cms(ns), config_map("across", labels={"across": "1"}))
    items = api.do("GET", "/api/v1/configmaps?labelSelector=across%3D1")["items"]
    assert [i["metadata"]["namespace"] for i in items] == [ns]


def test_json_patch(api, ns):
    api.do("POST", cms(ns), config_map("a", {"x": "1", "y": "2"}))
    o = api.do("PATCH", cms(ns, "a"), [{"op": "test", "path": "/data/x", "value": "1"}, {"op": "replace", "path": "/data/x", "value": "9"},
                                       {"op": "remove", "path": "/data/y"}, {"op": "add", "path": "/data/z~1w", "value": "3"}],
               content_type="application/json-patch+json", expect=(200, 422))
    assert o.get("data") == {"x": "9", "z/w": "3"} or o["reason"] == "Invalid"


def test_a_json_patch_whose_test_fails_changes_nothing(api, ns):
    api.do("POST", cms(ns), config_map("a", {"x": "1"}))
    status, _, _ = api.call("PATCH", cms(ns, "a"), [{"op": "test", "path": "/data/x", "value": "2"}, {"op": "remove", "path": "/data/x"}],
                            content_type="application/json-patch+json")
    assert status == 422 and api.do("GET", cms(ns, "a"))["data"] == {"x": "1"}


def test_merge_patch(api, ns):
    api.do("POST", cms(ns), config_map("a", {"x": "1", "y": "2"}))
    o = api.do("PATCH", cms(ns, "a"), {"data": {"x": None, "z": "3"}}, content_type="application/merge-patch+json")
    assert o["data"] == {"y": "2", "z": "3"}


def test_a_patch_with_a_stale_version_is_409(api, ns):
    api.do("POST", cms(ns), config_map("a"))
    status, _, _ = api.call("PATCH", cms(ns, "a"), {"metadata": {"resourceVersion": "1"}, "data": {"a": "b"}},
                            content_type="application/merge-patch+json")
    assert status == 409


def test_strategic_patch_merges_containers_by_name(api, ns):
    p = pod("p")
    p["spec"]["containers"].append({"name": "side", "image": "s"})
    api.do("POST", pods(ns), p)
    o = api.do("PATCH", pods(ns, "p"), {"spec": {"containers": [{"name": "side", "image": "t"}]}},
               content_type="application/strategic-merge-patch+json")
    assert [(c["name"], c["image"]) for c in o["spec"]["containers"]] == [("main", "none"), ("side", "t")]


def test_an_unknown_patch_type_is_415(api, ns):
    api.do("POST", cms(ns), config_map("a"))
    assert api.call("PATCH", cms(ns, "a"), {"data": {}}, content_type="application/json")[0] == 415


def test_a_patch_of_what_is_not_there_is_404(api, ns):
    assert api.call("PATCH", cms(ns, "a"), {"data": {}}, content_type="application/merge-patch+json")[0] == 404


def test_secrets_take_string_data(api, ns):
    o = api.do("POST", f"/api/v1/namespaces/{ns}/secrets", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": "hello"}})
    assert o["data"] == {"k": "aGVsbG8="} and "stringData" not in o and o["type"] == "Opaque"


def test_a_secret_that_is_not_base64_is_400(api, ns):
    status, _, _ = api.call("POST", f"/api/v1/namespaces/{ns}/secrets", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"k": "%%"}})
    assert status in (400, 422)


def test_immutable_config_maps_stay(api, ns):
    o = api.do("POST", cms(ns), {**config_map("a", {"k": "1"}), "immutable": True})
    o["data"] = {"k": "2"}
    assert api.call("PUT", cms(ns, "a"), o)[0] == 422


def test_pods_get_their_defaults(api, ns):
    o = api.do("POST", pods(ns), pod("p"))
    s = o["spec"]
    assert s["restartPolicy"] == "Always" and s["terminationGracePeriodSeconds"] == 30 and s["dnsPolicy"] == "ClusterFirst"
    assert o["status"]["phase"] == "Pending" and s["containers"][0]["imagePullPolicy"]


def test_a_pod_without_containers_is_422(api, ns):
    status, o, _ = api.call("POST", pods(ns), {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": []}})
    assert (status, o["reason"]) == (422, "Invalid")


def test_a_pods_command_cannot_change(api, ns):
    o = api.do("POST", pods(ns), pod("p"))
    o["spec"]["containers"][0]["command"] = ["other"]
    assert api.call("PUT", pods(ns, "p"), o)[0] == 422


def test_status_and_spec_are_written_apart(api, ns):
    o = api.do("POST", pods(ns), pod("p"))
    n = api.do("PATCH", pods(ns, "p") + "/status", {"status": {"phase": "Running", "message": "m"}, "spec": {"nodeName": "n9"}},
               content_type="application/merge-patch+json")
    assert n["status"]["phase"] == "Running" and "nodeName" not in n["spec"]
    o = api.do("PATCH", pods(ns, "p"), {"status": {"phase": "Failed"}, "metadata": {"labels": {"a": "b"}}}, content_type="application/merge-patch+json")
    assert o["status"]["phase"] == "Running" and o["metadata"]["labels"]["a"] == "b"


def test_a_binding_gives_a_pod_its_node(api, ns):
    api.do("POST", pods(ns), pod("p"))
    api.do("POST", pods(ns, "p") + "/binding", {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"},
                                                "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"}})
    assert api.do("GET", pods(ns, "p"))["spec"]["nodeName"] == "n1"


def test_an_unbound_pod_is_deleted_at_once_a_bound_one_waits_for_its_kubelet(api, ns):
    api.do("POST", pods(ns), pod("free"))
    api.do("POST", pods(ns), pod("bound", nodeName="n1"))
    api.do("DELETE", pods(ns, "free"))
    assert api.call("GET", pods(ns, "free"))[0] == 404
    api.do("DELETE", pods(ns, "bound"))
    o = api.do("GET", pods(ns, "bound"))
    assert o["metadata"]["deletionTimestamp"] and o["metadata"]["deletionGracePeriodSeconds"] == 30
    api.do("DELETE", pods(ns, "bound"), {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})
    assert api.call("GET", pods(ns, "bound"))[0] == 404


def test_leases_are_taken_by_version(api, ns):
    path = f"/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
    o = api.do("POST", path, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"},
                              "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}})
    first = dict(o, spec={**o["spec"], "holderIdentity": "b"})
    second = dict(o, spec={**o["spec"], "holderIdentity": "c"})
    api.do("PUT", path + "/l", first)
    assert api.call("PUT", path + "/l", second)[0] == 409
    assert api.do("GET", path + "/l")["spec"]["holderIdentity"] == "b"


def test_no_token_is_401(api):
    assert api.call("GET", "/api/v1/pods", token="wrong")[0] == 401


def test_unknown_paths_are_404(api):
    assert api.call("GET", "/apis/no.such.group/v1/things")[0] == 404
    assert api.call("GET", "/api/v1/namespaces/default/nonsense")[0] == 404


def test_a_wrong_method_is_405(api):
    assert api.call("POST", "/api/v1/namespaces/default/configmaps/x", config_map("x"))[0] == 405


def test_too_large_an_object_is_refused(api, ns):
    status, _, _ = api.call("POST", cms(ns), config_map("big", {"k": "x" * (2 << 20)}))
    assert status in (413, 422, 500)
