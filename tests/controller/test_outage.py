"""The API server dies and comes back: nothing is lost, nothing is made twice."""
import time

import pytest
from conftest import QUICK, ROOT, LocalCluster, World, infd, wait
from patience import patience


@pytest.fixture
def mortal():
    c = LocalCluster()
    c.side = "local"
    c.kubectl("apply", "-f", ROOT / "manifests/crds")
    c.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    w = World(c, "outage")
    yield w
    for x in w.controllers:
        x.stop()
    c.stop()


def restart(w, down_seconds):
    w.cluster.proc.kill()
    w.cluster.proc.wait()
    time.sleep(down_seconds)
    w.cluster.start()


def test_the_leader_survives_a_short_outage_and_makes_no_pod_twice(mortal):
    w = mortal
    c = w.controller()
    w.apply(infd(prefill=2, decode=3))
    wait(lambda: len(w.pods()) == 5)
    before = {p["metadata"]["uid"] for p in w.pods()}
    restart(w, 2)
    w.kubectl("scale", "wp/chat-decode", "--replicas=4")
    wait(lambda: len(w.pods("decode")) == 4, seconds=40)
    assert before < {p["metadata"]["uid"] for p in w.pods()}
    assert c.proc.poll() is None


def test_a_leader_that_can_not_renew_ends_itself(mortal):
    w = mortal
    c = w.controller(*QUICK)
    w.apply(infd())
    wait(lambda: len(w.pods()) == 2)
    w.cluster.proc.kill()
    w.cluster.proc.wait()
    assert c.proc.wait(timeout=patience(10)) == 1
    assert "leadership lost" in c.log()
    w.cluster.start()
    c.start()
    w.kubectl("scale", "wp/chat-decode", "--replicas=2")
    wait(lambda: len(w.pods("decode")) == 2)
    assert len(w.pods()) == 3


def test_a_controller_started_before_the_api_waits_for_it(mortal):
    w = mortal
    w.apply(infd())
    w.cluster.proc.kill()
    w.cluster.proc.wait()
    w.controller()
    time.sleep(2)
    w.cluster.start()
    wait(lambda: len(w.pods()) == 2, seconds=40)
