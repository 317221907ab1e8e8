"""HPA v2 of a real kube-controller-manager drives a WorkerPool by external metrics that the controller serves behind a real
API server's aggregation layer."""
import json

import pytest
from world import load_of, scaled_infd, wait

API = "/apis/external.metrics.k8s.io/v1beta1"


def aggregate(world, controller):
    """The APIService, and a Service that leads the API server to this process."""
    world.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "baton-controller"},
                 "spec": {"type": "ExternalName", "externalName": "localhost"}})
    world.cluster.kubectl("apply", "-f", "-", input=json.dumps({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
        "spec": {"group": "external.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
                 "service": {"name": "baton-controller", "namespace": world.ns, "port": controller.metrics_port}}}))

    def available():
        s = world.cluster.get("apiservice", "v1beta1.external.metrics.k8s.io")
        return any(c["type"] == "Available" and c["status"] == "True" for c in s.get("status", {}).get("conditions", []))
    wait(available, 60, "the API server to reach the controller")


def hpa(name, metric, kind, value, selector, low=1, high=4):
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": name}, "spec": {
        "scaleTargetRef": {"apiVersion": "serving.baton.dev/v1alpha1", "kind": "WorkerPool", "name": name},
        "minReplicas": low, "maxReplicas": high,
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 2}},
        "metrics": [{"type": "External", "external": {"metric": {"name": metric, "selector": {"matchLabels": selector}},
                                                      "target": {"type": kind, kind[0].lower() + kind[1:]: value}}}]}}


@pytest.fixture
def external(world, router):
    """A deployment whose pools belong to HPA, and its controller."""
    c = world.controller("--router-address", router.address)
    world.apply(scaled_infd("External"))
    wait(lambda: len(world.pods()) == 2, what="a pod a role")
    world.make_ready()
    router.answer = load_of(world)
    aggregate(world, c)
    return c


def test_hpa_scales_a_pool_up_and_down_and_nobody_else_does(world, router, external):
    world.apply(hpa("chat-prefill", "baton_needed_groups", "AverageValue", "1", {"infd": "chat", "role": "prefill"}))
    router.answer = load_of(world, waiting_tokens=2000)  # 2,000 / 1 s of slack / 800: 2.5 groups
    wait(lambda: world.scaled("prefill") >= 3, 60, "HPA to scale up")
    assert world.scaled("decode") == 1

    def settled():
        world.make_ready()
        router.answer = load_of(world)
        return world.scaled("prefill") == 1
    wait(settled, 60, "HPA to scale down")
    status = world.get("hpa", "chat-prefill")["status"]
    conditions = {c["type"]: c["status"] for c in status["conditions"]}
    assert conditions["ScalingActive"] == "True" and conditions["AbleToScale"] == "True"
    managers = {m["manager"] for m in world.get("wp", "chat-prefill", "--show-managed-fields")["metadata"]["managedFields"]
                if "f:replicas" in json.dumps(m.get("fieldsV1", {}).get("f:spec", {}))}
    assert "baton-scaler" not in managers, "the mode External is never written by Baton"


def test_the_api_lists_metrics_and_selects_by_label(world, router, external):
    def raw(path):
        return json.loads(world.cluster.kubectl("get", "--raw", path).stdout)
    names = {r["name"] for r in raw(API)["resources"]}
    assert {"baton_needed_groups", "baton_queued_tokens", "baton_kv_used_ratio", "baton_held_requests",
            "baton_goodput_requests_per_second"} <= names
    router.answer = load_of(world, waiting_tokens=1234, used=25)

    def values(metric, selector):
        path = f"{API}/namespaces/{world.ns}/{metric}?labelSelector={selector}"
        return [(i["metricLabels"]["role"], i["value"]) for i in raw(path)["items"]]
    wait(lambda: values("baton_queued_tokens", "role%3Dprefill") == [("prefill", "1234")], 20)
    assert values("baton_kv_used_ratio", "infd%3Dchat,role+in+(decode)") == [("decode", "250m")]
    assert values("baton_goodput_requests_per_second", "role%3Ddecode") == [("decode", "1500m")]
    assert sorted(r for r, _ in values("baton_needed_groups", "infd%3Dchat")) == ["decode", "prefill"]
    assert values("baton_needed_groups", "infd%3Dother") == []
    assert values("baton_needed_groups", "role+notin+(decode)")[0][0] == "prefill"
    assert values("baton_needed_groups", "role!%3Ddecode")[0][0] == "prefill"
    r = world.cluster.kubectl("get", "--raw", f"{API}/namespaces/{world.ns}/no_such_metric", check=False)
    assert r.returncode != 0 and "no external metric" in r.stderr + r.stdout
    assert json.loads(world.cluster.kubectl("get", "--raw", f"{API}/namespaces/elsewhere/baton_needed_groups").stdout)["items"] == []


def test_only_the_front_proxy_gets_in(world, external):
    user = {"X-Remote-User": "system:serviceaccount:kube-system:horizontal-pod-autoscaler"}
    assert external.tls(API, "front-proxy-client", user)[0] == 200
    assert external.tls(API, "front-proxy-client")[0] == 401  # speaks for nobody
    assert external.tls(API, None, user)[0] == 401
    assert external.tls(API, "somebody-else", user)[0] == 403  # the right CA, a name that is not allowed
    try:
        assert external.tls(API, "front-proxy-client-of-another-ca", user)[0] == 401
    except OSError:
        pass  # the handshake itself may be refused
    assert external.tls(API, None, {"Authorization": f"Bearer {world.cluster.token}"})[0] == 401  # an admin's, past the API server


def test_the_certificate_is_kept_and_trusted(world, external):
    secret = world.get("secret", "baton-metrics-tls")
    bundle = world.cluster.get("apiservice", "v1beta1.external.metrics.k8s.io")["spec"]["caBundle"]
    assert secret["data"]["certificate"] == bundle
    world.controllers[0].kill()
    world.controllers[0].start()  # another process serves with the same certificate
    wait(lambda: world.cluster.kubectl("get", "--raw", API, check=False).returncode == 0, 40, "the API to be back")
    assert world.get("secret", "baton-metrics-tls")["data"] == secret["data"]


def test_an_unknown_figure_is_absent_and_not_zero(world, router, external):
    router.answer = load_of(world, waiting_tokens=100)
    path = f"{API}/namespaces/{world.ns}/baton_needed_groups?labelSelector=role%3Dprefill"

    def items():
        return json.loads(world.cluster.kubectl("get", "--raw", path).stdout)["items"]
    wait(items, 20, "a value")
    router.stop()  # nobody says anything any more
    wait(lambda: items() == [], 30, "the value to be withdrawn")
