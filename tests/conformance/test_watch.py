"""Watches: versions, transitions, bookmarks, streaming lists, expiry. Source: Kubernetes API concepts, "Efficient detection of changes"."""
import threading
import time

from conftest import config_map, eventually
from patience import patience


def cms(ns, name=""):
    return f"/api/v1/namespaces/{ns}/configmaps" + (f"/{name}" if name else "")


def types(events):
    return [(e["type"], e["object"]["metadata"].get("name")) for e in events if e["type"] != "BOOKMARK"]


def test_a_watch_from_a_version_replays_what_followed(api, ns):
    v = api.do("GET", cms(ns))["metadata"]["resourceVersion"]
    o = api.do("POST", cms(ns), config_map("a", {"k": "1"}))
    api.do("PUT", cms(ns, "a"), {**o, "data": {"k": "2"}})
    api.do("DELETE", cms(ns, "a"))
    mine = lambda es: [t for t in types(es) if t[1] == "a"]
    events = api.watch(cms(ns) + f"?resourceVersion={v}", until=lambda es: len(mine(es)) == 3)
    assert mine(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    versions = [int(e["object"]["metadata"]["resourceVersion"]) for e in events]
    assert versions == sorted(versions)


def test_a_watch_sees_writes_as_they_happen(api, ns):
    v = api.do("GET", cms(ns))["metadata"]["resourceVersion"]
    seen = []
    t = threading.Thread(target=lambda: seen.extend(api.watch(cms(ns) + f"?resourceVersion={v}&fieldSelector=metadata.name%3Dlate", seconds=60, until=lambda es: len(es) == 1)))
    t.start()
    time.sleep(0.5)
    api.do("POST", cms(ns), config_map("late"))
    t.join(patience(30))
    assert types(seen) == [("ADDED", "late")]


def test_selectors_turn_changes_into_added_and_deleted(api, ns):
    v = api.do("GET", cms(ns))["metadata"]["resourceVersion"]
    o = api.do("POST", cms(ns), config_map("a", labels={"l": "no"}))
    o["metadata"]["labels"] = {"l": "yes"}
    o = api.do("PUT", cms(ns, "a"), o)
    o["data"] = {"x": "y"}
    o = api.do("PUT", cms(ns, "a"), o)
    o["metadata"]["labels"] = {"l": "no"}
    api.do("PUT", cms(ns, "a"), o)
    events = api.watch(cms(ns) + f"?resourceVersion={v}&labelSelector=l%3Dyes", until=lambda es: len(es) == 3)
    assert types(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_timeout_seconds_ends_a_watch(api, ns):
    t = time.monotonic()
    api.watch(cms(ns) + "?resourceVersion=" + api.do("GET", cms(ns))["metadata"]["resourceVersion"], seconds=2)
    assert 1 < time.monotonic() - t < patience(5)


def test_a_streaming_list_ends_with_its_bookmark(api, ns):
    for n in ("a", "b"):
        api.do("POST", cms(ns), config_map(n, labels={"s": "1"}))
    path = cms(ns) + "?labelSelector=s%3D1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    end = lambda es: es[-1]["type"] == "BOOKMARK"
    events = api.watch(path, until=end)
    assert sorted(types(events)) == [("ADDED", "a"), ("ADDED", "b")]
    mark = events[-1]["object"]["metadata"]
    assert mark["annotations"]["k8s.io/initial-events-end"] == "true" and mark["resourceVersion"]


def test_a_streaming_list_goes_on_as_a_watch(api, ns):
    path = cms(ns) + "?sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&fieldSelector=metadata.name%3Dnext"
    seen, listed = [], threading.Event()

    def added(events):
        listed.set()
        return events[-1]["type"] == "ADDED"
    t = threading.Thread(target=lambda: seen.extend(api.watch(path, seconds=60, until=added)))
    t.start()
    assert listed.wait(patience(30))
    api.do("POST", cms(ns), config_map("next"))
    t.join(patience(30))
    kinds = [e["type"] for e in seen]  # bookmarks may come at any time
    assert kinds[0] == "BOOKMARK" and set(kinds[1:-1]) <= {"BOOKMARK"} and kinds[-1] == "ADDED"


def test_send_initial_events_needs_its_version_match(api, ns):
    status, o, _ = api.call("GET", cms(ns) + "?watch=1&sendInitialEvents=true&timeoutSeconds=2")
    assert status == 422, o


def test_a_watch_without_version_begins_with_what_is_there(api, ns):
    api.do("POST", cms(ns), config_map("a", labels={"w": "1"}))
    events = api.watch(cms(ns) + "?labelSelector=w%3D1", until=lambda es: len(es) == 1)
    assert types(events) == [("ADDED", "a")]


def test_a_malformed_version_is_refused(api, ns):
    assert api.call("GET", cms(ns) + "?watch=1&resourceVersion=abc&timeoutSeconds=2")[0] >= 400


def test_a_version_from_the_future_is_refused(api, ns):
    status, o, _ = api.call("GET", cms(ns) + "?resourceVersion=99999999999&timeoutSeconds=2", timeout=60)
    assert status == 504 or "Too large resource version" in str(o), (status, o)


def test_kubectl_get_watch(api, ns):
    import subprocess
    from conftest import KUBECTL
    p = subprocess.Popen([KUBECTL, "--kubeconfig", api.cluster.kubeconfig, "-n", ns, "get", "cm", "-w", "-o", "name"], stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(1)
        api.do("POST", cms(ns), config_map("watched"))
        lines = []
        t = threading.Thread(target=lambda: lines.extend(iter(p.stdout.readline, "")), daemon=True)
        t.start()
        eventually(lambda: any("configmap/watched" in l for l in lines), seconds=10)
    finally:
        p.kill()
        p.wait()
