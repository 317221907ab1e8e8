"""Models over several ranks, deployed through the custom resource: prefill and decode in different layouts, experts over ranks with
data-parallel attention, several pods, a rank that is killed. `make e2e-layouts` runs it (it takes some minutes)."""
import copy
import json
import os
import pathlib
import signal
import sys
import threading
import time

import pytest
import yaml

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests/worker"))
import families  # noqa: E402
from stack import ROOT, Stack, eventually  # noqa: E402

PROMPTS = ["What is the capital of France?", "Count from one to ten.", "Name three colours of the rainbow.", "Write a sentence about the sea."]
SAMPLE = yaml.safe_load((ROOT / "manifests/samples/chat.yaml").read_text())


@pytest.fixture(scope="module")
def stack():
    s = Stack()
    yield s
    s.close()


def deployment(prefill=None, decode=None):
    o = copy.deepcopy(SAMPLE)
    for role, parallelism in (("prefill", prefill), ("decode", decode)):
        if parallelism:
            o["spec"][role]["parallelism"] = parallelism
    return o


def deploy(stack, o):
    stack.kubectl("apply", "-f", "-", input=yaml.dump(o))
    stack.wait_ready(model=o["spec"]["model"]["name"])


def undeploy(stack):
    stack.kubectl("delete", "infd", "chat", "--wait=false")
    eventually(lambda: not stack.workers(), 60, message="no workers are left")


def answers(stack, **more):
    got = {}
    for p in PROMPTS:
        a = eventually(lambda: (lambda x: None if x.error else x)(stack.ask(p, **more)), 60, message=f"an answer to {p!r}")
        got[p] = (a.text, int(a.headers["x-baton-kv-bytes"]))
    return got


@pytest.fixture(scope="module")
def alone(stack):
    """What one process a role answers."""
    deploy(stack, deployment())
    got = answers(stack)
    undeploy(stack)
    return got


LAYOUTS = [
    ({"tensor": 2}, {"tensor": 2}),
    ({"tensor": 4}, None),
    (None, {"tensor": 4}),
    ({"pipeline": 2}, {"tensor": 2}),
    ({"tensor": 2, "pipeline": 2}, {"pipeline": 3}),
    ({"tensor": 8}, {"tensor": 2}),
    ({"tensor": 2, "pods": 2}, {"tensor": 2, "pipeline": 2, "pods": 2}),
]


@pytest.mark.parametrize("prefill,decode", LAYOUTS, ids=lambda p: "-".join(f"{k}{v}" for k, v in p.items()) if p else "one")
def test_every_pair_of_layouts_answers_as_one_process_does(stack, alone, prefill, decode):
    deploy(stack, deployment(prefill, decode))
    got = answers(stack)
    same = [p for p in PROMPTS if got[p][0] == alone[p][0]]
    assert all(bytes_ > 0 for _, bytes_ in got.values()), "no KV was handed over"
    # Greedy text may part at a near-tie of the whole model's best two tokens; most answers have none.
    assert len(same) >= len(PROMPTS) - 1, {p: (got[p][0], alone[p][0]) for p in PROMPTS if p not in same}
    undeploy(stack)


# ---- experts over ranks, data-parallel attention ----

EXPERTS = [
    (None, {"data": 4, "expert": 4}),
    ({"data": 4, "expert": 4}, {"tensor": 2, "data": 2, "expert": 4}),
    ({"tensor": 2, "data": 2, "expert": 4, "pods": 2}, {"data": 4, "expert": 4, "pods": 2}),
]


def write_tokenizer(folder, vocab):
    """A token for each byte, names for the rest: text is what the bytes are."""
    shown = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    letters, more = {}, 256
    for b in range(256):
        letters[b] = chr(b) if b in shown else chr(more)
        more += b not in shown
    tokens = {letters[b]: b for b in range(256)} | {f"word{i}": i for i in range(256, vocab)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": level,
                                                       "post_processor": None, "decoder": level,
                                                       "model": {"type": "BPE", "vocab": tokens, "merges": []}}))
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))


@pytest.fixture(scope="module", params=["deepseek-v3", "mixtral", "qwen3-moe"])
def moe(request, tmp_path_factory):
    """A cluster with one small model, its deployment, and what one process a role answers."""
    models = tmp_path_factory.mktemp("models")
    (models / request.param).mkdir()
    golden = families.write(request.param, str(models / request.param))
    write_tokenizer(models / request.param, golden["config"]["vocab_size"])
    s = Stack(models)
    o = deployment()
    o["spec"]["model"] = {"name": request.param, "source": f"file:///var/lib/baton/models/{request.param}"}
    o["spec"]["kvCache"] = {"size": "16Mi"}
    try:
        deploy(s, o)
        want = answers(s, model=request.param, ignore_eos=True)
        undeploy(s)
        yield s, o, want
    finally:
        s.close()


@pytest.mark.parametrize("prefill,decode", EXPERTS, ids=lambda p: "-".join(f"{k}{v}" for k, v in p.items()) if p else "one")
def test_experts_over_ranks_with_data_parallel_attention_answer_as_one_process_does(moe, prefill, decode):
    stack, plain, want = moe
    o = copy.deepcopy(plain)
    for role, parallelism in (("prefill", prefill), ("decode", decode)):
        if parallelism:
            o["spec"][role]["parallelism"] = parallelism
    deploy(stack, o)
    got = answers(stack, model=o["spec"]["model"]["name"], ignore_eos=True)
    assert all(got[p][1] > 0 for p in PROMPTS), "no KV was handed over"
    whole = not any((p or {}).get("tensor") for p in (prefill, decode))  # no sum in another order: the same bits
    same = [p for p in PROMPTS if got[p][0] == want[p][0]]
    assert len(same) >= len(PROMPTS) - (0 if whole else 1), {p: (got[p][0], want[p][0]) for p in PROMPTS if p not in same}
    undeploy(stack)


def ranks_of(stack, pods):
    """pids of the rank processes of these pods, in order of rank."""
    found = []
    for pod in pods:
        pids = stack.processes("baton-worker", f"BATON_POD_NAME={pod}\0")
        found += sorted(p for p in pids if b"BATON_LAUNCHER_FD" in pathlib.Path(f"/proc/{p}/environ").read_bytes())
    return found


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def kill_one(stack, o, n, which, **more):
    """Kills one of the n ranks of the decode group: the whole group ends and comes back, once."""
    deploy(stack, o)
    pods = o["spec"]["decode"]["parallelism"].get("pods", 1)
    names = sorted(w["name"] for w in stack.workers() if w["role"] == "decode")
    assert len(names) == pods

    def notes(name=names[0]):
        return stack.get("pod", name)["metadata"]["annotations"]

    ranks = eventually(lambda: (lambda r: r if len(r) == n else None)(ranks_of(stack, names)), message=f"{n} ranks")
    before, t = int(notes()["serving.baton.dev/epoch"]), time.monotonic()
    os.kill(ranks[which], signal.SIGKILL)
    eventually(lambda: not any(alive(p) for p in ranks), 2, every=0.02, message="the whole group ends")
    print(f"the group was gone {time.monotonic() - t:.2f} s after rank {which} of {pods} pods was killed")
    eventually(lambda: len(ranks_of(stack, names)) == n, 60, message=f"{n} ranks again")
    stack.wait_ready(model=o["spec"]["model"]["name"])
    a = eventually(lambda: (lambda x: None if x.error else x)(stack.ask(PROMPTS[0], **more)), 60, message="an answer")
    assert a.text
    time.sleep(2)
    assert int(notes()["serving.baton.dev/epoch"]) == before + 1, "it came back more than once"
    assert any("rank" in notes(name).get("serving.baton.dev/last-crash", "") for name in names)
    undeploy(stack)
    return a.text


@pytest.mark.parametrize("pods,which", [(1, 0), (1, 1), (1, 3), (2, 0), (2, 3)])
def test_a_killed_rank_takes_its_group_down_once_and_it_comes_back_once(stack, alone, pods, which):
    kill_one(stack, deployment(None, {"tensor": 2, "pipeline": 2, "pods": pods}), 4, which)


@pytest.mark.parametrize("pods,which", [(1, 2), (2, 3)])
def test_a_killed_data_rank_takes_its_group_down_once_and_it_comes_back_once(moe, pods, which):
    stack, plain, want = moe
    o = copy.deepcopy(plain)
    o["spec"]["decode"]["parallelism"] = {"data": 4, "expert": 4, "pods": pods}
    assert kill_one(stack, o, 4, which, model=o["spec"]["model"]["name"], ignore_eos=True) == want[PROMPTS[0]][0]


def test_a_killed_data_rank_is_masked_where_others_have_its_experts_and_the_group_comes_back_whole_when_idle(moe):
    stack, plain, want = moe
    o = copy.deepcopy(plain)
    name = o["spec"]["model"]["name"]
    o["spec"]["decode"]["parallelism"] = {"data": 4, "expert": 4}
    o["spec"]["engine"] = {"redundantExperts": 4}
    deploy(stack, o)
    pod = next(w["name"] for w in stack.workers() if w["role"] == "decode")

    def gate():
        return next(c for c in stack.get("pod", pod)["status"]["conditions"] if c["type"] == "serving.baton.dev/role")

    def notes():
        return stack.get("pod", pod)["metadata"]["annotations"]

    ranks = eventually(lambda: (lambda r: r if len(r) == 4 else None)(ranks_of(stack, [pod])), message="4 ranks")
    before, answers_, stop = int(notes()["serving.baton.dev/epoch"]), [], threading.Event()

    def ask_on(i):
        while not stop.is_set():
            p = PROMPTS[(i + len(answers_)) % len(PROMPTS)]
            answers_.append((p, stack.ask(p, model=name, ignore_eos=True)))
    askers = [threading.Thread(target=ask_on, args=(i,)) for i in range(8)]
    for a in askers:
        a.start()
    eventually(lambda: len(answers_) > 8, message="answers")
    os.kill(ranks[2], signal.SIGKILL)
    eventually(lambda: gate()["message"] == "the worker serves as decode with 3 of 4 ranks, masked: [2]", 30, message="the mask")
    known = len(answers_)
    eventually(lambda: len(answers_) > known + 16, message="answers without it")
    assert gate()["status"] == "True" and [alive(p) for p in ranks] == [True, True, False, True]
    stop.set()
    for a in askers:
        a.join()
    wrong = [(p, a.error or a.text) for p, a in answers_ if a.error or a.text != want[p][0]]
    assert not wrong, (len(answers_), wrong[:3])
    eventually(lambda: int(notes()["serving.baton.dev/epoch"]) == before + 1, 60, message="its restart")
    assert "rank 2 of 4 was ended by signal 9" in notes()["serving.baton.dev/last-crash"]
    eventually(lambda: len(ranks_of(stack, [pod])) == 4 and gate()["message"] == "the worker serves as decode", 60, message="4 ranks again")
    got = eventually(lambda: (lambda x: None if x.error else x)(stack.ask(PROMPTS[0], model=name, ignore_eos=True)), 60, message="an answer")
    assert got.text == want[PROMPTS[0]][0]
    undeploy(stack)
