#!/usr/bin/env python3
"""What an agent at rest asks of a real API server, in requests a minute: its audit log is counted. Several programs are compared side by
side, each as a node of its own.

    bench/requests.py [--seconds 600] build/bin/baton-agent [another baton-agent...]
"""
import argparse
import collections
import datetime
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
POLICY = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}],
          "omitStages": ["ResponseStarted", "ResponseComplete", "Panic"]}


def kubernetes():
    spec = importlib.util.spec_from_file_location("kubernetes", ROOT / "tests/controller/kubernetes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def audited(folder):
    (folder / "policy.yaml").write_text(json.dumps(POLICY))
    return ["--audit-policy-file", str(folder / "policy.yaml"), "--audit-log-path", str(folder / "audit.log")]


class Agent:
    """One program as the node of its name, with a ServiceAccount by which its requests are known."""

    def __init__(self, cluster, name, program, port):
        self.name, self.dir = name, pathlib.Path(tempfile.mkdtemp(prefix="baton-requests-"))
        cluster.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}))
        cluster.kubectl("create", "serviceaccount", name)
        cluster.kubectl("create", "clusterrolebinding", name, "--clusterrole=cluster-admin", f"--serviceaccount=default:{name}")
        token = cluster.kubectl("create", "token", name, "--duration=6h").stdout.strip()
        config = json.loads(cluster.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        (self.dir / "kubeconfig").write_text(json.dumps(config))
        (self.dir / "models").mkdir()
        env = {**os.environ, "BATON_AGENT_DIR": str(self.dir), "BATON_MODELS_DIR": str(self.dir / "models"), "BATON_POD_IP": "127.0.0.1",
               "BATON_KUBECONFIG": str(self.dir / "kubeconfig"), "BATON_NODE_NAME": name, "BATON_AGENT_PORT": str(port)}
        with open(self.dir / "log", "wb") as log:
            self.p = subprocess.Popen([program, "--weights-budget", "64Mi"], env=env, stdout=log, stderr=log)

    def stop(self):
        alive = self.p.poll() is None
        self.p.kill()
        self.p.wait()
        warnings = [x for x in (self.dir / "log").read_text().splitlines() if '"level":"warn"' in x]
        shutil.rmtree(self.dir, ignore_errors=True)
        return alive, warnings


def count(log, name, begin, end):
    """Requests of this agent by verb and resource, received in the window."""
    found = collections.Counter()
    for line in open(log):
        x = json.loads(line)
        at = datetime.datetime.fromisoformat(x["requestReceivedTimestamp"].replace("Z", "+00:00")).timestamp()
        if x["user"]["username"] == f"system:serviceaccount:default:{name}" and begin <= at < end:
            ref = x.get("objectRef", {})
            found[x["verb"], ref.get("resource", x["requestURI"]) + ("/" + ref["subresource"] if "subresource" in ref else "")] += 1
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--seconds", type=int, default=600)
    p.add_argument("program", type=pathlib.Path, nargs="+")
    args = p.parse_args()
    k = kubernetes()
    c = k.Cluster(controllers=(), api_args=audited)
    agents = []
    try:
        c.kubectl("apply", "-f", str(ROOT / "manifests/crds"))
        c.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        for i, program in enumerate(args.program):
            agents.append(Agent(c, f"agent-{i}", program.resolve(), k.free_port()))
        time.sleep(60)  # first lists and inventories
        begin = time.time()
        time.sleep(args.seconds)
        end = time.time()
        print(f"{args.seconds} s at rest, after a minute of starting; requests a minute:\n")
        for a, program in zip(agents, args.program):
            found = count(c.dir / "audit.log", a.name, begin, end)
            alive, warnings = a.stop()
            print(f"{program}: {sum(found.values()) * 60 / args.seconds:.2f}{'' if alive else ' (it has ended)'}, {len(warnings)} warnings")
            for (verb, what), n in sorted(found.items(), key=lambda x: -x[1]):
                print(f"  {n * 60 / args.seconds:6.2f}  {verb} {what}")
    finally:
        for a in agents:
            if a.dir.exists():
                a.stop()
        c.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
