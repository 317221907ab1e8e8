"""Groups of several pods where the API server has PodGroups: a real kube-apiserver and kube-scheduler with the gate GenericWorkload. Nodes are
objects without a kubelet."""
import json

import kubernetes
import pytest
from conftest import ROOT, World, infd, wait

P = "serving.baton.dev/"
GATE = "--feature-gates=GenericWorkload=true"


class GangCluster(kubernetes.Cluster):
    def __init__(self):
        super().__init__(controllers=("garbage-collector-controller", "podgroup-protection-controller"),
                         api_args=(GATE, "--runtime-config=scheduling.k8s.io/v1beta1=true"), manager_args=(GATE,))
        self._spawn("kube-scheduler", "--kubeconfig", str(self.kubeconfig), "--leader-elect=false", GATE,
                    "--secure-port", str(kubernetes.free_port()), "--cert-dir", str(self.dir / "scheduler"))

    def node(self, name, cpu):
        room = {"cpu": str(cpu), "memory": "16Gi", "pods": "20"}
        self.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}))
        self.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps(
            {"status": {"allocatable": room, "capacity": room, "conditions": [{"type": "Ready", "status": "True"}]}}))
        self.kubectl("patch", "node", name, "--type=merge", "-p", '{"spec": {"taints": null}}')


@pytest.fixture
def gang():
    c = GangCluster()
    c.side = "real"
    try:
        c.kubectl("apply", "-f", ROOT / "manifests/crds")
        c.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        w = World(c, "gang")
        yield w
        for x in w.controllers:
            x.stop()
    finally:
        c.stop()


def test_a_group_is_placed_by_the_scheduler_all_or_none(gang):
    gang.cluster.node("n1", 4)
    o = infd(prefill=1, decode=1)
    o["spec"]["decode"].update(parallelism={"tensor": 4, "pods": 2}, resources={"requests": {"cpu": "3"}, "limits": {"memory": "1Gi"}})
    gang.apply(o)
    c = gang.controller()
    wait(lambda: len(gang.pods("decode")) == 2 and len(gang.pods("prefill")) == 1)
    assert '"by":"PodGroups"' in c.log()
    a, b = sorted(gang.pods("decode"), key=lambda p: p["metadata"]["name"])
    group = a["metadata"]["labels"][P + "group"]
    for p in (a, b):
        assert p["spec"]["schedulingGroup"] == {"podGroupName": group} and not p["spec"].get("schedulingGates")
    (g,) = wait(lambda: gang.get("podgroups")["items"])
    assert g["metadata"]["name"] == group and g["spec"]["schedulingPolicy"]["gang"]["minCount"] == 2
    assert g["metadata"]["ownerReferences"][0]["uid"] == a["metadata"]["uid"]

    # room for one of the two: neither is placed, what needs no group is
    wait(lambda: gang.pods("prefill")[0]["spec"].get("nodeName") == "n1")
    wait(lambda: any(x["reason"] == "Unschedulable" for x in gang.get("podgroups", group).get("status", {}).get("conditions", [])))
    assert not any(p["spec"].get("nodeName") for p in gang.pods("decode"))
    wait(lambda: gang.condition("chat", "Ready").get("reason") == "NoCapacity")

    gang.cluster.node("n2", 4)
    wait(lambda: sorted(p["spec"].get("nodeName", "") for p in gang.pods("decode")) == ["n1", "n2"])
    wait(lambda: gang.condition("chat", "Ready").get("reason") != "NoCapacity")
    assert {p["metadata"]["uid"] for p in gang.pods("decode")} == {a["metadata"]["uid"], b["metadata"]["uid"]}

    # a pod that goes takes its group along; the next one has a PodGroup of its own
    gang.kubectl("delete", "pod", b["metadata"]["name"], a["metadata"]["name"], "--grace-period=0", "--force")  # the kubelet's part: it ends at once
    wait(lambda: {p["metadata"]["uid"] for p in gang.pods("decode")}.isdisjoint({a["metadata"]["uid"], b["metadata"]["uid"]})
         and len(gang.pods("decode")) == 2)
    wait(lambda: sorted(p["spec"].get("nodeName", "") for p in gang.pods("decode")) == ["n1", "n2"],
         seconds=360)  # a scheduler that missed that there is room looks again after five minutes
    wait(lambda: len(gang.get("podgroups")["items"]) == 1)  # the first one went with its pod
    (g,) = gang.get("podgroups")["items"]
    assert g["metadata"]["name"] == gang.pods("decode")[0]["metadata"]["labels"][P + "group"]
