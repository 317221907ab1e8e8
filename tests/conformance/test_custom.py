"""Custom resources: definitions, validation, defaults, CEL, pruning, subresources, printing.
Source: Kubernetes documentation, "Extend the Kubernetes API with CustomResourceDefinitions"."""
import copy

import pytest
from conftest import WIDGET_CRD, eventually, widget


def test_the_definition_is_established_and_named(api, widgets):
    o = api.do("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.test.baton.dev")
    conditions = {c["type"]: c["status"] for c in o["status"]["conditions"]}
    assert conditions["Established"] == "True" and conditions["NamesAccepted"] == "True"
    assert o["status"]["acceptedNames"]["plural"] == "widgets" and o["status"]["storedVersions"] == ["v1"]


def test_discovery_has_the_resource_and_its_subresources(api, widgets):
    names = {r["name"]: r for r in api.do("GET", "/apis/test.baton.dev/v1")["resources"]}
    assert {"widgets", "widgets/status", "widgets/scale"} <= set(names)
    assert names["widgets"]["shortNames"] == ["wi"] and names["widgets"]["namespaced"] and names["widgets/scale"]["kind"] == "Scale"


def test_defaults_are_filled_on_create(api, ns, widgets):
    o = api.do("POST", widgets(ns), widget("a", parts=[{"name": "x"}]))
    assert o["spec"] == {"color": "red", "size": 10, "replicas": 1, "parts": [{"name": "x", "count": 1}]}


@pytest.mark.parametrize("spec, field, reason", [
    ({"color": None}, "spec.color", None),
    ({"color": "pink"}, "spec.color", "FieldValueNotSupported"),
    ({"size": 0}, "spec.size", "FieldValueInvalid"),
    ({"size": 101}, "spec.size", "FieldValueInvalid"),
    ({"size": "big"}, "spec.size", "FieldValueTypeInvalid"),
    ({"name": "UPPER"}, "spec.name", "FieldValueInvalid"),
    ({"name": "waytoolongname"}, "spec.name", "FieldValueTooLong"),
    ({"tags": ["a", "a"]}, "spec.tags[1]", "FieldValueDuplicate"),
    ({"tags": list("abcdef")}, "spec.tags", "FieldValueTooMany"),
    ({"parts": [{"name": "x"}, {"name": "x"}]}, "spec.parts[1]", "FieldValueDuplicate"),
    ({"parts": [{"count": 1}]}, "spec.parts[0].name", "FieldValueRequired"),
    ({"labels": {"a": 1}}, "spec.labels.a", "FieldValueTypeInvalid"),
    ({"quantity": True}, "spec.quantity", None),
])
def test_invalid_values_are_422_with_their_field(api, ns, widgets, spec, field, reason):
    body = widget("bad", **spec)
    if spec.get("color", 1) is None:
        del body["spec"]["color"]
    status, o, _ = api.call("POST", widgets(ns), body)
    assert (status, o["reason"]) == (422, "Invalid"), o
    causes = {c["field"]: c["reason"] for c in o["details"]["causes"]}
    assert field in causes, causes
    assert reason is None or causes[field] == reason


def test_a_cel_rule_is_enforced_on_create(api, ns, widgets):
    status, o, _ = api.call("POST", widgets(ns), widget("bad", min=5, max=3))
    assert status == 422 and "min must not be above max" in o["message"]


def test_a_transition_rule_is_enforced_on_update(api, ns, widgets):
    o = api.do("POST", widgets(ns), widget("a", fixed="x"))
    o["spec"]["fixed"] = "y"
    status, e, _ = api.call("PUT", widgets(ns, "a"), o)
    assert status == 422 and "fixed can not be changed" in e["message"]


@pytest.mark.parametrize("rule", ["self.nope == 1", "frob(self)", "self.size ==", "self.size + 1"])
def test_a_rule_that_cannot_be_evaluated_is_refused_with_the_definition(api, rule):
    crd = copy.deepcopy(WIDGET_CRD)
    crd["metadata"]["name"] = "gadgets.test.baton.dev"
    crd["spec"]["names"] = {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"}
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] = [{"rule": rule}]
    status, o, _ = api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    assert (status, o["reason"]) == (422, "Invalid"), o


def test_a_schema_that_is_not_structural_is_refused(api):
    crd = copy.deepcopy(WIDGET_CRD)
    crd["metadata"]["name"] = "gadgets.test.baton.dev"
    crd["spec"]["names"] = {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"}
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["typeless"] = {"description": "no type"}
    assert api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)[0] == 422


def test_a_definition_must_be_named_after_its_resource(api):
    crd = copy.deepcopy(WIDGET_CRD)
    crd["metadata"]["name"] = "other.test.baton.dev"
    assert api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)[0] == 422


def test_unknown_fields_are_pruned(api, ns, widgets):
    o = api.do("POST", widgets(ns) + "?fieldValidation=Ignore", widget("a", nope=1, free={"kept": {"deep": 1}}))
    assert "nope" not in o["spec"] and o["spec"]["free"] == {"kept": {"deep": 1}}


def test_unknown_fields_warn(api, ns, widgets):
    _, _, headers = api.call("POST", widgets(ns) + "?fieldValidation=Warn", widget("a", nope=1))
    assert 'unknown field \\"spec.nope\\"' in headers.get("Warning", "")


def test_unknown_fields_are_refused_when_strict(api, ns, widgets):
    status, o, _ = api.call("POST", widgets(ns) + "?fieldValidation=Strict", widget("a", nope=1))
    assert (status, o["reason"]) == (400, "BadRequest") and 'unknown field "spec.nope"' in o["message"]


def test_generation_counts_spec_changes_only(api, ns, widgets):
    o = api.do("POST", widgets(ns), widget("a"))
    assert o["metadata"]["generation"] == 1
    o["spec"]["size"] = 11
    o = api.do("PUT", widgets(ns, "a"), o)
    assert o["metadata"]["generation"] == 2
    o["metadata"]["labels"] = {"x": "y"}
    o = api.do("PUT", widgets(ns, "a"), o)
    assert o["metadata"]["generation"] == 2
    o["status"] = {"replicas": 1}
    assert api.do("PUT", widgets(ns, "a") + "/status", o)["metadata"]["generation"] == 2


def test_status_is_a_world_of_its_own(api, ns, widgets):
    o = api.do("POST", widgets(ns), {**widget("a"), "status": {"replicas": 7}})
    assert "status" not in o
    o["status"], o["spec"]["size"] = {"replicas": 3}, 50
    o = api.do("PUT", widgets(ns, "a") + "/status", o)
    assert o["status"] == {"replicas": 3} and o["spec"]["size"] == 10
    o["status"], o["spec"]["size"] = {"replicas": 9}, 50
    o = api.do("PUT", widgets(ns, "a"), o)
    assert o["status"] == {"replicas": 3} and o["spec"]["size"] == 50


def test_status_is_validated(api, ns, widgets):
    o = api.do("POST", widgets(ns), widget("a"))
    o["status"] = {"replicas": "many"}
    assert api.call("PUT", widgets(ns, "a") + "/status", o)[0] == 422


def test_scale_reads_and_writes_replicas(api, ns, widgets):
    o = api.do("POST", widgets(ns), widget("a"))
    o["status"] = {"replicas": 1, "selector": "app=a"}
    api.do("PUT", widgets(ns, "a") + "/status", o)
    s = api.do("GET", widgets(ns, "a") + "/scale")
    assert s["kind"] == "Scale" and s["apiVersion"] == "autoscaling/v1" and s["spec"]["replicas"] == 1
    assert s["status"] == {"replicas": 1, "selector": "app=a"}
    s["spec"]["replicas"] = 4
    api.do("PUT", widgets(ns, "a") + "/scale", s)
    n = api.do("GET", widgets(ns, "a"))
    assert n["spec"]["replicas"] == 4 and n["metadata"]["generation"] == 2


def test_a_stale_scale_is_409(api, ns, widgets):
    api.do("POST", widgets(ns), widget("a"))
    s = api.do("GET", widgets(ns, "a") + "/scale")
    api.do("PATCH", widgets(ns, "a"), {"spec": {"size": 12}}, content_type="application/merge-patch+json")
    s["spec"]["replicas"] = 3
    assert api.call("PUT", widgets(ns, "a") + "/scale", s)[0] == 409


def test_scale_to_zero_is_kept(api, ns, widgets):
    api.do("POST", widgets(ns), widget("a"))
    api.do("PATCH", widgets(ns, "a") + "/scale", {"spec": {"replicas": 0}}, content_type="application/merge-patch+json")
    assert api.do("GET", widgets(ns, "a"))["spec"]["replicas"] == 0


def test_strategic_patches_of_custom_resources_are_415(api, ns, widgets):
    api.do("POST", widgets(ns), widget("a"))
    assert api.call("PATCH", widgets(ns, "a"), {"spec": {"size": 3}}, content_type="application/strategic-merge-patch+json")[0] == 415


def test_tables_have_the_definitions_columns(api, ns, widgets):
    o = api.do("POST", widgets(ns), widget("a"))
    o["status"] = {"conditions": [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]}
    api.do("PUT", widgets(ns, "a") + "/status", o)
    t = api.do("GET", widgets(ns), accept="application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
    assert t["kind"] == "Table" and [c["name"] for c in t["columnDefinitions"]] == ["Name", "Color", "Ready", "Size", "Age"]
    assert t["rows"][0]["cells"][:4] == ["a", "red", "True", 10] and t["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


def test_kubectl_knows_short_names_columns_and_categories(api, ns, widgets):
    api.do("POST", widgets(ns), widget("a"))
    out = api.kubectl("-n", ns, "get", "wi").stdout.split("\n")
    assert out[0].split() == ["NAME", "COLOR", "READY", "AGE"] and out[1].split()[:2] == ["a", "red"]
    assert "SIZE" in api.kubectl("-n", ns, "get", "wi", "-o", "wide").stdout
    assert "widget.test.baton.dev/a" in api.kubectl("-n", ns, "get", "testing", "-o", "name").stdout


def test_kubectl_explains_fields(api, widgets):
    def explained():
        r = api.kubectl("explain", "widgets.spec.color", check=False)
        return r.returncode == 0 and "The color." in r.stdout and "<string>" in r.stdout
    eventually(explained)


def test_kubectl_scales_and_waits(api, ns, widgets):
    api.do("POST", widgets(ns), widget("a"))
    assert "scaled" in api.kubectl("-n", ns, "scale", "wi/a", "--replicas=3").stdout
    api.kubectl("-n", ns, "wait", "wi/a", "--for=jsonpath={.spec.replicas}=3", "--timeout=10s")
    assert api.kubectl("-n", ns, "scale", "wi/a", "--current-replicas=1", "--replicas=5", check=False).returncode != 0


def test_metadata_only_requests(api, ns, widgets):
    api.do("POST", widgets(ns), widget("a"))
    o = api.do("GET", widgets(ns), accept="application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
    assert o["kind"] == "PartialObjectMetadataList" and o["items"][0]["metadata"]["name"] == "a" and "spec" not in o["items"][0]


def test_deleting_a_definition_takes_its_objects_along(api, ns):
    crd = copy.deepcopy(WIDGET_CRD)
    crd["metadata"]["name"] = "gizmos.test.baton.dev"
    crd["spec"]["names"] = {"plural": "gizmos", "singular": "gizmo", "kind": "Gizmo", "listKind": "GizmoList"}
    api.do("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    path = f"/apis/test.baton.dev/v1/namespaces/{ns}/gizmos"
    eventually(lambda: api.call("GET", path)[0] == 200)
    api.do("POST", path, {**widget("a"), "kind": "Gizmo"})
    api.do("DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gizmos.test.baton.dev")
    eventually(lambda: api.call("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gizmos.test.baton.dev")[0] == 404)
    eventually(lambda: api.call("GET", path)[0] == 404)
