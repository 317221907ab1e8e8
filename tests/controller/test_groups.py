"""Groups of several pods, revisions and nodes that are emptied, against the embedded and a real API server."""
import json
import time

from conftest import infd, wait

P = "serving.baton.dev/"


def grouped(pods=2, prefill=1, decode=1, **spec):
    o = infd(prefill=prefill, decode=decode, **spec)
    for role in ("prefill", "decode"):
        o["spec"][role]["parallelism"] = {"tensor": 4, "pods": pods}
    return o


def members(world, role="decode"):
    return sorted(world.pods(role), key=lambda p: int(p["metadata"]["labels"].get(P + "index", 0)))


def note(world, pod, **notes):
    world.kubectl("annotate", "pod", pod["metadata"]["name"], "--overwrite", *[f"{P}{k.replace('_', '-')}={v}" for k, v in notes.items()])


def run(world, pod, ip, ready=True):
    """The kubelet's part: an address, and readiness."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    world.kubectl("patch", "pod", pod["metadata"]["name"], "--subresource=status", "--type=merge", "-p", json.dumps(
        {"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [
            {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": now}]}}))


def bind(world, pod):
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"}}
    world.kubectl("create", "--raw", f"/api/v1/namespaces/{world.ns}/pods/{pod['metadata']['name']}/binding", "-f", "-",
                  input=json.dumps(body))


def free(pod):
    return not pod["spec"].get("schedulingGates")


def place_all(world):
    """Whoever is let go gets a node, until nobody waits."""
    seen = []

    def step():
        for p in world.pods():
            if free(p) and not p["spec"].get("nodeName"):
                bind(world, p)
                group = p["metadata"]["labels"][P + "group"]
                if not seen or seen[-1] != group:
                    seen.append(group)
        return all(p["spec"].get("nodeName") for p in world.pods())
    wait(step, 30)
    return seen


def started(world):
    wait(lambda: len(world.pods()) == 4)
    order = place_all(world)
    for i, p in enumerate(sorted(world.pods(), key=lambda p: p["metadata"]["name"])):
        run(world, p, f"10.0.0.{i + 1}")
    return order


def test_groups_are_made_whole_placed_one_at_a_time_and_started_together(world):
    world.apply(grouped())
    world.controller()
    wait(lambda: len(world.pods()) == 4)
    a, b = members(world)
    labels = b["metadata"]["labels"]
    assert b["metadata"]["name"] == a["metadata"]["name"] + "-1" and labels[P + "group"] == a["metadata"]["name"]
    assert labels[P + "rank"] == "2" and labels[P + "group-size"] == "2" and a["metadata"]["labels"][P + "rank"] == "0"
    assert "livenessProbe" in a["spec"]["containers"][0] and "livenessProbe" not in b["spec"]["containers"][0]
    order = started(world)
    assert len(order) == 2  # never a pod of the second group between those of the first
    wait(lambda: all(P + "peers" in p["metadata"]["annotations"] for p in world.pods()))
    ips = json.loads(members(world)[0]["metadata"]["annotations"][P + "peers"])
    assert ips == [p["status"]["podIP"] for p in members(world)]
    wait(lambda: world.condition("chat", "Ready").get("status") == "True")
    pdb = world.get("pdb", "chat-decode")["spec"]
    assert pdb["minAvailable"] == 2 and P + "rank" not in pdb["selector"]["matchLabels"]


def test_a_failed_epoch_is_answered_once_on_every_pod(world):
    world.apply(grouped())
    world.controller()
    started(world)
    wait(lambda: all(P + "peers" in p["metadata"]["annotations"] for p in world.pods()))
    a, b = members(world)
    note(world, b, failed_epoch=1, last_crash='{"message":"rank 2 died","epoch":1}')
    wait(lambda: [p["metadata"]["annotations"][P + "epoch"] for p in members(world)] == ["2", "2"])
    note(world, a, failed_epoch=1)
    time.sleep(1)
    assert [p["metadata"]["annotations"][P + "epoch"] for p in members(world)] == ["2", "2"]
    lead = members(world)[0]["metadata"]["annotations"]
    assert "rank 2 died" in lead[P + "last-crash"] and lead[P + "backoff-seconds"] == "30"
    assert {p["metadata"]["uid"] for p in members(world)} == {a["metadata"]["uid"], b["metadata"]["uid"]}


def test_a_group_that_loses_a_pod_is_made_anew_together(world):
    world.apply(grouped())
    world.controller()
    started(world)
    wait(lambda: all(P + "peers" in p["metadata"]["annotations"] for p in world.pods()))
    old = {p["metadata"]["name"] for p in members(world)}
    world.kubectl("delete", "pod", members(world)[1]["metadata"]["name"], "--force", "--grace-period=0")
    wait(lambda: len(members(world)) == 2 and not old & {p["metadata"]["name"] for p in members(world)}, 30)


def test_the_pods_of_a_group_are_packed_and_claim_devices(world):
    o = grouped(decode=1)
    o["spec"]["decode"]["placement"] = {"packBy": "example.com/rack", "mode": "Required"}
    o["spec"]["decode"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    world.apply(o)
    world.controller()
    wait(lambda: len(world.pods()) == 4)
    spec = members(world)[1]["spec"]
    term = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
    assert term["topologyKey"] == "example.com/rack"
    assert term["labelSelector"]["matchLabels"] == {P + "group": members(world)[0]["metadata"]["name"]}
    assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]


def test_pods_must_divide_the_ranks(world):
    r = world.kubectl("apply", "-f", "-", input=json.dumps(grouped(pods=3)), check=False)
    assert r.returncode != 0 and "pods must divide tensor * pipeline * data" in r.stderr


def history(world):
    items = world.get("controllerrevisions")["items"]
    return {v["metadata"]["labels"][P + "revision"]: v for v in items}


def test_revisions_are_kept_paused_and_undone(world):
    world.apply(infd())
    world.controller()
    wait(lambda: len(world.pods()) == 2)
    world.make_ready()
    wait(lambda: world.condition("chat", "Ready").get("status") == "True")
    first = world.get("infd", "chat")["status"]["revision"]
    assert world.get("infd", "chat")["status"]["currentRevision"] == first and list(history(world)) == [first]
    uids = {p["metadata"]["uid"] for p in world.pods()}
    world.patch("chat", {"spec": {"rollout": {"paused": True}, "kvCache": {"size": "64Mi"}}})
    wait(lambda: len(history(world)) == 2)
    wait(lambda: world.condition("chat", "Progressing").get("reason") == "Paused")
    assert {p["metadata"]["uid"] for p in world.pods()} == uids
    # A pod that goes while the rollout is paused comes back as it was.
    victim = world.pods("decode")[0]
    world.kubectl("delete", "pod", victim["metadata"]["name"], "--force", "--grace-period=0")
    again = wait(lambda: next((p for p in world.pods("decode") if p["metadata"]["uid"] != victim["metadata"]["uid"]), None))
    assert again["metadata"]["labels"][P + "revision"] == victim["metadata"]["labels"][P + "revision"]
    env = {e["name"]: e.get("value") for e in again["spec"]["containers"][0]["env"]}
    assert not env["BATON_KV_BYTES"]
    # Undo: the stored parts, what is new set to null.
    data = history(world)[first]["data"]["spec"]
    world.patch("chat", {"spec": {**data, "kvCache": {**data.get("kvCache", {}), "size": None}, "rollout": {"paused": False}}})
    wait(lambda: world.get("infd", "chat")["status"]["revision"] == first)
    wait(lambda: history(world)[first]["revision"] == 3)
    assert all(p["metadata"]["labels"][P + "revision"] == victim["metadata"]["labels"][P + "revision"]
               for p in world.pods("decode"))
