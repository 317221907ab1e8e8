"""A hostile user and a run of bad luck: resources that can't work say why and harm nobody; processes that stop, die or are taken away
under load cost no wrong text, no leaked block and no orphan; requests at the edges of what a model takes."""
import concurrent.futures
import copy
import http.client
import json
import signal
import socket
import subprocess
import time

import pytest
from stack import BUILD, CACHE, MODEL, Load, Stack, eventually, patience, promised

GGUF = CACHE / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS = [f"Tell me {what} about {thing}." for what in ("one fact", "two things") for thing in ("rain", "the sea")]
LOCAL = "file:///var/lib/baton/models/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def stack():
    s = Stack()
    try:
        s.apply_chat()
        yield s
    finally:
        s.close()


@pytest.fixture(scope="module")
def want(stack):
    answers = {p: stack.ask(p) for p in PROMPTS}
    assert [a.error for a in answers.values() if a.error] == []
    return {p: a.text for p, a in answers.items()}


# -- resources --

def infd(name, path=None, value=None):
    o = {"apiVersion": "serving.baton.dev/v1alpha1", "kind": "InferenceDeployment", "metadata": {"name": name},
         "spec": {"model": {"name": f"m-{name}", "source": LOCAL}, "kvCache": {"size": "16Mi"},
                  "unified": {"replicas": 1, "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}}}}
    if path:
        at = o
        *way, last = path.split(".")
        for key in way:
            at = at.setdefault(key, {})
        at[last] = copy.deepcopy(value)
        if value is None:
            del at[last]
    return o


REFUSED = [
    ("spec.kvCache.dtype", "f8", "supported values"),
    ("spec.kvCache.size", "-5Mi", "should match"),
    ("spec.kvCache.size", True, "must be of type string"),
    ("spec.kvCache.blockTokens", 1 << 40, "supported values"),
    ("spec.unified.replicas", -1, "greater than or equal to 0"),
    ("spec.unified.replicas", 1e30, "less than or equal to 1000"),
    ("spec.unified.replicas", 1.5, "must be of type integer"),
    ("spec.unified.replicas", None, "exactly one of replicas or bounds"),
    ("spec.unified", {"bounds": {"min": 3, "max": 1}}, "bounds.min must not be above bounds.max"),
    ("spec.unified", {"bounds": {"min": -1, "max": 1}}, "greater than or equal to 0"),
    ("spec.unified", None, "give either unified, or prefill and decode"),
    ("spec.decode", {"replicas": 1}, "give either unified, or prefill and decode"),
    ("spec.model.name", "two words", "should match"),
    ("spec.model.name", "x" * 129, "Too long"),
    ("spec.model.source", "/etc/passwd", "should match"),
    ("spec.model.source", None, "Required value"),
    ("spec.model", None, "Required value"),
    ("spec.model.sha256", "ABCD" * 16, "should match"),
    ("spec.model.maxContextTokens", -1, "greater than or equal to 16"),
    ("spec.model.maxContextTokens", 1 << 63, "big integer"),
    ("spec.unified.resources.limits.memory", "lots", "should match"),
    ("spec.unified.nodeSelector", {"a": "x" * 64}, "Too long"),
    ("spec.unified.tolerations", "all", "must be of type array"),
    ("spec.unified.parallelism", {"tensor": 65}, "less than or equal to 64"),
    ("spec.routing", {"disaggregation": "always"}, "needs the roles prefill and decode"),
    ("spec.rollout", {"drainTimeout": "-5s"}, "should match"),
    ("spec.scaling", {"mode": "External"}, "must be absent"),
    ("spec.unknown", 1, "unknown field"),
    ("metadata.name", "A_b", "Invalid value"),
    ("metadata.name", "x" * 51, "Too long"),
]


@pytest.mark.parametrize("path,value,message", REFUSED, ids=[f"{p}={v}"[:60] for p, v, _ in REFUSED])
def test_a_resource_is_refused_with_a_reason(stack, path, value, message):
    r = stack.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(infd("bad", path, value)), check=False)
    assert r.returncode != 0, "it was accepted"
    assert message in r.stderr, r.stderr


def hostile_files(folder):
    """Model files that no worker can use, by name."""
    folder.mkdir()
    start = GGUF.open("rb").read(4 << 20)
    files = {"cut": start, "empty": b"", "junk": b"GGUF" + b"\xff" * 4000,
             "tensors": start[:8] + (1 << 62).to_bytes(8, "little") + start[16:],
             "key": start[:24] + (1 << 63).to_bytes(8, "little") + start[32:]}
    for name, data in files.items():
        (folder / f"{name}.gguf").write_bytes(data)
    return {name: f"file://{folder}/{name}.gguf" for name in files}


def test_what_can_not_be_served_says_why_and_harms_nobody(stack, want):
    bad = hostile_files(stack.dir / "hostile")
    limits = "spec.unified.resources.limits"
    cases = {
        "missing": ("spec.model.source", "file:///nonexistent/x.gguf", "is not on this node and no other node offers it"),
        "digest": ("spec.model.sha256", "0" * 64, "its sha256 is"),
        "folder": ("spec.model.source", "file:///etc/", "no model.safetensors and no model.safetensors.index.json"),
        "passwd": ("spec.model.source", "file:///etc/passwd", "not a GGUF file"),
        "endless": ("spec.model.source", "file:///dev/zero", "not a regular file"),
        "remote": ("spec.model.source", "https://127.0.0.1:9/x.gguf", "GET https://127.0.0.1:9/x.gguf: "),
        "cut": ("spec.model.source", bad["cut"], "outside the file"),
        "empty": ("spec.model.source", bad["empty"], "past the end of the file"),
        "junk": ("spec.model.source", bad["junk"], "GGUF version 4294967295"),
        "tensors": ("spec.model.source", bad["tensors"], "claims 4611686018427387904 tensors"),
        "key": ("spec.model.source", bad["key"], "a key of 9223372036854775808 bytes"),
        "little": (limits, {"cpu": "1", "memory": "100Mi"}, "InsufficientMemory: needs 190 MiB, the pod's memory limit has 100 MiB"),
        "node": ("spec.unified.resources.requests.memory", "9000Gi", "Insufficient memory (the pod asks for 9216000 MiB"),
        "negative": (limits, {"cpu": "1", "memory": "-1Gi"}, "not a quantity such as 2Gi, or a negative one"),
        "huge": (limits, {"cpu": "1e400"}, "not a quantity such as 2Gi, or a negative one"),
        "selector": ("spec.unified.nodeSelector", {"no": "such"}, "didn't match Pod's node selector"),
        "tiny-kv": ("spec.kvCache.size", "1Mi", "the KV pool would have 1.00 MiB, it needs 1.41 at least"),
        "no-kv": ("spec.kvCache.size", "0", "spec.kvCache.size is not a quantity"),
        "big-kv": ("spec.kvCache.size", "900Gi", "InsufficientMemory: needs 900.2 GiB, the pod's memory limit has 1.0 GiB"),
        "ranks": ("spec.unified.parallelism", {"pipeline": 31}, "31 pipeline stages: the model has 30 layers"),
        "taken": ("spec.model.name", MODEL, "is served by the older InferenceDeployment chat"),
    }
    objects = [infd(name, path, value) for name, (path, value, _) in cases.items()]
    stack.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def silent():
        said = {}
        for o in stack.get("infd")["items"]:
            said[o["metadata"]["name"]] = [c for c in o["status"]["conditions"] if c["type"] == "Ready"][0]
        return {n: said[n] for n, c in cases.items() if said[n]["status"] != "False" or c[2] not in said[n]["message"]}
    try:
        eventually(lambda: silent() == {}, seconds=300, message="every condition names its cause")
    except AssertionError:
        print(json.dumps(silent(), indent=1))
        raise
    finally:
        stack.kubectl("delete", "infd", *cases, "--wait=false")
    assert stack.ask(PROMPTS[0]).text == want[PROMPTS[0]], "the one that works still works"
    eventually(lambda: len(stack.workers()) == 2 and len(stack.processes("baton-worker")) == 2, seconds=60, message="the bad ones are gone")


def test_the_name_that_is_served_can_not_be_edited(stack):
    r = stack.kubectl("patch", "infd", "chat", "--type=merge", "-p", '{"spec":{"model":{"name":"other"}}}', check=False)
    assert r.returncode != 0 and "can't be changed" in r.stderr


# -- faults under load --

def live(stack, role):
    return [w for w in stack.workers() if w["role"] == role and not w["deleting"]]


def answers_again(stack):
    eventually(lambda: stack.ask(PROMPTS[0]).error is None, seconds=60, message="an answer")


def settled(stack, prefill=1, decode=1):
    eventually(lambda: (len(live(stack, "prefill")), len(live(stack, "decode")), len(stack.workers())) == (prefill, decode, prefill + decode),
               seconds=80, message=f"{prefill} prefill and {decode} decode workers")
    stack.wait_ready()


def kill_launcher(stack):
    name = live(stack, "decode")[0]["name"]
    before = stack.processes("baton-worker", f"BATON_POD_NAME={name}")
    assert before and stack.kill("baton-agent launch", f"BATON_POD_NAME={name}")
    eventually(lambda: not set(before) & set(stack.processes("baton-worker")), seconds=60, message="the launcher's worker ends with it")
    answers_again(stack)


def freeze(role):
    def fault(stack):
        name = live(stack, role)[0]["name"]
        assert stack.kill("baton-worker", f"BATON_POD_NAME={name}", sig=signal.SIGSTOP)
        try:
            time.sleep(5)
        finally:
            stack.kill("baton-worker", f"BATON_POD_NAME={name}", sig=signal.SIGCONT)
        answers_again(stack)
    return fault


def freeze_router(stack):
    assert stack.kill("baton-router", sig=signal.SIGSTOP)
    try:
        time.sleep(3)
    finally:
        stack.kill("baton-router", sig=signal.SIGCONT)
    answers_again(stack)


def scale_to_and_fro(stack):
    for decode, prefill in ((3, 2), (1, 1), (2, 1), (1, 2), (1, 1)):
        stack.kubectl("scale", "wp/chat-decode", f"--replicas={decode}")
        stack.kubectl("scale", "wp/chat-prefill", f"--replicas={prefill}")
        time.sleep(0.5)


def scale_to_zero_and_back(stack):
    stack.kubectl("scale", "wp/chat-decode", "--replicas=0")
    eventually(lambda: not live(stack, "decode"), message="no decode worker")
    stack.kubectl("scale", "wp/chat-decode", "--replicas=1")
    answers_again(stack)


def delete_pods(*how):
    def fault(stack):
        for role in ("prefill", "decode"):
            stack.kubectl("delete", "pod", live(stack, role)[0]["name"], "--wait=false", *how)
            answers_again(stack)
    return fault


def kill_api_server_while_scaling(stack):
    for n in (2, 1, 2):
        stack.kubectl("scale", "wp/chat-decode", f"--replicas={n}", check=False)
        assert stack.kill("baton-local serve")
        eventually(lambda: stack.kubectl("get", "infd", check=False).returncode == 0, seconds=30, message="the API server is back")
    stack.kubectl("scale", "wp/chat-decode", "--replicas=1")


def flip_roles(stack):
    def replicas(prefill, decode):
        stack.kubectl("patch", "infd", "chat", "--type=merge", "-p",
                      json.dumps({"spec": {"prefill": {"replicas": prefill}, "decode": {"replicas": decode}}}))
        settled(stack, prefill, decode)
        return {w["name"] for w in stack.workers()}
    assert replicas(1, 2) == replicas(2, 1), "the same workers in other roles"
    replicas(1, 1)


# A fault, and whether the data path may fail a request because of it.
FAULTS = {"kill-launcher": (kill_launcher, True), "freeze-decode": (freeze("decode"), True), "freeze-prefill": (freeze("prefill"), False),
          "freeze-router": (freeze_router, False), "scale": (scale_to_and_fro, False), "zero": (scale_to_zero_and_back, False),
          "delete": (delete_pods(), False), "force-delete": (delete_pods("--force", "--grace-period=0"), True),
          "api-server": (kill_api_server_while_scaling, False), "flip": (flip_roles, False)}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_under_load_costs_nothing_but_time(stack, want, fault):
    act, may_fail = FAULTS[fault]
    load = Load(stack, PROMPTS, want, clients=2)
    try:
        time.sleep(0.5)
        act(stack)
        settled(stack)
    finally:
        answers = load.stop()
    failed = [a.error for a in answers if a.error]
    print(f"{len(answers)} requests, {len(failed)} ended in an error: {failed[:2]}")
    assert load.wrong() == []
    assert any(not a.error for a in answers) and max(a.seconds for a in answers) < promised(45)
    assert may_fail or failed == []
    eventually(lambda: stack.leaks() == [], seconds=60, message="no leaked block")
    eventually(lambda: len(stack.processes("baton-worker")) == 2, seconds=60, message="no orphan")


# -- requests at the edges --

def post(stack, body, path="/v1/completions"):
    c = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=patience(60))
    try:
        c.request("POST", path, json.dumps({"model": MODEL, "temperature": 0, **body}), {"Content-Type": "application/json"})
        r = c.getresponse()
        return r.status, {k.lower(): v for k, v in r.getheaders()}, json.loads(r.read())
    finally:
        c.close()


def test_the_context_may_be_filled_to_its_last_token_and_not_beyond(stack):
    stack.kubectl("create", "-f", "-", input=json.dumps(infd("short", "spec.model.maxContextTokens", 64)))
    try:
        stack.kubectl("wait", "infd/short", "--for=condition=Ready", f"--timeout={patience(60):.0f}s", timeout=patience(60) + 10)
        eventually(lambda: "m-short" in stack.http("/v1/models"), message="the router lists the model")
        for n_prompt, n_max, status in ((60, 4, 200), (63, 1, 200), (1, 63, 200), (60, 5, 400), (64, 1, 400), (65, 0, 400), (1, 1 << 40, 400)):
            got, _, body = post(stack, {"model": "m-short", "prompt": [504] * n_prompt, "max_tokens": n_max})
            assert got == status, (n_prompt, n_max, body)
            if status == 400:
                assert body["error"]["type"] == "invalid_request_error" and body["error"]["message"]
    finally:
        stack.kubectl("delete", "infd", "short", f"--timeout={patience(60):.0f}s", timeout=patience(60) + 10)


@pytest.mark.parametrize("prompt", ["", [], [[]], ["", ""], [-1], [49152], [1 << 40], None, {}], ids=repr)
def test_an_empty_or_impossible_prompt_is_the_clients_error(stack, prompt):
    status, _, body = post(stack, {"prompt": prompt, "max_tokens": 2})
    assert status == 400 and body["error"]["param"] == "prompt" and body["error"]["message"]


def test_a_second_identical_prompt_moves_fewer_bytes_and_says_the_same(stack):
    ids = [(7 * i) % 4000 + 300 for i in range(200)]
    first, second = (post(stack, {"prompt": ids, "max_tokens": 8}) for _ in range(2))
    assert first[0] == second[0] == 200
    assert first[1]["x-baton-prefill"] != first[1]["x-baton-decode"]
    assert first[2]["choices"] == second[2]["choices"]
    assert int(second[1]["x-baton-kv-bytes"]) < int(first[1]["x-baton-kv-bytes"])
    assert second[2]["usage"]["prompt_tokens_details"]["cached_tokens"] == 192


def test_choices_with_logprobs_repeat_exactly_and_differ_among_themselves(stack):
    ask = {"prompt": "Once upon", "n": 4, "logprobs": 3, "max_tokens": 8, "seed": 5, "temperature": 1}
    a, b = post(stack, ask), post(stack, ask)
    assert a[0] == 200 and a[2]["choices"] == b[2]["choices"]
    assert len({c["text"] for c in a[2]["choices"]}) == 4
    assert all(len(c["logprobs"]["tokens"]) == 8 for c in a[2]["choices"])


def test_a_stop_string_ends_the_text_wherever_tokens_divide(stack):
    full = post(stack, {"prompt": "Once upon a time", "max_tokens": 20})[2]["choices"][0]["text"]
    for at in range(1, len(full) - 5, 9):
        stop = full[at:at + 5]
        c = post(stack, {"prompt": "Once upon a time", "max_tokens": 20, "stop": [stop]})[2]["choices"][0]
        assert (c["text"], c["finish_reason"]) == (full[:full.index(stop)], "stop"), stop


@pytest.mark.parametrize("prompt", ["😀😃😄😁😆 🎉🎊 😀😃😄", "日本語のテキスト、これは"])
def test_a_stream_never_splits_a_character(stack, prompt):
    c = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=patience(60))
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 24, "temperature": 0}
    c.request("POST", "/v1/completions", json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
    events = [json.loads(line[6:].decode()) for line in c.getresponse().read().split(b"\n") if line.startswith(b"data: {")]
    c.close()
    streamed = "".join(e["choices"][0]["text"] for e in events)
    assert streamed == post(stack, body)[2]["choices"][0]["text"]
    assert "\ufffd" not in streamed[:-1]


def test_two_hundred_streams_at_once_all_end_well(stack, want):
    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(lambda i: stack.ask(PROMPTS[i % 4], max_tokens=4, timeout=100), range(200)))
    assert [a.error for a in answers if a.error] == []
    assert all(a.text and want[a.prompt].startswith(a.text) for a in answers)
    eventually(lambda: stack.leaks() == [], seconds=30, message="no leaked block")


def test_clients_that_never_finish_a_request_keep_nobody_waiting(stack):
    slow = [socket.create_connection(("127.0.0.1", stack.port)) for _ in range(200)]
    try:
        for s in slow:
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Le")
        a = stack.ask(PROMPTS[0], max_tokens=4, timeout=20)
        assert a.error is None
    finally:
        for s in slow:
            s.close()


def test_strangers_get_nothing_from_a_worker(stack, want):
    for w in stack.workers():
        for path in ("generate", "cancel", "events"):
            for headers in ({}, {"Authorization": "Bearer " + "0" * 64}):
                c = http.client.HTTPConnection(w["ip"], 8000, timeout=patience(10))
                c.request("GET" if path == "events" else "POST", f"/v1/internal/{path}", b"x" * 100, headers)
                assert c.getresponse().status == 401
                c.close()
        for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100000, bytes(8)):
            with socket.create_connection((w["ip"], 8001), patience(10)) as s:
                with pytest.raises(ConnectionError):
                    s.sendall(noise)
                    if s.recv(100) == b"":
                        raise ConnectionError
    assert stack.ask(PROMPTS[1]).text == want[PROMPTS[1]]


# -- the cluster itself --

def baton(*args):
    return subprocess.run([BUILD / "bin/baton", *map(str, args)], capture_output=True, text=True, timeout=patience(120))


def test_a_second_up_finds_the_first_and_a_taken_port_is_named(stack):
    again = baton("up", "--detach", "--data", stack.data, "--port", stack.port)
    assert again.returncode == 0 and "already running" in again.stdout + again.stderr
    other = baton("up", "--detach", "--data", stack.dir / "other", "--port", stack.port)
    assert other.returncode == 1 and f"port {stack.port} of 127.0.0.1 is taken" in other.stdout + other.stderr
    assert baton("down", "--data", stack.dir / "other").returncode == 0


def test_a_namespace_goes_with_all_that_is_in_it(stack):
    stack.kubectl("create", "ns", "short")
    stack.kubectl("create", "-n", "short", "-f", "-", input=json.dumps(infd("brief")))
    stack.kubectl("wait", "-n", "short", "infd/brief", "--for=condition=Ready", f"--timeout={patience(60):.0f}s", timeout=patience(60) + 10)
    stack.kubectl("delete", "ns", "short", f"--timeout={patience(80):.0f}s", timeout=patience(80) + 10)
    eventually(lambda: len(stack.processes("baton-worker")) == 2, seconds=20, message="its worker is gone")


def test_a_deployment_deleted_under_load_leaves_nothing(stack, want):
    load = Load(stack, PROMPTS, want, clients=2)
    try:
        time.sleep(0.5)
        stack.kubectl("delete", "infd", "chat", f"--timeout={patience(80):.0f}s", timeout=patience(80) + 10)
        eventually(lambda: stack.workers() == [] and stack.processes("baton-worker") == [], seconds=90, message="no worker")
        eventually(lambda: "404" in (stack.ask(PROMPTS[0]).error or ""), message="the model is unknown")
    finally:
        load.stop()
    assert load.wrong() == []
    eventually(lambda: stack.get("wp")["items"] == [] and "chat-peer" not in str(stack.get("secrets")), message="pools and Secret are gone")
