"""The ValidatingAdmissionPolicies pin who writes what, whatever the Roles allow."""
import json

import pytest

from conftest import wait_for
from rig import account_config, agent_config, api, cluster, pod_on  # noqa: F401

PREFIX = "serving.baton.dev/"


@pytest.fixture(scope="module")
def who(cluster, agent_config):
    """kubectl as the agent of n1, as the controller, as the administrator; once the policies are loaded."""
    configs = {"agent": agent_config, "controller": account_config(cluster, "baton", "baton-controller"), "admin": cluster.kubeconfig}

    def run(name, *args, input=None):
        return cluster.kubectl("--kubeconfig", str(configs[name]), "-n", "baton", *args, check=False, input=input)
    for node, name in (("n1", "p"), ("n2", "q")):
        pod_on(cluster, "baton", name, node, {PREFIX + "infd": "x", PREFIX + "role": "decode"})
    pod_on(cluster, "baton", "stranger", "n1", {"app": "other"})
    wait_for(lambda: "desired role" in run("admin", "label", "pod", "p", PREFIX + "role=prefill", "--overwrite", "--dry-run=server").stderr, 30,
             message="the policies to be loaded")
    run.configs, run.cluster = configs, cluster
    yield run
    cluster.kubectl("-n", "baton", "delete", "pod", "p", "q", "stranger", "--force", "--grace-period=0")


def send(who, name, pod, patch):
    """(refused, sentence): a patch by an account, which need not be allowed to read what it patches."""
    body, sub, kind = patch
    status, o = api(who.cluster, "PATCH", f"/api/v1/namespaces/baton/pods/{pod}{sub}", body, who.configs[name],
                    f"application/{kind}+json")
    assert status in (200, 403, 422), o
    return status != 200, o.get("message", "")


def patch(**kw):
    return kw, "", "merge-patch"


def status_patch(type, **kw):
    condition = {"type": type, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "X"}
    return {"status": {"conditions": [condition], **kw}}, "/status", "strategic-merge-patch"


REFUSED = [
    ("agent", "p", patch(metadata={"labels": {PREFIX + "role": "prefill"}}), "desired role"),
    ("agent", "p", patch(metadata={"labels": {PREFIX + "rank": "7"}}), "does not change desired roles, nor anything else"),
    ("agent", "p", patch(metadata={"annotations": {"x": "y"}}), "no annotations but those that workers report"),
    ("agent", "p", patch(metadata={"annotations": {PREFIX + "peers": "[]"}}), "no annotations but those that workers report"),
    ("agent", "q", patch(metadata={"annotations": {PREFIX + "epoch": "1"}}), "its own node alone"),
    ("agent", "stranger", patch(metadata={"annotations": {PREFIX + "epoch": "1"}}), "worker pods alone"),
    ("agent", "p", status_patch("Ready"), "no condition but serving.baton.dev/role"),
    ("agent", "p", status_patch(PREFIX + "role", phase="Failed"), "no condition but serving.baton.dev/role"),
    ("agent", "q", status_patch(PREFIX + "role"), "its own node alone"),
    ("controller", "p", patch(metadata={"annotations": {PREFIX + "actual-role": "x"}}), "does not report actual roles"),
    ("admin", "p", patch(metadata={"labels": {PREFIX + "role": "prefill"}}), "changed by the controller alone"),
]
ALLOWED = [
    ("agent", "p", patch(metadata={"annotations": {PREFIX + "actual-role": "decode", PREFIX + "epoch": "3", PREFIX + "last-crash": "{}"}})),
    ("agent", "p", patch(metadata={"annotations": {PREFIX + "backoff-until": None, PREFIX + "epoch": None}})),
    ("agent", "p", status_patch(PREFIX + "role")),
    ("controller", "p", patch(metadata={"labels": {PREFIX + "role": "unified"}})),
    ("admin", "p", patch(metadata={"annotations": {"x": "y"}})),
    ("admin", "stranger", patch(metadata={"labels": {PREFIX + "role": "x"}})),
]


@pytest.mark.parametrize("name,pod,change,says", REFUSED, ids=[f"{a}-{i}" for i, (a, *_) in enumerate(REFUSED)])
def test_it_is_refused_with_a_sentence(who, name, pod, change, says):
    refused, message = send(who, name, pod, change)
    assert refused and "ValidatingAdmissionPolicy" in message and says in message, message


@pytest.mark.parametrize("name,pod,change", ALLOWED, ids=[f"{a}-{i}" for i, (a, *_) in enumerate(ALLOWED)])
def test_it_is_allowed(who, name, pod, change):
    refused, message = send(who, name, pod, change)
    assert not refused, message


def test_an_inventory_is_its_own_agents(who):
    def ninv(name):
        return json.dumps({"apiVersion": "serving.baton.dev/v1alpha1", "kind": "NodeInventory", "metadata": {"name": name}})
    r = who("agent", "apply", "--server-side", "--force-conflicts", "-f", "-", input=ninv("n2"))
    assert r.returncode != 0 and "by the agent of that node alone" in r.stderr, r
    assert who("agent", "apply", "--server-side", "--force-conflicts", "-f", "-", input=ninv("n1")).returncode == 0


def test_a_pools_number_goes_through_scale_and_its_status_is_the_controllers(who):
    pool = {"apiVersion": "serving.baton.dev/v1alpha1", "kind": "WorkerPool", "metadata": {"name": "w"},
            "spec": {"inferenceDeployment": "x", "role": "decode", "replicas": 1}}
    assert who("admin", "create", "-f", "-", input=json.dumps(pool)).returncode == 0

    def change(*args):
        return who("admin", "patch", "wp", "w", "--type=merge", *args)
    r = change("-p", '{"spec":{"replicas":2}}')
    assert r.returncode != 0 and "scale subresource" in r.stderr
    assert who("admin", "scale", "wp/w", "--replicas=2").returncode == 0
    r = change("--subresource=status", "-p", '{"status":{"replicas":7}}')
    assert r.returncode != 0 and "by the controller alone" in r.stderr
    status, o = api(who.cluster, "PATCH", "/apis/serving.baton.dev/v1alpha1/namespaces/baton/workerpools/w/status", {"status": {"replicas": 1}},
                    who.configs["controller"], "application/merge-patch+json")
    assert status == 200, o
    assert who("admin", "delete", "wp", "w").returncode == 0
