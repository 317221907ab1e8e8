"""The manifests of a real cluster: rights are enough and not too much, policies refuse what they should."""
import json
import os

import kubernetes
import pytest
from conftest import ROOT, Controller, World, infd, wait
from test_groups import P, grouped, members, started


@pytest.fixture(scope="module")
def real():
    c = kubernetes.Cluster(controllers=("garbage-collector-controller", "resourcequota-controller"))
    c.side = "real"
    c.kubectl("apply", "-f", ROOT / "manifests/crds", "-f", ROOT / "manifests/cluster")
    c.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    yield c
    c.stop()


def kubeconfig_of(real, account):
    token = real.kubectl("-n", "baton", "create", "token", account).stdout.strip()
    config = json.loads(real.kubeconfig.read_text())
    config["users"] = [{"name": "u", "user": {"token": token}}]
    path = real.dir / f"kubeconfig-{account}"
    path.write_text(json.dumps(config))
    return path


def test_the_controllers_role_is_enough(real):
    def pods(role):
        return [p for p in real.get("-n", "baton", "pods")["items"] if "deletionTimestamp" not in p["metadata"]
                and p["metadata"]["labels"].get("serving.baton.dev/role") == role]

    def kubectl(*args, **kw):
        return real.kubectl("-n", "baton", *args, **kw)
    c = Controller(real, "baton", kubeconfig=kubeconfig_of(real, "baton-controller"))
    try:
        kubectl("apply", "-f", "-", input=json.dumps(infd(decode=2)))
        wait(lambda: len(pods("decode")) == 2 and len(pods("prefill")) == 1)
        kubectl("scale", "wp/chat-decode", "--replicas=1")
        wait(lambda: len(pods("decode")) == 1)
        kubectl("patch", "infd", "chat", "--type=merge", "-p", '{"spec":{"prefill":{"replicas":2}}}')
        wait(lambda: len(pods("prefill")) == 2)
        wait(lambda: len(real.get("-n", "baton", "events")["items"]) > 3)
        wait(lambda: real.get("-n", "baton", "infd", "chat").get("status", {}).get("prefill", {}).get("desired") == 2)
        assert "orbidden" not in c.log(), [line for line in c.log().splitlines() if "orbidden" in line][:3]
    finally:
        c.stop()


@pytest.mark.parametrize("account,verb,what", [
    ("baton-controller", "delete", "secrets"), ("baton-controller", "get", "nodes"), ("baton-router", "patch", "pods"),
    ("baton-router", "create", "events"), ("baton-agent", "list", "secrets"), ("baton-agent", "create", "pods"),
])
def test_no_account_has_more_than_it_needs(real, account, verb, what):
    r = real.kubectl("auth", "can-i", verb, what, "-n", "baton", f"--as=system:serviceaccount:baton:{account}", check=False)
    assert r.stdout.strip() == "no"


def test_controller_and_router_run_restricted(real):
    real.kubectl("create", "namespace", "strict")
    real.kubectl("label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted")
    for name in ("baton-controller", "baton-router"):
        template = real.get("-n", "baton", "deployment", name)["spec"]["template"]
        for v in template["spec"].get("volumes", []):
            if v.pop("hostPath", None):  # the node's folder of models: the one thing that is not restricted; a claim is
                assert v["name"] == "models"
                v["persistentVolumeClaim"] = {"claimName": "models"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": template["spec"]}
        real.kubectl("-n", "strict", "create", "--dry-run=server", "-f", "-", input=json.dumps(pod))


def test_a_broken_group_goes_first_where_a_quota_has_no_room_for_its_replacement(real):
    world = World(real, "quota")

    def quota(pods):
        world.kubectl("patch", "quota", "full", "--type=merge", "-p", json.dumps({"spec": {"hard": {"pods": str(pods)}}}))
        wait(lambda: world.get("quota", "full").get("status", {}).get("hard", {}).get("pods") == str(pods))
    world.kubectl("create", "quota", "full", "--hard=pods=10")
    quota(4)
    world.apply(grouped())
    c = world.controller()
    try:
        started(world)
        wait(lambda: all(P + "peers" in p["metadata"]["annotations"] for p in world.pods()))
        old, uids = zip(*[(p["metadata"]["name"], p["metadata"]["uid"]) for p in members(world)])
        quota(3)  # what is there stays
        world.kubectl("delete", "pod", old[1], "--force", "--grace-period=0")
        wait(lambda: old[0] not in [p["metadata"]["name"] for p in world.pods("decode")], 30)
        world.kubectl("delete", "pod", old[0], "--force", "--grace-period=0")  # no kubelet is here to end it
        quota(4)
        new = wait(lambda: len(members(world)) == 2 and members(world), 60)
        assert not set(uids) & {p["metadata"]["uid"] for p in new} and len(world.pods()) == 4
    finally:
        c.stop()


def test_manifests_are_small_enough_for_helm():
    total = sum(os.path.getsize(f) for f in (ROOT / "manifests").rglob("*.yaml"))
    assert total < 700_000
