"""What the schema's rules refuse, on both API servers, each with a sentence that helps."""
import copy
import json

import pytest
from conftest import infd


def edited(path, value):
    d = copy.deepcopy(infd())
    at = d["spec"]
    *way, last = path.split(".")
    for key in way:
        at = at.setdefault(key, {})
    if value is None:
        del at[last]
    else:
        at[last] = value
    return d


CASES = [
    ("scaling.mode", "External", "must be absent"),
    ("unified", {"replicas": 1}, "either unified, or prefill and decode"),
    ("decode", None, "come together"),
    ("decode.bounds", {"min": 1, "max": 2}, "exactly one of replicas or bounds"),
    ("decode.replicas", None, "exactly one of replicas or bounds"),
    ("decode.replicas", -1, "greater than or equal to 0"),
    ("decode.replicas", 100000, "less than or equal to 1000"),
    ("decode.replicas", "two", "integer"),
    ("engine", {"template": {"spec": {}}}, "needs the role unified"),
    ("rollout", {"maxUnavailable": 0, "maxSurge": 0}, "can't both be 0"),
    ("rollout", {"drainTimeout": "soon"}, "drainTimeout"),
    ("scaling.mode", "Sometimes", "Unsupported value"),
    ("routing.disaggregation", "maybe", "Unsupported value"),
    ("kvCache.blockTokens", 33, "Unsupported value"),
    ("kvCache.size", "lots", "size"),
    ("model.source", "ftp://x/y", "source"),
    ("model.sha256", "abc", "sha256"),
    ("model.name", "", "name"),
    ("decode.parallelism", {"tensor": 0}, "greater than or equal to 1"),
    ("decode.resources", {"limits": {"cpu": "one"}}, "cpu"),
    ("kvCache.tiers", [{"name": "dram"}, {"name": "dram"}], "Duplicate"),
]


@pytest.mark.parametrize("path,value,message", CASES, ids=[f"{p}={v}"[:50] for p, v, _ in CASES])
def test_refused_with_a_reason(cluster, path, value, message):
    r = cluster.kubectl("create", "-f", "-", "--dry-run=server", input=json.dumps(edited(path, value)), check=False)
    assert r.returncode != 0, "it was accepted"
    assert message in r.stderr, r.stderr


def test_bounds_must_be_in_order(cluster):
    d = infd()
    d["spec"]["decode"] = {"bounds": {"min": 3, "max": 2}}
    r = cluster.kubectl("create", "-f", "-", "--dry-run=server", input=json.dumps(d), check=False)
    assert "bounds.min must not be above bounds.max" in r.stderr


def test_the_model_name_can_not_change_but_the_source_can(world):
    world.apply(infd())
    r = world.kubectl("patch", "infd", "chat", "--type=merge", "-p", '{"spec":{"model":{"name":"other"}}}', check=False)
    assert "can't be changed" in r.stderr
    world.patch("chat", {"spec": {"model": {"source": "file:///var/lib/baton/models/n.gguf"}}})


def test_defaults_are_filled_in(world):
    world.apply(infd())
    spec = world.get("infd", "chat")["spec"]
    assert spec["scaling"] == {"mode": "Baton", "downWindow": "120s", "capacity": "Known"}
    assert spec["routing"] == {"disaggregation": "auto", "policy": "cost"}
    assert spec["kvCache"] == {"blockTokens": 32, "dtype": "f16"}
    assert spec["rollout"] == {"maxUnavailable": 0, "maxSurge": 1, "drainTimeout": "300s", "paused": False}
    assert spec["decode"]["parallelism"] == {"tensor": 1, "pipeline": 1, "expert": 1, "data": 1, "pods": 1}


def test_short_names_and_categories_work(world):
    world.apply(infd())
    assert "chat" in world.kubectl("get", "infd").stdout
    assert "inferencedeployment" in world.kubectl("get", "baton").stdout
    assert "No resources" in world.kubectl("get", "wp").stderr
    assert "serving.baton.dev" in world.kubectl("explain", "infd.spec.prefill.bounds").stdout
