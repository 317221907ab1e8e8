"""Server-side apply: ownership, conflicts, forced take-over, removal of dropped fields, list types.
Source: Kubernetes documentation, "Server-Side Apply"."""
import json

from conftest import config_map, widget

APPLY = "application/apply-patch+yaml"


def cms(ns, name=""):
    return f"/api/v1/namespaces/{ns}/configmaps" + (f"/{name}" if name else "")


def apply(api, path, body, manager, force=False, **kw):
    return api.do("PATCH", f"{path}?fieldManager={manager}" + ("&force=true" if force else ""), body, content_type=APPLY, **kw)


def owners(o, operation=None):
    return {m["manager"] for m in o["metadata"].get("managedFields", []) if operation in (None, m["operation"])}


def test_apply_creates(api, ns):
    status, o, _ = api.call("PATCH", cms(ns, "a") + "?fieldManager=m", config_map("a", {"k": "v"}), content_type=APPLY)
    assert status == 201 and o["data"] == {"k": "v"}
    f = o["metadata"]["managedFields"][0]
    assert (f["manager"], f["operation"], f["fieldsType"], f["apiVersion"]) == ("m", "Apply", "FieldsV1", "v1")
    assert f["fieldsV1"] == {"f:data": {"f:k": {}}} and f["time"]


def test_apply_takes_yaml(api, ns):
    o = apply(api, cms(ns, "a"), "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  k: 'yes'\n", "m")
    assert o["data"] == {"k": "yes"}


def test_applying_the_same_again_changes_nothing(api, ns):
    a = apply(api, cms(ns, "a"), config_map("a", {"k": "v"}), "m")
    b = apply(api, cms(ns, "a"), config_map("a", {"k": "v"}), "m")
    assert a["metadata"]["resourceVersion"] == b["metadata"]["resourceVersion"]


def test_a_field_manager_is_required(api, ns):
    assert api.call("PATCH", cms(ns, "a"), config_map("a"), content_type=APPLY)[0] in (400, 422)


def test_dropped_fields_are_removed(api, ns):
    apply(api, cms(ns, "a"), config_map("a", {"x": "1", "y": "2"}), "m")
    assert apply(api, cms(ns, "a"), config_map("a", {"y": "2"}), "m")["data"] == {"y": "2"}


def test_anothers_field_is_a_conflict_that_names_the_owner(api, ns):
    apply(api, cms(ns, "a"), config_map("a", {"x": "1"}), "first")
    status, o, _ = api.call("PATCH", cms(ns, "a") + "?fieldManager=second", config_map("a", {"x": "2"}), content_type=APPLY)
    assert (status, o["reason"]) == (409, "Conflict")
    cause = o["details"]["causes"][0]
    assert cause["reason"] == "FieldManagerConflict" and cause["field"] == ".data.x" and '"first"' in cause["message"]


def test_force_takes_the_field_over(api, ns):
    apply(api, cms(ns, "a"), config_map("a", {"x": "1"}), "first")
    o = apply(api, cms(ns, "a"), config_map("a", {"x": "2"}), "second", force=True)
    assert o["data"] == {"x": "2"} and owners(o) == {"second"}


def test_equal_values_are_shared(api, ns):
    apply(api, cms(ns, "a"), config_map("a", {"x": "1"}), "first")
    o = apply(api, cms(ns, "a"), config_map("a", {"x": "1"}), "second")
    assert owners(o) == {"first", "second"}
    o = apply(api, cms(ns, "a"), {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}, "first")
    assert o["data"] == {"x": "1"} and owners(o) == {"second"}


def test_an_update_takes_ownership(api, ns):
    o = apply(api, cms(ns, "a"), config_map("a", {"x": "1"}), "first")
    o["data"]["x"] = "2"
    o = api.do("PUT", cms(ns, "a") + "?fieldManager=editor", o)
    assert "editor" in owners(o, "Update")
    assert api.call("PATCH", cms(ns, "a") + "?fieldManager=first", config_map("a", {"x": "1"}), content_type=APPLY)[0] == 409


def test_create_and_patch_record_their_manager(api, ns):
    o = api.do("POST", cms(ns) + "?fieldManager=maker", config_map("a", {"x": "1"}))
    assert owners(o, "Update") == {"maker"}
    o = api.do("PATCH", cms(ns, "a") + "?fieldManager=patcher", {"data": {"y": "2"}}, content_type="application/merge-patch+json")
    assert owners(o, "Update") == {"maker", "patcher"}


def test_managed_fields_in_an_apply_body_are_refused(api, ns):
    o = apply(api, cms(ns, "a"), config_map("a", {"x": "1"}), "m")
    status, _, _ = api.call("PATCH", cms(ns, "a") + "?fieldManager=m", o, content_type=APPLY)
    assert status == 400


def test_an_apply_with_a_stale_version_is_409(api, ns):
    apply(api, cms(ns, "a"), config_map("a", {"x": "1"}), "m")
    status, _, _ = api.call("PATCH", cms(ns, "a") + "?fieldManager=m", config_map("a", {"x": "2"}, resourceVersion="1"), content_type=APPLY)
    assert status == 409


def test_dry_run_apply_persists_nothing(api, ns):
    apply(api, cms(ns, "a"), config_map("a", {"x": "1"}), "m")
    api.do("PATCH", cms(ns, "a") + "?fieldManager=m&dryRun=All", config_map("a", {"x": "2"}), content_type=APPLY)
    assert api.do("GET", cms(ns, "a"))["data"] == {"x": "1"}


def test_lists_of_type_map_merge_by_key(api, ns, widgets):
    apply(api, widgets(ns, "w"), widget("w", parts=[{"name": "a", "count": 1}]), "first")
    second = {"apiVersion": "test.baton.dev/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"parts": [{"name": "b", "count": 2}]}}
    o = apply(api, widgets(ns, "w"), second, "second")
    assert sorted((p["name"], p["count"]) for p in o["spec"]["parts"]) == [("a", 1), ("b", 2)]
    second["spec"] = {"parts": []}
    o = apply(api, widgets(ns, "w"), second, "second")
    assert [p["name"] for p in o["spec"]["parts"]] == ["a"]


def test_lists_of_type_set_merge_by_value(api, ns, widgets):
    apply(api, widgets(ns, "w"), widget("w", tags=["a"]), "first")
    second = {"apiVersion": "test.baton.dev/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"tags": ["b"]}}
    assert sorted(apply(api, widgets(ns, "w"), second, "second")["spec"]["tags"]) == ["a", "b"]


def test_atomic_lists_have_one_owner(api, ns, widgets):
    apply(api, widgets(ns, "w"), widget("w", steps=["a"]), "first")
    second = {"apiVersion": "test.baton.dev/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"steps": ["b"]}}
    status, o, _ = api.call("PATCH", widgets(ns, "w") + "?fieldManager=second", second, content_type=APPLY)
    assert status == 409 and o["details"]["causes"][0]["field"] == ".spec.steps"


def test_status_has_managers_of_its_own(api, ns, widgets):
    apply(api, widgets(ns, "w"), widget("w"), "spec-writer")
    body = {"apiVersion": "test.baton.dev/v1", "kind": "Widget", "metadata": {"name": "w"},
            "status": {"replicas": 2, "conditions": [{"type": "Ready", "status": "True"}]}}
    o = api.do("PATCH", widgets(ns, "w") + "/status?fieldManager=status-writer", body, content_type=APPLY)
    assert o["status"]["replicas"] == 2 and o["spec"]["color"] == "red"
    entry = next(m for m in o["metadata"]["managedFields"] if m["manager"] == "status-writer")
    assert entry["subresource"] == "status"
    assert entry["fieldsV1"]["f:status"]["f:conditions"]['k:{"type":"Ready"}'] == {".": {}, "f:status": {}, "f:type": {}}


def test_replicas_left_out_stay_with_the_scaler(api, ns, widgets):
    apply(api, widgets(ns, "w"), widget("w"), "m")
    api.do("PATCH", widgets(ns, "w") + "/scale?fieldManager=hpa", {"spec": {"replicas": 5}}, content_type="application/merge-patch+json")
    o = apply(api, widgets(ns, "w"), widget("w", size=20), "m")
    assert o["spec"]["replicas"] == 5 and o["spec"]["size"] == 20


def test_apply_validates(api, ns, widgets):
    status, o, _ = api.call("PATCH", widgets(ns, "w") + "?fieldManager=m", widget("w", size=1000), content_type=APPLY)
    assert (status, o["reason"]) == (422, "Invalid")


def test_container_lists_of_pods_merge_by_name(api, ns):
    path = f"/api/v1/namespaces/{ns}/pods/p"
    apply(api, path, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}, "first")
    o = apply(api, path, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}}}, "second", expect=(200,))
    assert o["metadata"]["labels"] == {"a": "b"} and len(o["spec"]["containers"]) == 1
    entry = next(m for m in o["metadata"]["managedFields"] if m["manager"] == "first")
    assert 'k:{"name":"c"}' in json.dumps(entry["fieldsV1"]).replace('\\"', '"')


def test_kubectl_apply_server_side_reports_conflicts(api, ns):
    api.kubectl("-n", ns, "apply", "--server-side", "--field-manager=one", "-f", "-", input=config_map("a", {"x": "1"}))
    r = api.kubectl("-n", ns, "apply", "--server-side", "--field-manager=two", "-f", "-", input=config_map("a", {"x": "2"}), check=False)
    assert r.returncode != 0 and "conflict" in r.stderr and ".data.x" in r.stderr
    r = api.kubectl("-n", ns, "apply", "--server-side", "--field-manager=two", "--force-conflicts", "-f", "-", input=config_map("a", {"x": "2"}))
    assert "serverside-applied" in r.stdout
