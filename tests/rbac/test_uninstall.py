"""What helm uninstall runs (charts/baton/templates/uninstall.yaml), with the rights that its hook gives it."""
import json
import os
import re
import subprocess

from conftest import CACHE, ROOT, program, wait_for
from rig import account_config, cluster  # noqa: F401

HELM = os.environ.get("BATON_HELM", CACHE / "bin/helm")


def rendered():
    r = subprocess.run([HELM, "template", "baton", ROOT / "charts/baton", "-n", "leaving", "--show-only", "templates/uninstall.yaml",
                        "--set", "uninstall.deleteWorkloads=true"], capture_output=True, text=True, timeout=60)
    assert r.returncode == 0, r.stderr
    return r.stdout.split("\n---\n")


def run(cluster, command):
    config = account_config(cluster, "leaving", "baton-uninstall")
    return subprocess.run([program(command[0]), *command[1:], "--timeout", "150"], capture_output=True, text=True, timeout=200,
                          env={**os.environ, "BATON_KUBECONFIG": str(config), "BATON_NAMESPACE": "leaving"})


def test_deployments_go_first_then_what_programs_left(cluster):
    docs = rendered()
    jobs = {re.search(r"helm.sh/hook: (\S+)", d)[1]: json.loads(re.search(r"command: (\[.*\])", d)[1]) for d in docs if "\nkind: Job\n" in d}
    assert sorted(jobs) == ["post-delete", "pre-delete"]
    cluster.kubectl("create", "namespace", "leaving")
    cluster.kubectl("apply", "-f", "-", input="\n---\n".join(d for d in docs if "\nkind: Job\n" not in d))
    sample = (ROOT / "manifests/samples/chat.yaml").read_text()
    cluster.kubectl("-n", "leaving", "create", "-f", "-", input=sample)
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "baton-controller"}}
    inventory = {"apiVersion": "serving.baton.dev/v1alpha1", "kind": "NodeInventory", "metadata": {"name": "n9"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w", "labels": {"serving.baton.dev/infd": "chat"}, "ownerReferences": [
        {"apiVersion": "serving.baton.dev/v1alpha1", "kind": "InferenceDeployment", "name": "chat", "controller": True,
         "uid": cluster.get("-n", "leaving", "infd", "chat")["metadata"]["uid"]}]}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    for o in (lease, inventory, pod):
        cluster.kubectl("-n", "leaving", "create", "-f", "-", input=json.dumps(o))
    r = run(cluster, jobs["pre-delete"])
    assert r.returncode == 0, r.stderr
    assert cluster.get("-n", "leaving", "infd,pods")["items"] == []
    r = run(cluster, jobs["post-delete"])
    assert r.returncode == 0, r.stderr
    wait_for(lambda: cluster.kubectl("get", "ninv", "n9", check=False).returncode != 0, 10)
    assert cluster.kubectl("-n", "leaving", "get", "lease", "baton-controller", check=False).returncode != 0
    r = run(cluster, jobs["pre-delete"])
    assert r.returncode == 0, "a second time finds nothing to do: " + r.stderr


def test_it_says_what_keeps_it(cluster):
    """A pod that does not end is named by its number and label, and the code is not 0."""
    r = subprocess.run([program("baton-controller"), "uninstall", "--namespace", "nowhere", "--timeout", "1"], capture_output=True, text=True, timeout=30,
                       env={**os.environ, "BATON_KUBECONFIG": str(account_config(cluster, "baton", "baton-router"))})
    assert r.returncode == 1 and "forbidden" in r.stderr
