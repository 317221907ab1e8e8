"""To zero and back on a whole local cluster: a model without load loses its workers, the first requests wait in the router while
they come back, and none is lost."""
import json
import sys
import threading

import pytest
from world import ROOT, wait

sys.path.insert(0, str(ROOT / "e2e"))
import stack as e2e  # noqa: E402


@pytest.fixture
def stack():
    s = e2e.Stack()
    yield s
    s.close()


def test_a_model_goes_to_zero_and_no_request_is_lost_on_the_way_back(stack):
    d = json.loads(stack.kubectl("create", "--dry-run=client", "-o", "json", "-f", str(ROOT / "manifests/samples/chat.yaml")))
    for role in ("prefill", "decode"):
        del d["spec"][role]["replicas"]
        d["spec"][role]["bounds"] = {"min": 0, "max": 1}
    d["spec"]["scaling"] = {"downWindow": "3s"}
    stack.kubectl("apply", "-f", "-", input=json.dumps(d))

    def numbers():
        return [w["spec"]["replicas"] for w in stack.get("wp")["items"]]
    wait(lambda: numbers() == [0, 0], 60, "both pools at zero")
    wait(lambda: "smollm2" in stack.http("/v1/models"), 60, "the router to list a model at zero")
    answers = []
    threads = [threading.Thread(target=lambda i=i: answers.append(stack.ask(f"Say {i}.", max_tokens=4, timeout=180)))
               for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(200)
    assert len(answers) == 8
    assert not [a.error for a in answers if a.error], [a.error for a in answers if a.error][:3]
    wait(lambda: numbers() == [0, 0] and not stack.workers(), 120, "both pools back at zero, their pods drained")
    late = stack.ask("Are you back?", max_tokens=4, timeout=180)
    assert not late.error, late.error
    reasons = [x["reason"] for w in stack.get("wp")["items"] for x in w["status"]["decisions"]]
    assert any("requests wait for a role at zero" in r for r in reasons)
