"""What a person does with kubectl, and the discovery behind it."""
import json

from conftest import config_map, eventually, pod, widget


def test_versions_and_health(api):
    v = api.do("GET", "/version")
    assert (v["major"], v["minor"]) == ("1", "37") and v["gitVersion"].startswith("v1.37")
    assert api.kubectl("version").returncode == 0
    for path in ("/healthz", "/livez", "/readyz"):
        status, body, _ = api.call("GET", path)
        assert status == 200 and body == b"ok"


def test_discovery_in_both_forms(api, widgets):
    groups = {g["name"] for g in api.do("GET", "/apis")["groups"]}
    assert {"apps", "coordination.k8s.io", "apiextensions.k8s.io", "events.k8s.io", "policy", "test.baton.dev"} <= groups
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    o = eventually(lambda: next((o for o in [api.do("GET", "/apis", accept=accept)] if any(i["metadata"]["name"] == "test.baton.dev" for i in o["items"])), None))
    assert o["kind"] == "APIGroupDiscoveryList"
    item = next(i for i in o["items"] if i["metadata"]["name"] == "test.baton.dev")
    r = next(r for r in item["versions"][0]["resources"] if r["resource"] == "widgets")
    assert r["scope"] == "Namespaced" and {s["subresource"] for s in r["subresources"]} == {"status", "scale"}
    core = {r["name"] for r in api.do("GET", "/api/v1")["resources"]}
    assert {"pods", "pods/log", "pods/status", "pods/binding", "secrets", "configmaps", "nodes", "namespaces", "services", "events"} <= core


def test_api_resources_lists_the_custom_ones(api, widgets):
    out = api.kubectl("api-resources", "--api-group=test.baton.dev", "--no-headers").stdout
    assert out.split()[:5] == ["widgets", "wi", "test.baton.dev/v1", "true", "Widget"]


def test_openapi_v3_has_an_index_and_groups(api, widgets):
    paths = eventually(lambda: (lambda p: p if "apis/test.baton.dev/v1" in p else None)(api.do("GET", "/openapi/v3")["paths"]))
    assert "api/v1" in paths
    doc = api.do("GET", paths["apis/test.baton.dev/v1"]["serverRelativeURL"])
    assert any(n.endswith("Widget") for n in doc["components"]["schemas"])


def test_apply_create_configure_unchanged(api, ns):
    run = lambda data: api.kubectl("-n", ns, "apply", "-f", "-", input=config_map("a", data)).stdout.strip()
    assert run({"x": "1", "y": "1"}) == "configmap/a created"
    assert run({"x": "1", "y": "1"}) == "configmap/a unchanged"
    assert run({"x": "2"}) == "configmap/a configured"
    assert json.loads(api.kubectl("-n", ns, "get", "cm", "a", "-o", "json").stdout)["data"] == {"x": "2"}


def test_apply_of_custom_resources_drops_what_was_removed(api, ns, widgets):
    run = lambda **spec: api.kubectl("-n", ns, "apply", "-f", "-", input=widget("a", **spec)).stdout.strip()
    assert "created" in run(size=5, labels={"a": "1", "b": "2"})
    assert "configured" in run(size=6, labels={"b": "2"})
    assert api.do("GET", widgets(ns, "a"))["spec"]["labels"] == {"b": "2"}


def test_apply_of_a_pod_by_strategic_merge(api, ns):
    p = pod("p")
    api.kubectl("-n", ns, "apply", "-f", "-", input=p)
    p["spec"]["containers"][0]["image"] = "other"
    p["metadata"]["labels"]["new"] = "1"
    assert "configured" in api.kubectl("-n", ns, "apply", "-f", "-", input=p).stdout
    o = json.loads(api.kubectl("-n", ns, "get", "pod", "p", "-o", "json").stdout)
    assert o["spec"]["containers"][0]["image"] == "other" and o["metadata"]["labels"]["new"] == "1"


def test_create_refuses_an_unknown_field(api, ns, widgets):
    r = api.kubectl("-n", ns, "create", "-f", "-", input=widget("a", nope=1), check=False)
    assert r.returncode != 0 and "unknown field" in r.stderr and "nope" in r.stderr


def test_an_invalid_object_is_explained(api, ns, widgets):
    r = api.kubectl("-n", ns, "apply", "-f", "-", input=widget("a", size=1000, color="pink"), check=False)
    assert r.returncode != 0 and "spec.size" in r.stderr and "spec.color" in r.stderr and 'Unsupported value: "pink"' in r.stderr


def test_get_prints_tables(api, ns):
    api.kubectl("-n", ns, "create", "configmap", "a", "--from-literal=x=1", "--from-literal=y=2")
    out = api.kubectl("-n", ns, "get", "cm", "a").stdout.split("\n")
    assert out[0].split() == ["NAME", "DATA", "AGE"] and out[1].split()[:2] == ["a", "2"]
    api.do("POST", f"/api/v1/namespaces/{ns}/pods", pod("p"))
    out = api.kubectl("-n", ns, "get", "pods").stdout.split("\n")
    assert out[0].split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"] and out[1].split()[:4] == ["p", "0/1", "Pending", "0"]
    assert "NODE" in api.kubectl("-n", ns, "get", "pods", "-o", "wide").stdout


def test_get_prints_json_yaml_names_and_paths(api, ns):
    api.kubectl("-n", ns, "create", "configmap", "a", "--from-literal=x=1")
    assert api.kubectl("-n", ns, "get", "cm", "a", "-o", "jsonpath={.data.x}").stdout == "1"
    assert "x: \"1\"" in api.kubectl("-n", ns, "get", "cm", "a", "-o", "yaml").stdout
    assert "configmap/a" in api.kubectl("-n", ns, "get", "cm", "-o", "name").stdout
    r = api.kubectl("-n", ns, "get", "cm", "nope", check=False)
    assert r.returncode == 1 and 'configmaps "nope" not found' in r.stderr


def test_get_of_several_kinds_and_all_namespaces(api, ns):
    api.kubectl("-n", ns, "create", "configmap", "multi", "--from-literal=x=1")
    api.kubectl("-n", ns, "create", "secret", "generic", "multi", "--from-literal=x=1")
    out = api.kubectl("-n", ns, "get", "cm,secret").stdout
    assert "configmap/multi" in out and "secret/multi" in out
    assert ns in api.kubectl("get", "cm", "-A").stdout


def test_describe(api, ns, widgets):
    api.do("POST", f"/api/v1/namespaces/{ns}/pods", pod("p", nodeName="n1"))
    out = api.kubectl("-n", ns, "describe", "pod", "p").stdout
    assert "Name:" in out and "Node:" in out and "main:" in out and "Events:" in out
    api.do("POST", widgets(ns), widget("w"))
    out = api.kubectl("-n", ns, "describe", "wi", "w").stdout
    assert "Color:" in out and "red" in out and "API Version:  test.baton.dev/v1" in out


def test_events_show_in_describe(api, ns):
    p = api.do("POST", f"/api/v1/namespaces/{ns}/pods", pod("p"))
    api.do("POST", f"/apis/events.k8s.io/v1/namespaces/{ns}/events", {
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "p.1"}, "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "test", "reportingInstance": "test-1", "action": "Testing", "reason": "Tested", "type": "Normal", "note": "it was tested",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": ns, "uid": p["metadata"]["uid"]}})
    assert "it was tested" in api.kubectl("-n", ns, "describe", "pod", "p").stdout
    assert "Tested" in api.kubectl("-n", ns, "get", "events").stdout
    core = api.do("GET", f"/api/v1/namespaces/{ns}/events?fieldSelector=involvedObject.name%3Dp")["items"]
    assert [e["message"] for e in core] == ["it was tested"]


def test_label_annotate_patch(api, ns):
    api.kubectl("-n", ns, "create", "configmap", "a", "--from-literal=x=1")
    api.kubectl("-n", ns, "label", "cm", "a", "k=v")
    api.kubectl("-n", ns, "annotate", "cm", "a", "note=hello")
    api.kubectl("-n", ns, "patch", "cm", "a", "-p", '{"data":{"y":"2"}}')
    api.kubectl("-n", ns, "patch", "cm", "a", "--type=json", "-p", '[{"op":"remove","path":"/data/x"}]')
    o = json.loads(api.kubectl("-n", ns, "get", "cm", "a", "-o", "json").stdout)
    assert o["data"] == {"y": "2"} and o["metadata"]["labels"] == {"k": "v"} and o["metadata"]["annotations"]["note"] == "hello"
    assert api.kubectl("-n", ns, "label", "cm", "a", "k=w", check=False).returncode != 0
    api.kubectl("-n", ns, "label", "cm", "a", "k-")


def test_replace_and_diff(api, ns):
    api.kubectl("-n", ns, "apply", "-f", "-", input=config_map("a", {"x": "1"}))
    api.kubectl("-n", ns, "replace", "-f", "-", input=config_map("a", {"x": "2"}))
    r = api.kubectl("-n", ns, "diff", "-f", "-", input=config_map("a", {"x": "3"}), check=False)
    assert r.returncode == 1 and '+  x: "3"' in r.stdout


def test_wait_for_conditions_and_deletion(api, ns, widgets):
    o = api.do("POST", widgets(ns), widget("a"))
    assert api.kubectl("-n", ns, "wait", "wi/a", "--for=condition=Ready", "--timeout=1s", check=False).returncode != 0
    o["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    api.do("PUT", widgets(ns, "a") + "/status", o)
    assert "condition met" in api.kubectl("-n", ns, "wait", "wi/a", "--for=condition=Ready", "--timeout=10s").stdout
    api.kubectl("-n", ns, "delete", "wi", "a", "--wait=false")
    api.kubectl("-n", ns, "wait", "wi/a", "--for=delete", "--timeout=10s")


def test_delete_by_name_label_and_all(api, ns):
    for n in ("a", "b", "c", "d"):
        api.kubectl("-n", ns, "create", "configmap", n)
    api.kubectl("-n", ns, "label", "cm", "b", "x=y")
    assert 'configmap "a" deleted' in api.kubectl("-n", ns, "delete", "cm", "a").stdout
    assert 'configmap "b" deleted' in api.kubectl("-n", ns, "delete", "cm", "-l", "x=y").stdout
    api.kubectl("-n", ns, "delete", "cm", "--all")
    assert "configmap/c" not in api.kubectl("-n", ns, "get", "cm", "-o", "name").stdout
    assert api.kubectl("-n", ns, "delete", "cm", "nope", check=False).returncode != 0
    api.kubectl("-n", ns, "delete", "cm", "nope", "--ignore-not-found")


def test_auth_can_i(api):
    assert api.kubectl("auth", "can-i", "create", "pods").stdout.strip() == "yes"
    assert api.kubectl("auth", "whoami", "-o", "json").returncode == 0


def test_namespaces_come_and_go(api):
    name = api.name("gone")
    api.kubectl("create", "namespace", name)
    api.kubectl("-n", name, "create", "configmap", "inside")
    api.kubectl("delete", "namespace", name, "--timeout=30s")
    assert api.call("GET", f"/api/v1/namespaces/{name}/configmaps/inside")[0] == 404
    assert api.call("GET", f"/api/v1/namespaces/{name}")[0] == 404


def test_dry_run_from_kubectl(api, ns):
    api.kubectl("-n", ns, "apply", "--dry-run=server", "-f", "-", input=config_map("dry"))
    assert api.kubectl("-n", ns, "get", "cm", "dry", check=False).returncode != 0


def test_budgets_services_deployments_can_be_applied(api, ns):
    objects = [
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
         "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"a": "b"}}, "unhealthyPodEvictionPolicy": "AlwaysAllow"}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sa"}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
         "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}}]
    for o in objects:
        assert "created" in api.kubectl("-n", ns, "apply", "-f", "-", input=o).stdout
        again = api.kubectl("-n", ns, "apply", "-f", "-", input=o).stdout
        assert "unchanged" in again or o["kind"] == "PodDisruptionBudget"  # its patch strategy is replace
    s = api.do("GET", f"/apis/apps/v1/namespaces/{ns}/deployments/d/scale")
    assert s["kind"] == "Scale"
    api.kubectl("-n", ns, "scale", "deployment/d", "--replicas=0")
