#!/usr/bin/env python3
"""CPU of the router in microseconds a request, beside haproxy and vllm-router, at 64-, 1k- and 8k-token prompts.

  bench/router.py [--seconds 2] [--rounds 3] [--connections 64] [--json FILE] [--only baton,haproxy,vllm-router] [--sizes 64,1k,8k]

Every router has the same backend (bench/router.c, `sink`), which answers at once with 16 tokens, whole or one by one. CPU is what the
kernel counts for the router's process (/proc/PID/task/*/schedstat) during a load of N connections, divided by the requests answered;
rounds of all routers alternate, the median is printed. Baton tokenises and names KV blocks; the others forward bytes: its tokenising is
measured apart (`tokenise`) and taken off in the column `without`. No two prompts are the same (`whole`, `stream`: the answer), so only
words are known from before; `again` is the same prompt each time, answered whole. vllm-router is installed into a folder of the cache when pip can."""
import argparse
import glob
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("BATON_BUILD", ROOT / "build"))
CACHE = pathlib.Path(os.environ.get("BATON_CACHE", pathlib.Path.home() / ".cache/baton"))
MODEL = CACHE / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
TOOL = BUILD / "bench/router"
SIZES = {"64": 64, "1k": 1024, "8k": 7900}
KINDS = ("whole", "stream", "again")
VLLM_ROUTER = "vllm-router==0.1.17"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_port(port, path, seconds=30):
    import http.client
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            c.request("GET", path)
            if c.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"nothing answers on port {port}{path}")


def text_of(tokens):
    """English of about so many tokens."""
    words = "the river runs past old stone houses and a small mill where people once ground corn for bread".split()
    return " ".join(words[i * 7 % len(words)] for i in range(int(tokens * 0.97)))


def cpu_ns(pid):
    total = 0
    for p in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        try:
            total += int(open(p).read().split()[0])
        except OSError:
            pass
    return total


def rss_kb(pid):
    return next(int(line.split()[1]) for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS"))


def pip_program():
    """Path of the vllm-router program in a folder of its own, or None."""
    folder = CACHE / "bench/vllm-router"
    program = folder / "bin/vllm-router"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True)
        r = subprocess.run([folder / "bin/pip", "install", "--quiet", VLLM_ROUTER], capture_output=True, text=True)
        if r.returncode:
            print("vllm-router: can't be installed:", r.stderr.strip().splitlines()[-1:], file=sys.stderr)
            return None
    return program if program.exists() else None


class Bench:
    def __init__(self, args):
        self.args, self.dir, self.procs, self.routers = args, pathlib.Path(tempfile.mkdtemp(prefix="baton-bench-")), [], {}
        self.sinks = [free_port() for _ in range(2)]

    def spawn(self, name, *cmd):
        log = open(self.dir / f"{name}.log", "wb")
        p = subprocess.Popen([str(c) for c in cmd], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        self.procs.append(p)
        return p

    def start(self):
        for i, port in enumerate(self.sinks):
            self.spawn(f"sink{i}", TOOL, "sink", port)
            wait_port(port, "/health")
        for name in self.args.only.split(","):
            getattr(self, "start_" + name.replace("-", "_"))()

    def start_baton(self):
        port, cfg = free_port(), self.dir / "static.json"
        cfg.write_text(json.dumps({"models": [{
            "name": "m", "source": f"file://{MODEL}", "disaggregation": "never",
            "workers": [{"name": f"w{i}", "host": "127.0.0.1", "port": p} for i, p in enumerate(self.sinks)]}]}))
        p = self.spawn("baton", BUILD / "bin/baton-router", "--static", cfg, "--port", port, "--log-level", "warn")
        wait_port(port, "/v1/models/m")
        self.routers["baton"] = (port, p)

    def start_haproxy(self):
        if not shutil.which("haproxy"):
            print("haproxy is not installed", file=sys.stderr)
            return
        port, cfg = free_port(), self.dir / "haproxy.cfg"
        servers = "".join(f"  server s{i} 127.0.0.1:{p}\n" for i, p in enumerate(self.sinks))
        cfg.write_text(f"global\n  nbthread 1\n  maxconn 4096\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n"
                       f"  timeout server 60s\n  http-reuse always\n  option http-no-delay\nfrontend f\n  bind 127.0.0.1:{port}\n"
                       f"  default_backend b\nbackend b\n  balance roundrobin\n{servers}")
        p = self.spawn("haproxy", "haproxy", "-db", "-f", cfg)
        wait_port(port, "/health")
        self.routers["haproxy"] = (port, p)

    def start_vllm_router(self):
        program = pip_program()
        if not program:
            return
        port = free_port()
        p = self.spawn("vllm-router", program, "--host", "127.0.0.1", "--port", port, "--policy", "round_robin", "--log-level", "error",
                       "--prometheus-port", free_port(), "--worker-urls", *[f"http://127.0.0.1:{p}" for p in self.sinks])
        wait_port(port, "/health", 60)
        self.routers["vllm-router"] = (port, p)

    def load(self, port, body, connections, seconds):
        out = subprocess.run([TOOL, "load", str(port), body, str(connections), str(seconds)], capture_output=True, text=True, check=True)
        return json.loads(out.stdout)

    def measure(self, name, size, kind):
        port, p = self.routers[name]
        stream = kind == "stream"
        body = self.dir / f"body-{size}-{kind}.json"
        mark = "" if kind == "again" else "@@@@@@@@ "  # the load tool's: a number that no other request has
        # `"stream": true` is the sink's mark; a worker learns it by the seed, for the wire has no such word
        o = {"model": "m", "messages": [{"role": "user", "content": mark + text_of(SIZES[size])}], "max_tokens": 16}
        o.update({"stream": True, "seed": 1} if stream else {"seed": 2})
        body.write_text(json.dumps(o))
        self.load(port, body, self.args.connections, 0.2)
        before = cpu_ns(p.pid)
        r = self.load(port, body, self.args.connections, self.args.seconds)
        r["cpu_us"] = (cpu_ns(p.pid) - before) / 1e3 / max(1, r["requests"])
        r["rss_kb"] = rss_kb(p.pid)
        return r

    def tokenise(self, size):
        path = self.dir / f"text-{size}"
        path.write_text(text_of(SIZES[size]))
        return json.loads(subprocess.run([TOOL, "tokenize", MODEL, path], capture_output=True, text=True, check=True).stdout)

    def run(self):
        results = {}
        for _ in range(self.args.rounds):
            for size in self.args.sizes.split(","):
                for kind in KINDS:
                    for name in self.routers:
                        results.setdefault((size, kind, name), []).append(self.measure(name, size, kind))
        return results

    def close(self):
        for p in self.procs:
            try:
                os.killpg(p.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            p.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--seconds", type=float, default=2)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--connections", type=int, default=64)
    a.add_argument("--only", default="baton,haproxy,vllm-router")
    a.add_argument("--sizes", default=",".join(SIZES))
    a.add_argument("--json")
    args = a.parse_args()
    b = Bench(args)
    try:
        b.start()
        tokens = {s: b.tokenise(s) for s in b.args.sizes.split(",")}
        results = b.run()
    finally:
        b.close()
    print(f"router CPU, microseconds a request; {args.connections} connections, 16 tokens an answer, median of {args.rounds} rounds")
    print(f"{'prompt':>6} {'answer':>7} {'router':>12} {'CPU':>8} {'without':>8} {'P50 us':>8} {'req/s':>8} {'errors':>6} {'RSS MB':>7}")
    rows = []
    for (size, kind, name), list_ in results.items():
        med = {k: statistics.median(r[k] for r in list_) for k in list_[0]}
        t = tokens[size]
        without = med["cpu_us"] - (t["tokenize_us"] + t["name_us"] if name == "baton" and kind != "again" else 0)
        rows.append({"prompt": size, "tokens": t["tokens"], "answer": kind, "router": name, "without_tokenising_us": without, **med})
        print(f"{size:>6} {kind:>7} {name:>12} {med['cpu_us']:8.1f} {without:8.1f} {med['p50_us']:8.0f} "
              f"{med['requests'] / args.seconds:8.0f} {med['errors']:6.0f} {med['rss_kb'] / 1024:7.1f}")
    for size, t in tokens.items():
        print(f"tokenise {size}: {t['tokens']} tokens, {t['tokenize_us']:.0f} us; naming blocks {t['name_us']:.1f} us")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"tokenise": tokens, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
