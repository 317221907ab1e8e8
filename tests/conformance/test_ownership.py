"""Owner references and garbage collection. Source: Kubernetes documentation, "Owners and Dependents", "Garbage Collection"."""
from conftest import config_map, eventually


def cms(ns, name=""):
    return f"/api/v1/namespaces/{ns}/configmaps" + (f"/{name}" if name else "")


def owned_by(o, **more):
    return [{"apiVersion": "v1", "kind": "ConfigMap", "name": o["metadata"]["name"], "uid": o["metadata"]["uid"], **more}]


def family(api, ns, **more):
    parent = api.do("POST", cms(ns), config_map("parent"))
    child = api.do("POST", cms(ns), config_map("child", ownerReferences=owned_by(parent, **more)))
    api.do("POST", cms(ns), config_map("grandchild", ownerReferences=owned_by(child)))


def gone(api, ns, name):
    return api.call("GET", cms(ns, name))[0] == 404


def delete(api, ns, name, policy):
    return api.do("DELETE", cms(ns, name), {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy})


def test_background_deletion_takes_dependents_along(api, ns):
    family(api, ns)
    delete(api, ns, "parent", "Background")
    eventually(lambda: gone(api, ns, "parent") and gone(api, ns, "child") and gone(api, ns, "grandchild"))


def test_orphans_stay_and_lose_their_owner(api, ns):
    family(api, ns)
    delete(api, ns, "parent", "Orphan")
    eventually(lambda: gone(api, ns, "parent"))
    child = eventually(lambda: (lambda o: o if not o["metadata"].get("ownerReferences") else None)(api.do("GET", cms(ns, "child"))))
    assert child["metadata"]["name"] == "child"


def test_foreground_deletion_waits_for_blocking_dependents(api, ns):
    parent = api.do("POST", cms(ns), config_map("parent"))
    api.do("POST", cms(ns), config_map("child", finalizers=["test.baton.dev/hold"], ownerReferences=owned_by(parent, blockOwnerDeletion=True)))
    delete(api, ns, "parent", "Foreground")
    child = eventually(lambda: (lambda o: o if o["metadata"].get("deletionTimestamp") else None)(api.do("GET", cms(ns, "child"))))
    held = api.do("GET", cms(ns, "parent"))["metadata"]
    assert held["deletionTimestamp"] and "foregroundDeletion" in held["finalizers"]
    child["metadata"]["finalizers"] = []
    api.do("PUT", cms(ns, "child"), child)
    eventually(lambda: gone(api, ns, "parent") and gone(api, ns, "child"))


def test_a_dependent_of_an_owner_that_never_was_is_collected(api, ns):
    ghost = {"metadata": {"name": "ghost", "uid": "11111111-2222-3333-4444-555555555555"}}
    api.do("POST", cms(ns), config_map("child", ownerReferences=owned_by(ghost)))
    eventually(lambda: gone(api, ns, "child"), seconds=40)


def test_one_living_owner_is_enough(api, ns):
    a, b = api.do("POST", cms(ns), config_map("a")), api.do("POST", cms(ns), config_map("b"))
    api.do("POST", cms(ns), config_map("child", ownerReferences=owned_by(a) + owned_by(b)))
    delete(api, ns, "a", "Background")
    eventually(lambda: gone(api, ns, "a"))
    import time
    time.sleep(2)
    assert not gone(api, ns, "child")
    delete(api, ns, "b", "Background")
    eventually(lambda: gone(api, ns, "child"))


def test_two_controllers_are_refused(api, ns):
    a, b = api.do("POST", cms(ns), config_map("a")), api.do("POST", cms(ns), config_map("b"))
    status, o, _ = api.call("POST", cms(ns), config_map("child", ownerReferences=owned_by(a, controller=True) + owned_by(b, controller=True)))
    assert (status, o["reason"]) == (422, "Invalid")


def test_an_owner_reference_needs_its_uid(api, ns):
    assert api.call("POST", cms(ns), config_map("child", ownerReferences=[{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": ""}]))[0] == 422
