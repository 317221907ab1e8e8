"""Connections that are open and say nothing: a proxy between the controller and the API server swallows what passes, its kernel goes on
acknowledging. New connections pass."""
import json
import selectors
import signal
import socket
import threading
import time

import pytest
from conftest import infd, wait
from patience import promised


class FreezingProxy:
    def __init__(self, port):
        self.to, self.pairs, self.frozen = port, {}, set()
        self.selector = selectors.DefaultSelector()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.ends = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def freeze(self):
        self.frozen |= set(self.pairs)
        return len(self.frozen) // 2

    def run(self):
        while not self.ends:
            for key, _ in self.selector.select(0.2):
                self.accept() if key.fileobj is self.listener else self.pump(key.fileobj)

    def accept(self):
        a, _ = self.listener.accept()
        b = socket.create_connection(("127.0.0.1", self.to))
        self.pairs[a], self.pairs[b] = b, a
        for s in (a, b):
            self.selector.register(s, selectors.EVENT_READ)

    def pump(self, s):
        if s not in self.pairs or s.fileno() < 0:
            return  # closed with its peer, within this turn
        try:
            data = s.recv(65536)
            if data and s not in self.frozen:
                self.pairs[s].sendall(data)
        except OSError:
            data = b""
        if not data:  # an end does not pass a frozen pair
            for x in {s} if s in self.frozen else {s, self.pairs[s]}:
                self.selector.unregister(x)
                x.close()

    def stop(self):
        self.ends = True
        self.thread.join()
        for s in [self.listener, *self.pairs]:
            s.close()


@pytest.fixture
def behind(world, tmp_path):
    """(proxy, kubeconfig that leads through it)"""
    config = json.loads(world.cluster.kubectl("config", "view", "--raw", "-o", "json").stdout)
    cluster = config["clusters"][0]["cluster"]
    head, port = cluster["server"].rsplit(":", 1)
    proxy = FreezingProxy(int(port))
    cluster["server"] = f"{head}:{proxy.port}"
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    yield proxy, path
    proxy.stop()


@pytest.mark.parametrize("cluster", ["real"], indirect=True)
def test_a_half_open_watch_is_found_within_45_seconds(world, behind):
    proxy, kubeconfig = behind
    c = world.controller("--retry-seconds", "2", kubeconfig=kubeconfig)
    world.apply(infd(prefill=1, decode=2))
    wait(lambda: len(world.pods()) == 3)
    world.make_ready()
    wait(lambda: world.condition("chat", "Ready").get("status") == "True")
    assert proxy.freeze() >= 8  # the watches, and what idles
    frozen = time.monotonic()
    world.kubectl("scale", "wp/chat-decode", "--replicas=3")
    world.kubectl("delete", "pod", world.pods("prefill")[0]["metadata"]["name"], "--grace-period=0", "--force")
    time.sleep(10)
    assert len(world.pods()) == 2, "it was told of nothing: the proxy is not silent"
    wait(lambda: len(world.pods("decode")) == 3 and len(world.pods("prefill")) == 1, seconds=36)
    print(f"found and made good after {time.monotonic() - frozen:.1f} s")
    assert time.monotonic() - frozen < promised(46)
    time.sleep(2)
    assert len(world.pods()) == 4
    assert c.proc.poll() is None and "leadership lost" not in c.log()


@pytest.mark.parametrize("cluster", ["local"], indirect=True)
def test_a_new_leader_whose_watches_are_silent_lists_before_it_acts(world, behind):
    proxy, kubeconfig = behind
    times = ("--lease-seconds", "6", "--renew-seconds", "4", "--retry-seconds", "1")
    first = world.controller(*times)
    world.apply(infd(prefill=1, decode=1))
    wait(lambda: len(world.pods()) == 2)
    second = world.controller(*times, kubeconfig=kubeconfig)
    wait(lambda: "groups of several pods are placed" in second.log())
    time.sleep(1)
    first.proc.send_signal(signal.SIGSTOP)  # what follows only the second hears
    world.kubectl("scale", "wp/chat-decode", "--replicas=3")
    time.sleep(1)
    assert proxy.freeze() >= 6
    world.kubectl("scale", "wp/chat-decode", "--replicas=1")
    first.kill()
    wait(lambda: "leadership acquired" in second.log(), seconds=30)
    end = time.monotonic() + 4
    while time.monotonic() < end:  # it last heard of three
        assert len(world.pods("decode")) == 1
        time.sleep(0.2)
    world.kubectl("scale", "wp/chat-decode", "--replicas=2")
    wait(lambda: len(world.pods("decode")) == 2)
