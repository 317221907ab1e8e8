"""The chart's rules are what the programs need: each runs with exactly them, and says at start what is missing when one is gone."""
import concurrent.futures
import json
import re
import socket
import subprocess

import pytest

from conftest import ROOT, wait_for
from rig import (PROGRAMS, account_config, agent_config, apply, cluster, grant, needs, pod_on, rights, rules_of, running)  # noqa: F401


def asked(name):
    """What the program's table of rights says."""
    text = (ROOT / name / "rights.c").read_text().split("/* Only where")[0]
    text = re.sub(r"#define (\w+) +(\"[^\"]*\")", "", text).replace("CRD_GROUP", '"serving.baton.dev"')
    found = set()
    for group, resource, verbs, thing, where in re.findall(
            r'\{"([^"]*)", "([^"]+)",\s*"([^"]+)", (NULL|"[^"]+"), (NULL|"[^"]+")\}', text):
        for v in verbs.split(","):
            found.add((where == '"*"', group, resource, v, None if thing == "NULL" else thing.strip('"')))
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_chart_grants_exactly_what_the_program_asks_for(name):
    assert len(asked(name)) > 5
    assert asked(name) == rights(name)


def words(right):
    _, group, resource, verb, thing = right
    return f"{verb} {resource}" + (f" of {group}" if group else "") + (f" named {thing}" if thing else "")


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_right_that_is_taken_away_is_named_at_start(cluster, name):
    everything = sorted(rights(name), key=str)
    spaces = {f"{name}-{i}": r for i, r in enumerate(everything)}
    items = grant(f"{name}-all", name, everything)
    for ns, gone in spaces.items():
        items += grant(ns, name, [r for r in everything if r != gone])
    apply(cluster, items)

    def start(ns):
        with running(name, account_config(cluster, ns, f"baton-{name}"), ns, "n1") as p:
            if ns.endswith("-all"):
                return wait_for(lambda: p.ready()[0] == 200, 60, message=f"{name} with every right: {p.ready()} {p.log()[-2000:]}")
            text = wait_for(lambda: (lambda s, t: t if s == 503 and "may not" in t else None)(*p.ready()), 60,
                            message=f"{name} without {words(spaces[ns])}: {p.ready()}")
            number = float(re.search(r"^baton_kube_rights_missing (\S+)$", p.metrics(), re.M)[1])
            assert number == 1 and "rights are missing" in p.log()
            return text
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        told = dict(zip([f"{name}-all", *spaces], pool.map(start, [f"{name}-all", *spaces])))
    for ns, gone in spaces.items():
        assert re.search(rf"^baton-{name} may not {re.escape(words(gone))}( in {ns})?: .*helm upgrade", told[ns]), (gone, told[ns])


def test_a_missing_right_becomes_a_condition_and_goes_again(cluster):
    everything = rights("controller")
    gone = next(r for r in everything if r[2] == "pods" and r[3] == "create")
    apply(cluster, grant("told", "controller", everything - {gone}))
    infd = {"apiVersion": "serving.baton.dev/v1alpha1", "kind": "InferenceDeployment", "metadata": {"name": "chat"},
            "spec": {"model": {"name": "chat", "source": "file:///var/lib/baton/models/m.gguf"}, "unified": {"replicas": 1}}}
    cluster.kubectl("-n", "told", "create", "-f", "-", input=json.dumps(infd))
    config = account_config(cluster, "told", "baton-controller")

    def condition():
        found = cluster.get("-n", "told", "infd", "chat").get("status", {}).get("conditions", [])
        return next((c for c in found if c["type"] == "Permitted"), None)
    fast = ("--lease-seconds", "3", "--renew-seconds", "2", "--retry-seconds", "1")
    with running("controller", config, "told", "n1", *fast) as p:
        c = wait_for(condition, 30, message=p.log())
        assert c["status"] == "False" and c["reason"] == "RightsMissing" and "may not create pods in told" in c["message"]
    apply(cluster, grant("told", "controller", everything))
    with running("controller", config, "told", "n1", *fast) as p:
        wait_for(lambda: condition() is None, 30, message="the condition to go")
        wait_for(lambda: cluster.get("-n", "told", "pods")["items"], 30)
        assert "orbidden" not in p.log()


class Launcher:
    """What a worker pod's launcher says on the agent's socket."""

    def __init__(self, path, pod):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(path))
        m = pod["metadata"]
        self.say(type="hello", pod=m["name"], namespace=m["namespace"], uid=m["uid"], pid=1)

    def say(self, **message):
        self.sock.sendall(json.dumps(message).encode() + b"\n")


def test_the_agent_runs_with_its_rules_under_the_policies(cluster, agent_config):
    worker = pod_on(cluster, "baton", "chat-aaaaa", "n1", {"serving.baton.dev/infd": "chat", "serving.baton.dev/role": "decode",
                                                           "serving.baton.dev/rank": "0"})

    def now():
        return cluster.get("-n", "baton", "pod", "chat-aaaaa")
    with running("agent", agent_config, "baton", "n1") as p:
        wait_for(lambda: p.ready()[0] == 200, 30, message=f"{p.ready()} {p.log()[-2000:]}")
        wait_for(lambda: cluster.kubectl("get", "ninv", "n1", "-o", "jsonpath={.status.devices}", check=False).stdout, 30, message="inventory")
        launcher = Launcher(p.path / "agent.sock", worker)
        launcher.say(type="status", role="decode", incarnation="00112233445566ff", ready=True, draining=False, epoch=2, message="",
                     crash={"time": "2026-01-01T00:00:00Z", "reason": "Error", "exitCode": 1, "signal": 0, "message": "x", "epoch": 1})
        wait_for(lambda: any(c["type"] == "serving.baton.dev/role" and c["status"] == "True"
                             for c in now().get("status", {}).get("conditions", [])), 30, message=p.log()[-3000:])
        notes = now()["metadata"]["annotations"]
        assert notes["serving.baton.dev/actual-role"] == "decode" and "Error" in notes["serving.baton.dev/last-crash"]
        assert "orbidden" not in p.log(), p.log()[-3000:]
    cluster.kubectl("-n", "baton", "delete", "pod", "chat-aaaaa", "--force", "--grace-period=0")


def test_router_and_controller_run_with_their_rules_under_the_policies(cluster):
    sample = (ROOT / "manifests/samples/chat.yaml").read_text()
    cluster.kubectl("-n", "baton", "apply", "-f", "-", input=sample)
    fast = ("--lease-seconds", "3", "--renew-seconds", "2", "--retry-seconds", "1")
    with running("controller", account_config(cluster, "baton", "baton-controller"), "baton", "n1", *fast) as c, \
            running("router", account_config(cluster, "baton", "baton-router"), "baton", "n1") as r:
        wait_for(lambda: len([x for x in cluster.get("-n", "baton", "pods")["items"] if x["metadata"]["name"].startswith("chat-")]) == 2,
                 30, message=c.log()[-3000:])
        wait_for(lambda: r.ready()[0] == 200 and c.ready()[0] == 200, 30, message=f"{r.ready()} {c.ready()}")
        cluster.kubectl("-n", "baton", "scale", "wp/chat-decode", "--replicas=2")
        wait_for(lambda: cluster.get("-n", "baton", "infd", "chat").get("status", {}).get("decode", {}).get("desired") == 2, 30)
        cluster.kubectl("-n", "baton", "patch", "infd", "chat", "--type=merge", "-p", '{"spec":{"prefill":{"replicas":0}}}')
        wait_for(lambda: cluster.get("-n", "baton", "wp", "chat-prefill")["spec"]["replicas"] == 0, 30, message=c.log()[-3000:])
        wait_for(lambda: len(cluster.get("-n", "baton", "events")["items"]) > 3, 30)
        for p in (c, r):
            assert "orbidden" not in p.log(), [x for x in p.log().splitlines() if "orbidden" in x][:3]
    cluster.kubectl("-n", "baton", "delete", "infd", "chat")


@pytest.mark.parametrize("account,verb,what", [
    ("controller", "delete", "secrets"), ("controller", "patch", "nodes"), ("controller", "update", "workerpools.serving.baton.dev"),
    ("router", "patch", "pods"), ("router", "create", "events"), ("router", "get", "configmaps"),
    ("agent", "list", "secrets"), ("agent", "create", "pods"), ("agent", "delete", "pods"), ("agent", "patch", "nodes")])
def test_no_account_has_more_than_it_needs(cluster, account, verb, what):
    r = cluster.kubectl("auth", "can-i", verb, what, "-n", "baton", f"--as=system:serviceaccount:baton:baton-{account}", check=False)
    assert r.stdout.strip() == "no"
