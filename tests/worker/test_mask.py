"""A rank of a group with data-parallel attention dies and the others go on without it, where every expert has a copy elsewhere: every answer
is that of one process, to the bit. Where something is lost with it, the whole group fails, as it always did.

`make mask` kills at many moments (BATON_MASK_SEEDS); a few are killed here."""
import http.client
import os
import random
import signal
import threading
import time

import pytest

import families
import wireclient as wc
from groupclient import Group
from wireclient import LOGPROBS, Worker, patience

DP4 = {"data": 4, "expert": 4}
COVERED = ("--redundant-experts", "4")  # 16 experts, 4 a rank
SEEDS = int(os.environ.get("BATON_MASK_SEEDS", "2"))
FIRST = int(os.environ.get("BATON_SEED", "0")) or random.SystemRandom().randrange(1 << 30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    f = str(tmp_path_factory.mktemp("deepseek-v3"))
    families.write("deepseek-v3", f)
    return f


def start(folder, *args, role="unified", **layout):
    args = ("--shm-dir", "/dev/shm", "--kv-dtype", "f32", *args)
    return Group(folder, role, *args, model=folder, **layout) if layout else Worker(folder, role, *args, model=folder)


@pytest.fixture
def fleet(folder):
    made = []

    def make(*a, **kw):
        made.append(start(folder, *a, **kw))
        return made[-1]
    yield make
    for w in made:
        w.stop()


@pytest.fixture(scope="module")
def alone(folder):
    w = start(folder)
    yield w
    w.stop()


def requests(n, seed, tokens=160):
    r = random.Random(seed)
    return [{"tokens": [r.randrange(320) for _ in range(r.randrange(3, 90))], "seed": i, "max_tokens": tokens, "flags": LOGPROBS | wc.IGNORE_EOS,
             "n_top": 2, "n": 2 if i % 5 == 4 else 1, "temperature": .8 if i % 4 == 3 else 0.0} for i in range(n)]


class Asked(threading.Thread):
    """One request; when each of its tokens came."""

    def __init__(self, worker, request):
        super().__init__(daemon=True)
        self.stream, self.times = wc.Stream(worker, wc.encode(**request)), []
        self.start()

    def run(self):
        try:
            while self.stream.more():
                self.times += [time.monotonic()] * (len(self.stream.records) - len(self.times))
        except (OSError, http.client.HTTPException):
            pass  # the group has failed

    def answer(self):
        return wc.Answer(self.stream.records)


def wait_for(what, seconds=30):
    end = time.monotonic() + patience(seconds)
    while not what():
        assert time.monotonic() < end
        time.sleep(0.002)


def ask_all(worker, wanted):
    return [Asked(worker, kw) for kw in wanted]


def check(asked, wanted):
    for i, (a, want) in enumerate(zip(asked, wanted)):
        a.join(patience(120))
        assert not a.is_alive(), i
        got = a.answer()
        assert got.error is None, (i, got.error)
        assert got.keys() == want.keys(), i


def kill(g, rank, sig=signal.SIGKILL):
    g.procs[rank].send_signal(sig)
    return time.monotonic()


def pauses(asked, at):
    """How long answers stood still after this moment, at most: of ranks that live, and of the dead one, which were computed anew."""
    longest = [0, 0]
    for x in asked:
        again = x.answer().usage["preemptions"] > 0
        longest[again] = max([longest[again]] + [b - max(a, at) for a, b in zip(x.times, x.times[1:]) if b > at])
    return "answers stood still for %.3f s, those of the dead rank for %.3f s" % tuple(longest)


def wait_end(g, seconds):
    end = time.monotonic() + patience(seconds)
    while any(p.poll() is None for p in g.procs):
        assert time.monotonic() < end, [p.poll() for p in g.procs]
        time.sleep(0.01)


def said(g):
    g.log.seek(0)
    return g.log.read()


def test_a_killed_rank_is_masked_and_every_answer_is_that_of_one_process(fleet, alone):
    wanted, more = requests(12, 7), requests(6, 8, 30)
    want, want_more = ([alone.generate(**kw) for kw in kws] for kws in (wanted, more))
    g = fleet(*COVERED, **DP4)
    asked = ask_all(g, wanted)
    wait_for(lambda: all(len(a.times) > 10 for a in asked))
    assert sum(a.is_alive() for a in asked) >= 8
    at = kill(g, 2)
    s = g.wait(lambda s: s["ranks"] == "3 of 4 ranks, masked: [2]", 20)
    assert s["ready"]
    assert g.get("/healthz") == (200, b"ok: 3 of 4 ranks, masked: [2]\n") == g.get("/readyz")
    assert g.metric('baton_worker_ranks{state="live"}') == 3 and g.metric('baton_worker_ranks{state="masked"}') == 1
    assert g.metric('baton_worker_rank_masked{rank="2"}') == 1
    assert g.metric("baton_worker_masked_replays_total") > 0
    asked_more = ask_all(g, more)
    check(asked, want)
    check(asked_more, want_more)
    print(pauses(asked, at))
    assert g.procs[2].wait() == -signal.SIGKILL and all(g.procs[r].poll() is None for r in (0, 1, 3))
    wait_end(g, 60)  # with nothing to do it ends, so that its launcher starts it whole
    assert "the group restarts with all" in said(g) and g.procs[0].returncode == 1


@pytest.mark.parametrize("rank,args", [(2, ()), (2, (*COVERED, "--mask-ranks", "off")), (0, COVERED)], ids=["no-copies", "off", "rank-0"])
def test_a_group_that_loses_something_with_a_rank_fails_whole(fleet, rank, args):
    g = fleet(*args, **DP4)
    asked = ask_all(g, requests(8, 9, 2000))
    wait_for(lambda: all(len(a.times) > 3 for a in asked))
    at = kill(g, rank)
    wait_end(g, 20)
    took = time.monotonic() - at
    print("the group was gone after %.3f s" % took)
    assert "rank %d (127.0.0.1) died" % rank in said(g)


def test_a_second_death_that_leaves_an_expert_without_a_rank_ends_the_group_and_names_it(fleet):
    g = fleet(*COVERED, **DP4)
    asked = ask_all(g, requests(8, 10, 2000))
    wait_for(lambda: all(len(a.times) > 3 for a in asked))
    kill(g, 2)
    g.wait(lambda s: s["ranks"] == "3 of 4 ranks, masked: [2]", 20)
    kill(g, 3)
    wait_end(g, 20)
    assert "rank 3 (127.0.0.1) died: its connection ended; not masked: no rank is left that has expert 8, 11, 14" in said(g)


def test_a_group_with_a_masked_rank_that_is_never_idle_drains_in_time_and_restarts(fleet, alone):
    g = fleet(*COVERED, "--masked-seconds", "1", **DP4)
    wanted = requests(3, 12, 40)
    want = [alone.generate(**kw).keys() for kw in wanted]
    got, refused = [], []

    def ask_on(i):
        while not refused:
            s = wc.Stream(g, wc.encode(**wanted[i]))
            if s.status == 503:
                refused.append(s.response.read())
                return
            a = s.finish()
            (refused if a.error else got).append(str(a.error).encode() if a.error else a.keys() == want[i])
    threads = [threading.Thread(target=ask_on, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    wait_for(lambda: len(got) > 3)
    kill(g, 3)
    for t in threads:
        t.join()
    wait_end(g, 20)
    assert all(got) and all(b"draining" in x for x in refused), refused
    assert "the group restarts with all" in said(g) and g.procs[0].returncode == 1


def test_data_ranks_that_have_the_whole_model_are_masked_without_copies(tmp_path):
    families.write("llama3", str(tmp_path))
    one, g = start(str(tmp_path)), start(str(tmp_path), data=3)
    try:
        wanted = requests(9, 11, 120)
        asked = ask_all(g, wanted)
        wait_for(lambda: all(len(a.times) > 3 for a in asked))
        kill(g, 1)
        check(asked, [one.generate(**kw) for kw in wanted])
    finally:
        one.stop()
        g.stop()


@pytest.mark.parametrize("seed", [FIRST + i for i in range(SEEDS)])
def test_a_rank_dies_at_any_moment(fleet, alone, seed):
    """Alone, as a prefill worker whose decode worker then computes, or as a decode worker with prompts from elsewhere."""
    r = random.Random(seed)
    print("BATON_SEED=%d" % seed)
    kind, rank, wanted = r.randrange(3), r.randrange(1, 4), requests(14, seed, r.randrange(20, 120))
    layout, copies = r.choice([(DP4, 4), (DP4, 6), ({"data": 4, "expert": 2}, 8)])
    args = ("--redundant-experts", copies, "--balance-steps", 16, "--two-batch", r.choice(["off", "on", "auto"]),
            "--dispatch", r.choice(["auto", "throughput"]))
    want = [alone.generate(**kw) for kw in wanted]
    g = fleet(*args, role=["unified", "prefill", "decode"][kind], **layout)
    other = fleet(role="decode" if kind == 1 else "prefill") if kind else None
    front, prefill = (other, g) if kind == 1 else (g, other)
    begun = time.monotonic()
    asked = [Asked(front, {**kw, "prefill": prefill.peer} if prefill else kw) for kw in wanted]
    time.sleep(r.random() * r.choice([.02, .2, 1]))
    at = kill(g, rank)
    check(asked, want)
    print(layout, copies, "copies, kind", kind, "rank", rank, "killed %.3f s after the first of %d" % (at - begun, len(asked)), pauses(asked, at))
    wait_for(lambda: "a rank is masked" in said(g))
    try:
        front.wait_idle(20)  # blocks are accounted for
    except OSError:
        assert front is g and "the group restarts with all" in said(g)
