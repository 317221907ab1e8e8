#!/usr/bin/env python3
"""32 users who share a long prefix, through whole servers: Baton beside llama.cpp's server and vLLM for CPUs.

    bench/users.py [--models smollm2,gemma] [--threads 1,2] [--servers baton-unified,baton-split,llama.cpp,vllm] [--rounds 3]

One server runs at a time, with the same weights and the same number of compute threads (bench/servers.py). Its users are OpenAI
clients in one process; in a round each sends one streamed /v1/completions at the same moment: a prefix of about 1,000 tokens that all
share, a question of its own, 64 greedy tokens out (ignore_eos). In the first round after a warm-up the prefix is new to the server
("new"), in the others it is known and the questions are new ("known"); the warm-up has another prefix.

CPU seconds are user and system time of all processes of the server (/proc), the clients' own are not among them; tokens a CPU second
is the figure to compare, for machines are shared: wall times mean what the load left of them. Prints Markdown."""
import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time

import openai

from servers import MODELS, SERVERS

OWN = 8  # words of a question
REQUEST_SECONDS = 1800
WORDS = ("the river runs past old stone houses and a small mill where people once ground corn for bread while boats went down to the sea "
         "with wood salt and letters from towns that no longer have names but still stand on some maps kept by the house of trade").split()


def text(seed, tokens):
    """Words in an order that the seed gives; about one token each."""
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(tokens))


def prompts(a, prefix, round_):
    shared = text(f"prefix {prefix}", a.shared)
    return [f"{shared}\n\nQuestion {u}: what comes after {text(f'{prefix} {round_} {u}', OWN)}?\nAnswer:" for u in range(a.users)]


class Request:
    """One user's request: when its text came, how many tokens, what went wrong."""

    def __init__(self):
        self.times, self.tokens, self.prompt_tokens, self.text, self.error = [], 0, 0, "", None

    async def run(self, client, model, prompt, tokens):
        self.began = time.monotonic()
        try:
            stream = await client.completions.create(model=model, prompt=prompt, max_tokens=tokens, temperature=0, stream=True,
                                                     stream_options={"include_usage": True}, extra_body={"ignore_eos": True})
            async for chunk in stream:
                if chunk.choices:
                    self.times.append(time.monotonic())
                    self.text += chunk.choices[0].text
                if chunk.usage:
                    self.tokens, self.prompt_tokens = chunk.usage.completion_tokens, chunk.usage.prompt_tokens
        except openai.OpenAIError as e:
            self.error = f"{type(e).__name__}: {e}"
        if not self.error and self.tokens != tokens:
            self.error = f"{self.tokens} tokens instead of {tokens}"

    @property
    def ttft(self):
        return self.times[0] - self.began

    @property
    def tpot(self):
        return (self.times[-1] - self.times[0]) / (self.tokens - 1)


async def burst(server, texts, tokens):
    client = openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=REQUEST_SECONDS)
    requests = [Request() for _ in texts]
    async with client:
        await asyncio.gather(*(r.run(client, server.model, t, tokens) for r, t in zip(requests, texts)))
    return requests


def used(before, after):
    """CPU seconds by program; of processes that came in between, all."""
    out = {}
    for pid, (name, seconds) in after.items():
        spent = seconds - (before[pid][1] if pid in before else 0)
        out[name] = out.get(name, 0) + spent
    return {k: round(v, 2) for k, v in sorted(out.items(), key=lambda i: -i[1]) if v >= 0.005}


def measure(server, texts, tokens):
    cpu, own, wall = server.cpu(), time.process_time(), time.monotonic()
    requests = asyncio.run(burst(server, texts, tokens))
    wall, own = time.monotonic() - wall, time.process_time() - own
    by_program = used(cpu, server.cpu())
    good = [r for r in requests if not r.error]
    for e in {r.error for r in requests if r.error}:
        print(f"{server.name}: {e}", file=sys.stderr)
    return {"cpu": sum(by_program.values()), "by_program": by_program, "client_cpu": own, "wall": wall, "failures": len(requests) - len(good),
            "tokens": sum(r.tokens for r in good), "prompt_tokens": max((r.prompt_tokens for r in good), default=0),
            "ttft": [r.ttft for r in good], "tpot": [r.tpot for r in good], "texts": [r.text for r in requests]}


def rounds_of(a, server):
    asyncio.run(burst(server, [text(f"warm-up {u}", 40) for u in range(a.users)], 8))
    rounds = [measure(server, prompts(a, "measured", n), a.tokens) for n in range(a.rounds + 1)]
    return {"new": rounds[:1], "known": rounds[1:]}


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(len(values) * q))] if values else float("nan")


def summary(rounds):
    def all_of(key):
        return [v for r in rounds for v in r[key]]
    return {"per_cpu": statistics.median(r["tokens"] / r["cpu"] for r in rounds),
            "per_second": statistics.median(r["tokens"] / r["wall"] for r in rounds),
            "ttft": [quantile(all_of("ttft"), q) for q in (0.5, 0.99)], "tpot": [quantile(all_of("tpot"), q) for q in (0.5, 0.99)],
            "failures": sum(r["failures"] for r in rounds), "requests": sum(len(r["texts"]) for r in rounds),
            "prompt_tokens": max(r["prompt_tokens"] for r in rounds),
            "client_cpu": statistics.median(r["client_cpu"] for r in rounds),
            "by_program": rounds[-1]["by_program"], "texts": rounds[0]["texts"], "load": os.getloadavg()[0]}


def line(model, threads, name, case, s):
    programs = ", ".join(f"{k} {v}" for k, v in s["by_program"].items())
    print(f"| {model} | {threads} | {name} | {case} | {s['per_cpu']:.1f} | {s['per_second']:.1f} | {s['ttft'][0]:.2f} / {s['ttft'][1]:.2f} | "
          f"{s['tpot'][0] * 1e3:.0f} / {s['tpot'][1] * 1e3:.0f} | {s['failures']} of {s['requests']} | {s['prompt_tokens']} | {s['client_cpu']:.1f} | {programs} | {s['load']:.1f} |", flush=True)


def ratios(results):
    print(f"\n| model | threads | prefix | server | tokens a CPU second, Baton's / {' / '.join(PEERS)} | tokens a second |")
    print("|---|---|---|---|---|---|")
    for (model, threads, name, case), ours in results.items():
        if not name.startswith("baton"):
            continue
        theirs = [results.get((model, threads, p, case)) for p in PEERS]
        cells = [" / ".join(f"{ours[k] / t[k]:.2f} ×" if t else "–" for t in theirs) for k in ("per_cpu", "per_second")]
        print(f"| {model} | {threads} | {case} | {name} | {' | '.join(cells)} |")


PEERS = ("llama.cpp", "vllm")


def run(a, model, threads, name, results):
    with SERVERS[name](model, threads, a.users) as server:
        cases = rounds_of(a, server)
    for case, rounds in cases.items():
        results[model, threads, name, case] = s = summary(rounds)
        line(model, threads, name, case, s)


def same_text(results):
    """Greedy answers of the same GGUF: how many are Baton's to the letter, as a check that all do the same work."""
    for (model, threads, name, case), s in results.items():
        ours = results.get((model, threads, "baton-unified", case))
        if ours and name != "baton-unified":
            n = sum(x == y for x, y in zip(ours["texts"], s["texts"]))
            print(f"{model}, {threads} threads, prefix {case}: {n} of {len(s['texts'])} answers of {name} are those of baton-unified to the letter")


def versions(servers):
    """What each peer says of itself."""
    for name in PEERS:
        if name in servers:
            out = subprocess.run(SERVERS[name].VERSION, capture_output=True, text=True)
            print(f"{name}: {' '.join((out.stdout + out.stderr).split())}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", type=lambda s: s.split(","), default=list(MODELS))
    p.add_argument("--threads", type=lambda s: [int(n) for n in s.split(",")], default=[1, 2])
    p.add_argument("--servers", type=lambda s: s.split(","), default=list(SERVERS))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--users", type=int, default=32)
    p.add_argument("--shared", type=int, default=1000, help="tokens of the prefix")
    p.add_argument("--tokens", type=int, default=64, help="of an answer")
    p.add_argument("--json", help="a file for all figures")
    a = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are ended
    versions(a.servers)
    print(f"\n{a.users} users, {a.tokens} tokens each; median of {a.rounds} rounds with a known prefix, one with a new one; "
          f"load {os.getloadavg()[0]:.1f} at the start\n")
    print("| model | threads | server | prefix | tokens a CPU second | tokens a second | TTFT p50 / p99, s | TPOT p50 / p99, ms | failures | "
          "prompt tokens | clients, CPU s | CPU s of the last round by program | load |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    results = {}
    for model in a.models:
        for threads in a.threads:
            for name in a.servers:
                if name == "baton-split" and threads < 2:
                    continue  # a worker has at least one thread
                run(a, model, threads, name, results)
    ratios(results)
    print()
    same_text(results)
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")
    if a.json:
        with open(a.json, "w") as f:
            json.dump([{"model": m, "threads": t, "server": n, "prefix": c, **{k: v for k, v in s.items() if k != "texts"}}
                       for (m, t, n, c), s in results.items()], f, indent=1)
    return 1 if any(s["failures"] for s in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
