"""A pod of a group of several pods, seen from its node's agent: the barrier goes to the launcher, failures go to the pod."""
import json
import os
import socket
import sys

import pathlib

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from test_agent import P, Launcher, api, node, wait_for  # noqa: E402,F401


class Line:
    """What a launcher says and hears, line by line."""

    def __init__(self, node, w):
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.s.connect(str(node.dir / "agent.sock"))
        self.s.settimeout(0.2)
        self.heard, self.rest = [], b""
        self.say(type="hello", pod=w.name, namespace="default", uid=w.uid, pid=os.getpid())

    def say(self, **message):
        self.s.sendall(json.dumps(message).encode() + b"\n")

    def told(self, kind):
        try:
            while True:
                data = self.s.recv(65536)
                if not data:
                    break
                *lines, self.rest = (self.rest + data).split(b"\n")
                self.heard += [json.loads(x) for x in lines]
        except TimeoutError:
            pass
        return [m for m in self.heard if m["type"] == kind]


def grouped(node, index=1):
    w = node.pod("decode")
    node.api.kubectl("label", "pod", w.name, f"{P}group=g", f"{P}group-size=2", f"{P}index={index}", f"{P}rank={index * 2}",
                     "--overwrite")
    return w


def test_the_launcher_hears_of_the_group_when_all_have_an_address(node):  # noqa: F811
    w = grouped(node)
    line = Line(node, w)
    node.api.kubectl("annotate", "pod", w.name, f"{P}epoch=1")
    wait_for(lambda: line.told("role"))
    assert line.told("group") == []
    node.api.kubectl("annotate", "pod", w.name, f'{P}peers=["10.0.0.1","10.0.0.2"]')
    wait_for(lambda: line.told("group"))
    assert line.told("group") == [{"type": "group", "epoch": 1, "index": 1, "peers": ["10.0.0.1", "10.0.0.2"]}]
    node.api.kubectl("annotate", "pod", w.name, f"{P}epoch=2", "--overwrite")
    wait_for(lambda: len(line.told("group")) == 2)
    assert line.told("group")[1]["epoch"] == 2


def test_a_failed_epoch_is_on_the_pod_with_its_record_and_the_epoch_stays_the_controllers(node):  # noqa: F811
    w = grouped(node, 0)
    line = Line(node, w)
    node.api.kubectl("annotate", "pod", w.name, f"{P}epoch=3", f'{P}peers=["10.0.0.1","10.0.0.2"]',
                     f"{P}backoff-until=2026-01-01T00:00:00Z")
    wait_for(lambda: line.told("group"))
    crash = {"time": "2026-11-30T00:00:00Z", "reason": "Signal", "exitCode": 0, "signal": 9, "message": "rank 1 was killed",
             "epoch": 3, "incarnation": "00000000000000aa"}
    line.say(type="status", role="decode", incarnation="00000000000000aa", ready=False, draining=False, epoch=3, crash=crash,
             message="waits for the group")
    wait_for(lambda: w.notes().get("failed-epoch") == "3")
    notes = w.notes()
    assert json.loads(notes["last-crash"])["message"] == "rank 1 was killed"
    assert notes["epoch"] == "3" and notes["backoff-until"] == "2026-01-01T00:00:00Z"
    assert w.gate()["status"] == "False"
