"""A launcher whose rank 0 may go on without a rank that dies: it is left alone when it says so, and the group ends whole when it does not."""
import json
import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from test_agent import api, gone, node, wait_for  # noqa: E402,F401

RANKS = [{"rank": r, "weights_bytes": 1 << 20, "layout": f"r{r}"} for r in range(3)]


def group(node, masked):  # noqa: F811
    w = node.pod("decode")
    plan = {"weights_bytes": 3 << 20, "kv_bytes": 1 << 20, "other_bytes": 1 << 20, "isa": "t", "layout": "r0", "ranks": RANKS}
    (w.dir / "plan.json").write_text(json.dumps(plan))
    say(w, masked)
    w.start(BATON_DP="3")
    w.wait_active("decode")
    return w


def say(w, masked):
    new = w.dir / "masked.new"
    new.write_text(json.dumps({"maskable": True, "masked": masked}))
    new.rename(w.dir / "masked")


def pids(w):
    return {e["rank"]: e["pid"] for e in w.told("start")}


def test_a_masked_rank_leaves_the_others_and_the_gate_alone(node):  # noqa: F811
    w = group(node, [])
    first = pids(w)
    say(w, [2])
    os.kill(first[2], signal.SIGKILL)
    wait_for(lambda: w.gate().get("message") == "the worker serves as decode with 2 of 3 ranks, masked: [2]")
    time.sleep(2.5)  # longer than an unmasked one is borne with
    assert w.gate()["status"] == "True" and all(gone(p) == (r == 2) for r, p in first.items()) and "last-crash" not in w.notes()
    os.kill(first[0], signal.SIGUSR1)  # as rank 0 ends when it is time to be whole again
    wait_for(lambda: w.notes().get("epoch") == "1")
    crash = json.loads(w.notes()["last-crash"])
    assert crash["signal"] == 9 and crash["message"].startswith("rank 2 of 3 was ended by signal 9")
    say(w, [])
    w.wait_active("decode")
    assert not set(first.values()) & set(pids(w).values())


def test_a_rank_that_is_not_masked_soon_ends_the_group(node):  # noqa: F811
    w = group(node, [])
    first = pids(w)
    os.kill(first[1], signal.SIGKILL)
    wait_for(lambda: all(gone(p) for p in first.values()), message="the group's end")
    wait_for(lambda: w.notes().get("epoch") == "1")
    assert json.loads(w.notes()["last-crash"])["message"].startswith("rank 1 of 3 was ended by signal 9")

