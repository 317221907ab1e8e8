"""Baton's own rule on a real API server: what it decides is recorded, explained, replayed; capacity, waking, one owner."""
import base64
import json
import os
import subprocess
import time

from world import BUILD, infd, load_of, sample, scaled_infd, wait


def explain(world, *args):
    env = {**os.environ, "BATON_KUBECONFIG": str(world.cluster.kubeconfig)}
    return subprocess.run([BUILD / "bin/baton", "explain", "--namespace", world.ns, *args], env=env, text=True, capture_output=True,
                          timeout=60)


def secret_of(world):
    return base64.b64decode(world.get("secret", "chat-peer")["data"]["secret"]).decode()


def begin(world, router, *args, **scaling):
    c = world.controller("--router-address", router.address, *args)
    world.apply(scaled_infd(**scaling))
    wait(lambda: len(world.pods()) == 2, what="a pod a role")
    world.make_ready()
    router.answer = load_of(world)
    return c


def condition(world, name, type):
    return next((c for c in world.get("wp", name).get("status", {}).get("conditions", []) if c["type"] == type), {})


def test_decisions_are_recorded_explained_and_replayed(world, router, tmp_path):
    c = begin(world, router)
    router.answer = load_of(world, waiting_tokens=2000)
    wait(lambda: world.scaled("prefill") == 3)
    decision = wait(lambda: world.get("wp", "chat-prefill")["status"].get("decisions"))[0]
    assert decision["from"] == 1 and decision["to"] == 3 and json.loads(decision["inputs"])["waiting_tokens"] == 2000

    def settled():
        world.make_ready()
        router.answer = load_of(world)
        return world.scaled("prefill") == 1
    wait(settled)
    assert condition(world, "chat-prefill", "ScalingActive")["status"] == "True"
    r = explain(world, "chat", "prefill", "--controller", f"http://127.0.0.1:{c.port}")
    assert r.returncode == 0, r.stderr
    assert "1 groups asked for" in r.stdout and "bounds 1 to 4" in r.stdout and "from 1 to 3: waiting and arriving prompt tokens" in r.stdout
    assert "chat-decode" not in r.stdout
    r = explain(world, "--controller", "http://127.0.0.1:1")  # no controller to ask: the status has it
    assert r.returncode == 0 and "told by the WorkerPool" in r.stdout and "chat-decode" in r.stdout
    assert explain(world, "nobody").returncode == 1

    records = tmp_path / "decisions"
    records.write_text(c.decisions.read_text())
    lines = records.read_text().splitlines()
    ups = [d for d in map(json.loads, lines) if any(r["decision"]["to"] == 3 for r in d["roles"])]
    assert ups and ups[0]["roles"][0]["input"]["samples"][0]["waiting_tokens"] == 2000
    r = explain(world, "--replay", str(records))
    assert r.returncode == 0 and f"{len(lines)} decisions: {len(lines)} the same, 0 differ" in r.stdout, r.stdout + r.stderr
    served = c.get(f"/v1/scaling/decisions?namespace={world.ns}&infd=chat&n=1000")[1]
    assert served == records.read_text()
    records.write_text(records.read_text().replace('"waiting_tokens":2000', '"waiting_tokens":9000'))
    r = explain(world, "--replay", str(records))
    assert r.returncode == 1 and "differ" in r.stdout and "recorded: " in r.stdout
    records.write_text('{"version": 7}\n')
    assert explain(world, "--replay", str(records)).returncode == 1


def test_the_endpoint_for_keda_tells_numbers_or_nothing(world, router):
    """KEDA's metrics-api trigger: GET, valueLocation is a path into the JSON, the value a number or a quantity; a missing one
    is an error for KEDA, so that it falls back instead of scaling to zero."""
    c = begin(world, router)
    router.answer = load_of(world, waiting_tokens=400, used=30)

    def figures(role):
        return c.get(f"/v1/scaling/{world.ns}/chat/{role}")
    wait(lambda: figures("prefill")[1].get("queued_tokens") == 400)
    status, body = figures("prefill")
    assert status == 200 and isinstance(body["needed_groups"], float) and abs(body["needed_groups"] - 0.5) < 1e-6
    assert body["replicas"] == 1 and body["code"] and body["reason"]
    assert abs(figures("decode")[1]["kv_used_ratio"] - 0.3) < 1e-6
    assert figures("unified")[0] == 404
    metrics = c.get("/metrics")[1]
    line = f'baton_needed_groups{{infd_namespace="{world.ns}",infd="chat",role="prefill"}} 0.5'
    assert line in metrics
    router.stop()
    wait(lambda: "needed_groups" not in figures("prefill")[1], what="the figure to be withdrawn")
    assert "baton_needed_groups{" not in c.get("/metrics")[1]


def test_a_router_wakes_a_model_at_zero_at_once(world, router):
    c = world.controller("--router-address", router.address)
    world.apply(scaled_infd(low=0))
    wait(lambda: world.get("wp")["items"] and len(world.get("wp")["items"]) == 2, what="both pools")
    assert world.scaled("prefill") == 0 and world.scaled("decode") == 0 and not world.pods()
    router.answer = load_of(world)
    body = json.dumps({"namespace": world.ns, "infd": "chat", "held_requests": 1, "held_tokens": 10})
    secret = wait(lambda: secret_of(world))
    assert c.get("/v1/internal/wake", {"Authorization": "Bearer no"}, "POST", body)[0] == 401
    assert c.get("/v1/internal/wake", {"Authorization": f"Bearer {secret}"}, "GET")[0] == 405
    time.sleep(2)
    assert world.scaled("prefill") == 0
    wait(lambda: c.get("/v1/internal/wake", {"Authorization": f"Bearer {secret}"}, "POST", body)[0] == 202)
    wait(lambda: world.scaled("prefill") == 1 and world.scaled("decode") == 1, 10)
    decision = wait(lambda: world.get("wp", "chat-decode")["status"].get("decisions"))[0]
    assert decision["from"] == 0 and "zero" in decision["reason"]


def test_held_requests_alone_wake_it_when_no_push_comes(world, router):
    world.controller("--router-address", router.address)
    world.apply(scaled_infd(low=0))
    wait(lambda: len(world.get("wp")["items"]) == 2, what="both pools")
    router.answer = load_of(world, held=2)
    wait(lambda: world.scaled("prefill") == 1 and world.scaled("decode") == 1, 15)


def node(world, name, cpu, **more):
    world.cluster.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, **more}))
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    world.cluster.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": {
        "allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110", "example.com/accelerator": "2"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "X", "lastTransitionTime": now, "lastHeartbeatTime": now}]}}))
    # The API server taints a new node as not ready, and the controller that would take that away doesn't run here.
    world.cluster.kubectl("patch", "node", name, "--type=merge", "-p", json.dumps({"spec": {"taints": more.get("spec", {}).get("taints")}}))


def test_no_more_is_asked_for_than_nodes_have_room_for(world, router):
    node(world, "big", "8")
    node(world, "cordoned", "8", spec={"unschedulable": True})
    node(world, "tainted", "8", spec={"taints": [{"key": "x", "value": "y", "effect": "NoSchedule"}]})
    node(world, "elsewhere", "8", metadata={"name": "elsewhere", "labels": {"zone": "b"}})
    try:
        world.controller("--router-address", router.address)
        d = scaled_infd(high=8)
        d["spec"]["prefill"]["resources"] = {"requests": {"cpu": "100m", "example.com/accelerator": "1"},
                                             "limits": {"cpu": "1", "memory": "1Gi", "example.com/accelerator": "1"}}
        d["spec"]["prefill"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["b"]}]}]}}}
        world.apply(d)
        for p in wait(lambda: (lambda p: p if len(p) == 2 else None)(world.pods()), what="a pod a role"):
            world.kubectl("create", "-f", "-", input=json.dumps({
                "apiVersion": "v1", "kind": "Binding", "metadata": {"name": p["metadata"]["name"]},
                "target": {"apiVersion": "v1", "kind": "Node", "name": "big"}}))
        world.make_ready()
        router.answer = load_of(world, waiting_tokens=5000)  # 7 groups; the node has one accelerator left
        wait(lambda: world.scaled("prefill") == 2, 30, "the rise to what there is room for")
        limited = wait(lambda: (lambda c: c if c.get("status") == "True" else None)(condition(world, "chat-prefill", "CapacityLimited")), 40)
        assert limited["reason"] in ("NoRoom", "Unschedulable")
        told = wait(lambda: (lambda c: c if c.get("status") == "True" else None)(world.condition("chat", "CapacityLimited")))
        assert told["reason"] in ("NoRoomToScale", "Unschedulable") and "prefill" in told["message"]
        time.sleep(4)
        assert world.scaled("prefill") == 2
    finally:
        for n in ("big", "cordoned", "tainted", "elsewhere"):
            world.cluster.kubectl("delete", "node", n, check=False)


def test_a_second_controller_serves_figures_and_writes_nothing(world, router):
    c = begin(world, router)
    second = world.controller("--router-address", router.address)
    router.answer = load_of(world, waiting_tokens=500)
    for one in (c, second):
        wait(lambda: one.get(f"/v1/scaling/{world.ns}/chat/prefill")[1].get("queued_tokens") == 500)
    leaders = [one for one in (c, second) if one.get("/debug/state")[1]["leading"]]
    assert leaders == [c]
    assert second.decisions.read_text() == ""
    secret = secret_of(world)
    body = json.dumps({"namespace": world.ns, "infd": "chat"})
    assert second.get("/v1/internal/wake", {"Authorization": f"Bearer {secret}"}, "POST", body)[0] == 503


def test_samples_of_strangers_are_counted_and_told(world, router):
    c = begin(world, router)
    ghost = {"metadata": {"name": "ghost", "uid": "00000000-0000-0000-0000-000000000000"}}
    nameless = {"metadata": {"name": "nameless", "uid": ""}}
    answer = load_of(world)
    answer["roles"]["prefill"]["samples"] += [sample(ghost, "prefill", waiting_tokens=90000),
                                              sample(nameless, "prefill", waiting_tokens=90000)]
    router.answer = answer

    def dropped(reason):
        return f'baton_controller_samples_dropped_total{{reason="{reason}"}}' in c.get("/metrics")[1]
    wait(lambda: dropped("unknown_pod") and dropped("no_id"))
    time.sleep(3)
    assert world.scaled("prefill") == 1


def test_a_ratio_upside_down_is_refused(world):
    bad = infd(scaling={"ratio": {"min": "2", "max": "0.5"}})
    r = world.kubectl("apply", "-f", "-", input=json.dumps(bad), check=False)
    assert r.returncode != 0 and "ratio.min must not be above ratio.max" in r.stderr


def test_a_worker_whose_cache_serves_goes_last(world, router):
    d = infd(prefill=1, decode=4)
    world.controller("--router-address", router.address)
    world.apply(d)
    pods = wait(lambda: (lambda p: p if len(p) == 4 else None)(world.pods("decode")), what="four pods")
    world.make_ready()
    uids = sorted(p["metadata"]["uid"] for p in pods)

    def say(tokens):
        """The counters of the workers' prefix caches."""
        router.answer = load_of(world)
        for s in router.answer["roles"]["decode"]["samples"]:
            s["cached_tokens_total"] = tokens[s["uid"]]

    def left():
        return sorted(p["metadata"]["uid"] for p in world.pods("decode"))
    totals = dict.fromkeys(uids, 100)
    say(totals)
    time.sleep(2.5)
    for n, cold in ((3, uids[1]), (2, uids[2])):
        for u in totals:
            totals[u] += 0 if u == cold else 5000
        say(totals)
        time.sleep(2.5)
        stay = [u for u in left() if u != cold]
        world.kubectl("scale", "wp/chat-decode", f"--replicas={n}")
        wait(lambda: len(left()) == n)
        assert left() == stay
