"""A worker of several rank processes for tests: starts them as the launcher does (docs/contracts.md, "Launcher messages")."""
import array
import json
import os
import socket
import subprocess
import time

from wireclient import SECRET, WORKER, Worker, patience


class Group(Worker):
    """Rank 0's API is the worker's; options are baton-worker's. One host."""

    def __init__(self, folder, role="unified", *args, model, tensor=1, pipeline=1, expert=1, data=1):
        self.host, self.http_port, self.incarnation = "127.0.0.1", 0, 0
        self.log = open(os.path.join(folder, "group-%s.log" % os.urandom(4).hex()), "w+")
        with open(os.path.join(folder, "secret"), "w") as f:
            f.write(SECRET + "\n")
        ranks = tensor * pipeline * data
        port = 20000 + int.from_bytes(os.urandom(2), "little") % 12000  # below the ports that are given to others
        self.flags = ["--model", model, "--role", role, "--tp", tensor, "--pp", pipeline, "--ep", expert, "--dp", data, "--http-port", 0,
                      "--xfer-port", 0, "--comm-port", port, "--secret-file", os.path.join(folder, "secret"), "--threads", 1, *args]
        self.flags = [str(x) for x in self.flags]
        plan = json.loads(self.helper("--plan", "--rank", "0"))
        comm = os.memfd_create("comm") if ranks > 1 else None
        incarnation = os.urandom(8).hex()
        sizes = [r["weights_bytes"] for r in plan["ranks"]]
        images = [self.fill(r, size) for r, size in enumerate(sizes)]  # ranks start together, when all have theirs
        self.procs, self.socks = [], []
        for r in range(ranks):
            ours, theirs = socket.socketpair()
            flags = self.flags + ["--launcher-fd", str(theirs.fileno())]
            fds = [theirs.fileno()]
            if comm is not None:
                flags += ["--comm-fd", str(comm)]
                fds.append(comm)
            self.procs.append(subprocess.Popen([WORKER, *flags], stderr=self.log, pass_fds=fds))
            theirs.close()
            self.socks.append(ours)
            start = {"type": "start", "rank": r, "ranks": ranks, "ranks_per_pod": ranks, "tensor": tensor, "pipeline": pipeline,
                     "expert": expert, "data": data, "role": role, "incarnation": incarnation, "weights_bytes": sizes[r], "epoch": 0,
                     "peers": ["127.0.0.1"]}
            ours.sendmsg([(json.dumps(start) + "\n").encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [images[r]]))])
            os.close(images[r])
        if comm is not None:
            os.close(comm)
        self.proc = self.procs[0]
        self._wait_serving()

    def helper(self, *flags, fds=()):
        r = subprocess.run([WORKER, *self.flags, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pass_fds=fds)
        if r.returncode:
            raise RuntimeError(r.stderr)
        return r.stdout

    def fill(self, rank, size):
        fd = os.memfd_create("weights")
        os.ftruncate(fd, size)
        self.helper("--fill", "--rank", str(rank), "--weights-fd", str(fd), fds=[fd])
        return fd

    def metric(self, name):
        """Of one series, labels as they are printed."""
        for line in self.get("/metrics")[1].decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        raise KeyError(name)

    def stop(self):
        for p in self.procs:
            p.terminate()
        end = time.monotonic() + patience(10)
        while any(p.poll() is None for p in self.procs) and time.monotonic() < end:
            time.sleep(0.01)
        for p in self.procs:
            if p.poll() is None:
                p.kill()
            p.wait()
        for s in self.socks:
            s.close()
        self.log.close()
