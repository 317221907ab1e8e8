"""The ladder's part that concerns nodes: which ones keep a model, where new pods go, and what sick devices and nodes change."""
import json
import time

from conftest import infd, wait

P = "serving.baton.dev/"
SHA = "ab" * 32


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Nodes:
    """Nodes with agents that report; all cluster-scoped, so with the namespace in their names."""

    def __init__(self, world):
        self.w = world
        self.made = []

    def add(self, name, models=(), quarantined=None, bad_device=False):
        full = f"{self.w.ns}-{name}"
        if full not in self.made:
            self.w.cluster.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": full}}))
            self.w.cluster.kubectl("patch", "node", full, "--subresource=status", "--type=merge", "-p", json.dumps(
                {"status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now(), "lastHeartbeatTime": now()}]}}))
            self.made.append(full)
        status = {"agentVersion": "t", "address": "127.0.0.1:1", "models": [{"source": "file:///m", "sha256": s, "rung": "nvme"} for s in models],
                  "devices": [{"name": "gpu0", "kind": "gpu", "healthy": not bad_device}]}
        if quarantined:
            status["quarantined"] = quarantined
        for o in ({}, {"status": status}):
            self.w.cluster.kubectl("apply", "--server-side", "--force-conflicts", *(["--subresource=status"] if o else []), "-f", "-", input=json.dumps(
                {"apiVersion": P + "v1alpha1", "kind": "NodeInventory", "metadata": {"name": full}, **o}))
        return full

    def close(self):
        for n in self.made:
            self.w.cluster.kubectl("delete", "ninv", n, "--ignore-not-found")
            self.w.cluster.kubectl("delete", "node", n, "--ignore-not-found")


def deployment(**standby):
    o = infd("chat")
    o["spec"]["model"]["sha256"] = SHA
    o["spec"]["standby"] = standby
    return o


def kept(w):
    return json.loads(w.get("infd", "chat")["metadata"].get("annotations", {}).get(P + "cached-nodes", "null"))


def test_nodes_that_keep_a_model_are_named_and_stay(world):
    nodes = Nodes(world)
    try:
        nodes.add("a")
        b = nodes.add("b", models=[SHA])
        nodes.add("c")
        world.controller()
        world.apply(deployment(cachedNodes=1))
        wait(lambda: kept(world) == [b], what="the node that has it already")
        world.patch("chat", {"spec": {"standby": {"cachedNodes": 2}}})
        two = wait(lambda: (kept(world) or []) if len(kept(world) or []) == 2 else None)
        assert b in two
        gone = [n for n in two if n != b][0]
        world.cluster.kubectl("cordon", gone)
        wait(lambda: len(kept(world)) == 2 and gone not in kept(world), what="another one for the cordoned")
        world.patch("chat", {"spec": {"standby": {"cachedNodes": 0}}})
        wait(lambda: kept(world) is None)
    finally:
        nodes.close()


def affinity(pod):
    return pod["spec"].get("affinity", {}).get("nodeAffinity", {})


def test_new_pods_prefer_nodes_with_the_model_and_keep_off_sick_ones(world):
    nodes = Nodes(world)
    try:
        nodes.add("far")
        near, close = nodes.add("near", models=[SHA]), nodes.add("close", models=[SHA])
        sick = nodes.add("sick", models=[SHA], quarantined="Xid 79: the GPU has fallen off the bus")
        limping = nodes.add("limping", bad_device=True)
        world.controller()
        time.sleep(1)
        world.apply(deployment())
        pod = wait(lambda: world.pods())[0]
        preferred = affinity(pod)["preferredDuringSchedulingIgnoredDuringExecution"]
        fields = sorted((x["weight"], m["operator"], m["values"]) for x in preferred for m in x["preference"]["matchFields"])
        # matchFields takes one value: Kubernetes refuses the pod otherwise
        assert fields == [*((50, "In", [n]) for n in sorted([near, close])), (100, "NotIn", [limping])]
        terms = affinity(pod)["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert [m["values"] for t in terms for m in t["matchFields"] if m["operator"] == "NotIn"] == [[sick]]
    finally:
        nodes.close()


def test_pods_with_a_sick_device_are_replaced_elsewhere(world):
    world.controller()
    world.apply(infd("chat"))
    wait(lambda: len(world.pods()) == 2)
    world.make_ready()
    wait(lambda: len([p for p in world.pods() if p.get("status", {}).get("phase") == "Running"]) == 2)
    victim, other = (p["metadata"]["name"] for p in world.pods())
    world.kubectl("annotate", "pod", other, P + 'device-fault={"device":"GPU-1","action":"Restart","reason":"Xid 13"}')
    world.kubectl("annotate", "pod", victim, P + 'device-fault={"device":"GPU-0","action":"QuarantineDevice","reason":"Xid 48: needs a reset"}')

    def moved():
        world.make_ready()
        names = [p["metadata"]["name"] for p in world.pods()]
        return victim not in names and len(names) == 2 and other in names
    wait(moved, 40, "the replacement")


def test_lead_times_are_told_in_the_status(world):
    world.controller()
    world.apply(infd("chat"))
    pods = wait(lambda: world.pods() if len(world.pods()) == 2 else None)
    for p, seconds in zip(pods, (0.030, 0.050)):
        world.kubectl("annotate", "pod", p["metadata"]["name"], f'{P}lead={{"rung":"hot","seconds":{seconds}}}')
    wait(lambda: world.get("infd", "chat")["status"].get("standby", {}).get("leadSeconds", {}).get("hot") in (0.03, 0.05), what="the status")
    for p in pods:
        world.kubectl("annotate", "pod", p["metadata"]["name"], f'{P}lead={{"rung":"cold","seconds":9}}', "--overwrite")
    wait(lambda: world.get("infd", "chat")["status"]["standby"]["leadSeconds"].get("cold") == 9)
    assert "hot" in world.get("infd", "chat")["status"]["standby"]["leadSeconds"]  # what was known stays


def test_claims_and_images_are_mounted(world):
    world.controller()
    for name, source in (("claim", "pvc://models/qwen/m.gguf"), ("image", "image://registry.example/m:1?path=/m.gguf")):
        o = infd(name)
        o["spec"]["model"]["source"] = source
        world.apply(o)
        spec = wait(lambda: world.pods(infd=name))[0]["spec"]
        volume = next(v for v in spec["volumes"] if v["name"] == "source")
        env = {e["name"]: e.get("value") for e in spec["containers"][0]["env"]}
        if name == "claim":
            assert volume["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
            assert env["BATON_MODEL_PATH"] == "/var/lib/baton/source/qwen/m.gguf"
        else:
            assert volume["image"] == {"reference": "registry.example/m:1", "pullPolicy": "IfNotPresent"}
            assert env["BATON_MODEL_PATH"] == "/var/lib/baton/source/m.gguf"
        assert any(m["mountPath"] == "/var/lib/baton/source" and m["readOnly"] for m in spec["containers"][0]["volumeMounts"])
    o = infd("bad")
    o["spec"]["model"]["source"] = "hf://org/repo/../x"
    world.apply(o)
    wait(lambda: any(c["status"] == "False" and "must lie in the repository" in c["message"]
                     for c in world.get("infd", "bad").get("status", {}).get("conditions", [])), what="the condition")
