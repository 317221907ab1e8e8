"""What a person does with kubectl, and what the controller makes of it."""
import base64
import calendar
import json
import random
import signal
import time

from conftest import QUICK, ROOT, FakeRouter, infd, wait
from patience import patience


def counts(w, **want):
    return lambda: all(len(w.pods(role)) == n for role, n in want.items())


def test_a_sample_becomes_pools_pods_secret_and_budget(world):
    world.controller()
    world.kubectl("apply", "-f", ROOT / "manifests/samples/chat.yaml")
    wait(counts(world, prefill=1, decode=1))
    wps = {w["metadata"]["name"]: w for w in wait(lambda: world.get("wp")["items"])}
    assert set(wps) == {"chat-prefill", "chat-decode"}
    d = world.get("infd", "chat")
    for w in wps.values():
        assert w["spec"]["replicas"] == 1
        assert w["metadata"]["annotations"]["serving.baton.dev/last-infd-replicas"] == "1"
        assert w["metadata"]["ownerReferences"][0]["uid"] == d["metadata"]["uid"]
    secret = base64.b64decode(world.get("secret", "chat-peer")["data"]["secret"]).decode()
    assert len(secret) == 64 and int(secret, 16)
    pdb = wait(lambda: world.get("pdb")["items"])[0]
    assert pdb["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert isinstance(pdb["spec"]["minAvailable"], int)


def test_the_pod_is_what_the_contracts_say(world):
    world.controller()
    world.kubectl("apply", "-f", ROOT / "manifests/samples/chat.yaml")
    wait(counts(world, prefill=1, decode=1))
    pod = world.pods("decode")[0]
    meta, spec = pod["metadata"], pod["spec"]
    stem, _, suffix = meta["name"].rpartition("-")
    assert stem == "chat" and len(suffix) == 5
    assert meta["labels"]["serving.baton.dev/rank"] == "0"
    assert meta["labels"]["serving.baton.dev/group"] == meta["name"]
    assert meta["labels"]["serving.baton.dev/revision"] == world.pods("prefill")[0]["metadata"]["labels"]["serving.baton.dev/revision"]
    owner = meta["ownerReferences"][0]
    assert owner["kind"] == "InferenceDeployment" and owner["controller"]
    assert spec["readinessGates"] == [{"conditionType": "serving.baton.dev/role"}]
    assert spec["terminationGracePeriodSeconds"] == 90  # drainTimeout 60s + 30
    assert spec["automountServiceAccountToken"] is False
    c = spec["containers"][0]
    assert c["command"] == ["baton-agent", "launch"]
    env = {e["name"]: e for e in c["env"]}
    values = {k: e.get("value") for k, e in env.items()}
    assert env["BATON_POD_IP"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert env["BATON_MEMORY_LIMIT_BYTES"]["valueFrom"]["resourceFieldRef"]["resource"] == "limits.memory"
    assert values["BATON_MODEL_SOURCE"] == "file://$(BATON_MODELS_DIR)/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert values["BATON_KV_BYTES"] == str(256 << 20)
    assert values["BATON_DRAIN_SECONDS"] == "60"
    assert "role" not in " ".join(values).lower()
    mounts = {m["mountPath"]: m["name"] for m in c["volumeMounts"]}
    volumes = {v["name"]: v for v in spec["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    assert volumes[mounts["/run/baton"]]["hostPath"]["path"] == "/run/baton"
    assert volumes[mounts["/etc/baton/peer"]]["secret"]["secretName"] == "chat-peer"
    for name in ("BATON_AGENT_DIR", "BATON_PEER_DIR", "BATON_SHM_DIR"):
        assert values[name] in mounts
    assert c["securityContext"]["capabilities"]["drop"] == ["ALL"]


def test_what_a_role_asks_for_decides_what_computes(world):
    world.controller()
    o = infd()
    for kind in ("requests", "limits"):
        o["spec"]["decode"]["resources"][kind]["nvidia.com/gpu"] = "1"
    world.apply(o)
    wait(counts(world, prefill=1, decode=1))
    backend = lambda role: {e["name"]: e.get("value") for e in world.pods(role)[0]["spec"]["containers"][0]["env"]}["BATON_BACKEND"]
    assert backend("decode") == "cuda" and backend("prefill") == "cpu"


def test_speculation_and_copies_of_experts_are_options_of_the_engine(world):
    world.controller()
    world.apply(infd("plain"))
    world.apply(infd("off", engine={"speculation": "None", "redundantExperts": 4}))
    wait(lambda: len(world.pods()) == 4)
    pods = {p["metadata"]["labels"]["serving.baton.dev/infd"]: p for p in world.pods("decode")}
    env = {k: {e["name"]: e.get("value") for e in p["spec"]["containers"][0]["env"]} for k, p in pods.items()}
    assert env["off"]["BATON_SPECULATION"] == "off" and "BATON_SPECULATION" not in env["plain"]
    assert env["off"]["BATON_REDUNDANT_EXPERTS"] == "4" and "BATON_REDUNDANT_EXPERTS" not in env["plain"]
    before = pods["plain"]["metadata"]["labels"]["serving.baton.dev/revision"]
    world.patch("plain", {"spec": {"engine": {"speculation": "PromptLookup"}}})
    changed = lambda: {p["metadata"]["labels"]["serving.baton.dev/revision"] for p in world.pods("decode", infd="plain")} - {before}
    wait(changed)
    before = min(changed())
    world.patch("plain", {"spec": {"engine": {"redundantExperts": 2}}})
    wait(changed)


def test_status_counts_conditions_and_columns(world):
    world.controller()
    world.apply(infd(decode=2))
    wait(counts(world, prefill=1, decode=2))
    wait(lambda: world.condition("chat", "Ready").get("reason") == "PodsNotReady")
    assert world.condition("chat", "Accepted")["status"] == "True"
    world.make_ready()
    wait(lambda: world.condition("chat", "Ready").get("status") == "True")
    d = world.get("infd", "chat")
    assert d["status"]["observedGeneration"] == d["metadata"]["generation"]
    assert d["status"]["decode"] == {"desired": 2, "current": 2, "ready": 2, "updated": 2, "summary": "2/2"}
    assert d["status"]["url"].startswith("http://")
    row = world.kubectl("get", "infd").stdout.splitlines()[1].split()
    assert row[:5] == ["chat", "True", "AllReady", "1/1", "2/2"]
    wp = wait(lambda: (lambda o: o if o["status"].get("readyReplicas") == 2 else None)(world.get("wp", "chat-decode")))
    assert wp["status"]["selector"] == \
        "serving.baton.dev/infd=chat,serving.baton.dev/role=decode,serving.baton.dev/rank=0"
    world.kubectl("wait", "infd/chat", "--for=condition=Ready", "--timeout=30s")


def test_kubectl_scale_and_edits_both_work_and_do_not_fight(world):
    world.controller()
    world.apply(infd())
    wait(counts(world, prefill=1, decode=1))
    world.kubectl("scale", "wp/chat-decode", "--replicas=2")
    wait(counts(world, prefill=1, decode=2))
    time.sleep(1)
    assert world.replicas("chat-decode") == 2  # the infd still says 1, and was acted upon long ago
    world.patch("chat", {"spec": {"decode": {"replicas": 3}}})
    wait(counts(world, decode=3))
    assert world.replicas("chat-decode") == 3
    world.patch("chat", {"spec": {"decode": {"replicas": 1}}})
    wait(counts(world, decode=1))
    applied = [m for m in world.get("wp", "chat-decode", "--show-managed-fields")["metadata"]["managedFields"]
               if m["operation"] == "Apply" and not m.get("subresource")]
    assert not any("f:replicas" in m["fieldsV1"].get("f:spec", {}) for m in applied)


def test_shrinking_and_growing_together_moves_roles_not_pods(world):
    world.controller()
    world.apply(infd(prefill=1, decode=3))
    wait(counts(world, prefill=1, decode=3))
    before = {p["metadata"]["uid"] for p in world.pods()}
    world.patch("chat", {"spec": {"prefill": {"replicas": 3}, "decode": {"replicas": 1}}})
    wait(counts(world, prefill=3, decode=1))
    assert {p["metadata"]["uid"] for p in world.pods()} == before


def test_deletion_leaves_nothing(world):
    world.controller()
    world.apply(infd(decode=2))
    wait(counts(world, prefill=1, decode=2))
    wait(lambda: len(world.get("pdb")["items"]) == 2)
    world.kubectl("delete", "infd", "chat")
    wait(lambda: not world.get("infd,wp,pod,secret,pdb")["items"], seconds=40)


def test_a_changed_revision_rolls_within_its_budget(world):
    world.controller()
    world.apply(infd(prefill=0, decode=3, rollout={"maxUnavailable": 0, "maxSurge": 1, "drainTimeout": "1s"}))
    wait(counts(world, decode=3))
    world.make_ready()
    wait(lambda: world.condition("chat", "Ready").get("status") == "True")
    old = {p["metadata"]["uid"] for p in world.pods()}
    world.patch("chat", {"spec": {"model": {"maxContextTokens": 1024}}})
    begin = time.monotonic()
    while True:
        assert time.monotonic() < begin + patience(60), "it does not end"
        pods = world.pods("decode")
        ready = [p for p in pods if any(c["type"] == "Ready" and c["status"] == "True" for c in p.get("status", {}).get("conditions", []))]
        assert len(ready) >= 3 and len(pods) <= 4
        if not old & {p["metadata"]["uid"] for p in pods} and len(pods) == 3:
            break
        world.make_ready()
        time.sleep(0.2)
    wait(lambda: world.condition("chat", "Ready").get("status") == "True")
    assert not old & {p["metadata"]["uid"] for p in world.pods()}


def test_a_failed_pod_is_replaced_with_a_record(world):
    world.controller()
    world.apply(infd(prefill=0))
    wait(counts(world, decode=1))
    pod = world.pods("decode")[0]
    world.status(pod, ready=False, phase="Failed")
    wait(lambda: world.pods("decode") and world.pods("decode")[0]["metadata"]["uid"] != pod["metadata"]["uid"])
    new = wait(lambda: world.pods("decode"))[0]["metadata"]
    assert new["annotations"]["serving.baton.dev/epoch"] == "1"
    assert new["annotations"]["serving.baton.dev/backoff-until"].endswith("Z")
    world.status(world.pods("decode")[0], ready=False, phase="Failed")  # at once again: it must wait now
    time.sleep(2)
    left = [p["metadata"]["uid"] for p in world.pods("decode")]
    until = calendar.timegm(time.strptime(new["annotations"]["serving.baton.dev/backoff-until"], "%Y-%m-%dT%H:%M:%SZ"))
    assert left == [new["uid"]] or time.time() >= until
    wait(lambda: world.condition("chat", "Ready")["reason"] == "PodFailed")


def test_what_keeps_a_worker_from_serving_is_told(world):
    world.controller()
    world.apply(infd(prefill=0))
    wait(counts(world, decode=1))
    pod = world.pods("decode")[0]["metadata"]["name"]
    world.kubectl("patch", "pod", pod, "--subresource=status", "--type=merge", "-p", json.dumps({"status": {"conditions": [
        {"type": "serving.baton.dev/role", "status": "False", "reason": "InsufficientMemory",
         "message": "needs 9.1 GiB, node has 7.8"}]}}))
    c = wait(lambda: (lambda x: x if x.get("reason") == "PodCrashing" else None)(world.condition("chat", "Ready")))
    assert "needs 9.1 GiB, node has 7.8" in c["message"] and pod in c["message"]


def test_the_older_of_two_with_one_model_name_serves(world):
    world.controller()
    world.apply(infd("first", model="m"))
    wait(counts(world, prefill=1, decode=1))
    time.sleep(1.1)  # creation times have seconds
    world.apply(infd("second", model="m"))
    c = wait(lambda: (lambda x: x if x.get("status") == "False" else None)(world.condition("second", "Accepted")))
    assert c["reason"] == "ModelNameTaken" and "first" in c["message"]
    assert not world.pods(infd="second")
    world.kubectl("delete", "infd", "first")
    wait(lambda: world.condition("second", "Accepted").get("status") == "True")
    wait(lambda: len(world.pods(infd="second")) == 2)


def test_what_others_delete_comes_back_without_touching_pods(world):
    world.controller()
    world.apply(infd(decode=2))
    wait(counts(world, prefill=1, decode=2))
    before = {p["metadata"]["uid"] for p in world.pods()}
    world.kubectl("delete", "wp", "chat-decode", "--cascade=orphan")
    world.kubectl("delete", "secret", "chat-peer")
    wait(lambda: world.kubectl("get", "wp", "chat-decode", check=False).returncode == 0)
    wait(lambda: world.kubectl("get", "secret", "chat-peer", check=False).returncode == 0)
    world.kubectl("annotate", "wp", "chat-decode", "serving.baton.dev/last-infd-replicas-")
    wait(lambda: world.get("wp", "chat-decode")["metadata"].get("annotations", {}).get(
        "serving.baton.dev/last-infd-replicas") == "2")
    assert {p["metadata"]["uid"] for p in world.pods()} == before


def test_a_pod_that_only_wears_the_label_is_left_alone(world):
    world.controller()
    world.apply(infd())
    wait(counts(world, prefill=1, decode=1))
    world.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stranger", "labels": {
        "serving.baton.dev/infd": "chat", "serving.baton.dev/role": "decode", "serving.baton.dev/rank": "0"}},
        "spec": {"containers": [{"name": "c", "image": "x"}]}})
    time.sleep(1)
    world.patch("chat", {"spec": {"decode": {"replicas": 0}}})
    wait(lambda: [p["metadata"]["name"] for p in world.pods("decode")] == ["stranger"])


def test_killed_at_any_moment_it_ends_with_the_right_number(world):
    seed = int(time.time())
    print("seed", seed)
    rng = random.Random(seed)
    c = world.controller("--no-leader-election")
    world.apply(infd(prefill=5, decode=7))
    for _ in range(5):
        time.sleep(rng.uniform(0.02, 0.25))
        c.kill()
        c.start()
    wait(counts(world, prefill=5, decode=7))
    time.sleep(1)
    assert len(world.pods()) == 12


def test_another_takes_over_when_the_leader_dies(world):
    a = world.controller(*QUICK)
    world.apply(infd())
    wait(counts(world, prefill=1, decode=1))
    b = world.controller("--lease-seconds", "300", "--renew-seconds", "10")  # by which others know how long to wait for it
    time.sleep(1)
    assert "leadership acquired" not in b.log()
    a.kill(signal.SIGKILL)
    world.kubectl("scale", "wp/chat-decode", "--replicas=3")
    wait(counts(world, decode=3))
    assert "leadership acquired" in b.log()
    a.start()
    time.sleep(0.5)
    assert b.kill(signal.SIGTERM) == 0  # gives the lease back: the next one need not wait for it to expire
    world.kubectl("scale", "wp/chat-decode", "--replicas=1")
    wait(counts(world, decode=1))


def test_events_tell_what_was_done(world):
    world.controller()
    world.apply(infd())
    wait(counts(world, prefill=1, decode=1))
    reasons = wait(lambda: (lambda r: r if {"PodCreated", "WorkerPoolCreated"} <= r else None)(
        {e["reason"] for e in world.get("events")["items"]}))
    assert "ActionFailed" not in reasons
    assert "PodCreated" in world.kubectl("describe", "infd", "chat").stdout


def sample(pod, role, **kw):
    return {"pod": pod["metadata"]["name"], "uid": pod["metadata"]["uid"], "incarnation": "1", "role": role, "ready": True,
            "draining": False, "warmup": False, "age_ms": 20, "running": 0, "waiting": 0, "waiting_tokens": 0,
            "kv_blocks": 100, "kv_blocks_used": 0, "prefill_tokens_per_s": 1000.0, "decode_step_s": 0.02, **kw}


def load(world, waiting_tokens=0, used=0):
    return {"infd": "chat", "arrival_tokens_per_s": 0.0, "held_requests": 0, "held_tokens": 0, "roles": {
        "prefill": {"samples": [sample(p, "prefill", waiting_tokens=waiting_tokens) for p in world.pods("prefill")]},
        "decode": {"samples": [sample(p, "decode", kv_blocks_used=used, running=4) for p in world.pods("decode")]}}}


def test_roles_with_bounds_follow_queue_and_kv(world):
    router = FakeRouter()
    try:
        world.controller("--router-address", router.address)
        d = infd(scaling={"downWindow": "3s"})
        for role in ("prefill", "decode"):
            del d["spec"][role]["replicas"]
            d["spec"][role]["bounds"] = {"min": 1, "max": 3}
        world.apply(d)
        wait(counts(world, prefill=1, decode=1))
        world.make_ready()
        router.answer = load(world, waiting_tokens=2000)
        wait(lambda: world.replicas("chat-prefill") == 3)
        assert world.replicas("chat-decode") == 1
        decision = wait(lambda: world.get("wp", "chat-prefill")["status"].get("decisions"))[0]
        assert decision["from"] == 1 and decision["to"] == 3
        assert "tokens" in decision["reason"] and '"waiting_tokens":2000' in decision["inputs"]
        wait(counts(world, prefill=3))
        world.make_ready()
        router.answer = load(world, used=90)
        wait(lambda: world.replicas("chat-decode") == 2)
        wait(lambda: world.replicas("chat-prefill") == 1)
        secret = base64.b64decode(world.get("secret", "chat-peer")["data"]["secret"]).decode()
        assert "Bearer " + secret in router.secrets
    finally:
        router.stop()


def test_an_external_scaler_has_the_pools_to_itself(world):
    router = FakeRouter()
    try:
        world.controller("--router-address", router.address)
        d = infd(scaling={"mode": "External"})
        for role in ("prefill", "decode"):
            del d["spec"][role]["replicas"]
        world.apply(d)
        wait(counts(world, prefill=1, decode=1))
        router.answer = load(world, waiting_tokens=50000)
        world.kubectl("scale", "wp/chat-decode", "--replicas=2")
        wait(counts(world, decode=2))
        time.sleep(3)
        assert world.replicas("chat-prefill") == 1 and world.replicas("chat-decode") == 2
    finally:
        router.stop()


def test_a_server_of_the_users_own_runs_from_its_template(world):
    world.controller()
    d = infd()
    del d["spec"]["prefill"], d["spec"]["decode"]
    d["spec"].update(unified={"replicas": 1}, routing={"disaggregation": "never"}, engine={"port": 9000, "template": {
        "spec": {"containers": [{"name": "server", "image": "example/server", "args": ["--port", "9000"]}]}}})
    world.apply(d)
    wait(counts(world, unified=1))
    pod = world.pods("unified")[0]
    assert pod["spec"]["containers"][0]["image"] == "example/server"
    assert "readinessGates" not in pod["spec"]
    assert world.get("wp", "chat-unified")["spec"]["role"] == "unified"


def test_containers_of_a_users_template_restart_together_where_the_server_can(world):
    """kube-apiserver 1.37 can; the embedded one takes the rule, and its kubelet restarts the container that ended."""
    c = world.controller()
    wait(lambda: "when one container of several fails" in c.log())
    d = infd()
    del d["spec"]["prefill"], d["spec"]["decode"]
    d["spec"].update(unified={"replicas": 1}, routing={"disaggregation": "never"}, engine={"port": 9000, "template": {
        "spec": {"containers": [{"name": "server", "image": "example/server"}, {"name": "proxy", "image": "example/proxy"}]}}})
    world.apply(d)
    wait(counts(world, unified=1))
    server, proxy = world.pods("unified")[0]["spec"]["containers"]
    rules = [{"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}}]
    assert server["restartPolicyRules"] == rules
    assert "restartPolicyRules" not in proxy
    assert not [p for p in world.get("pods")["items"] if p["metadata"]["name"].startswith("baton-asks")]
