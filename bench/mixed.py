#!/usr/bin/env python3
"""Short prompts beside a long one, through whole servers: how long each waits for its first token.

    bench/mixed.py [--model smollm2] [--threads 2] [--servers baton-unified,baton-split,llama.cpp,vllm] [--long 6000] [--rounds 3]

A prompt of about --long tokens, new to the server, is sent alone; then another one with short prompts (about 30 tokens) beside it, one
every --every seconds until its first token. One server runs at a time (bench/servers.py). A server that computes prompts first come,
first served lets the short ones wait for all of the long one. Prints Markdown."""
import argparse
import asyncio
import os
import signal
import statistics
import sys

import openai

import servers
from users import REQUEST_SECONDS, Request, quantile, text

SHORT = 30
ANSWER = 8


async def beside(server, a, seed, shorts):
    """One long prompt, with short ones beside it if `shorts`: (its Request, theirs)."""
    client = openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=REQUEST_SECONDS)
    long, others, tasks = Request(), [], []
    async with client:
        whole = asyncio.create_task(long.run(client, server.model, text(f"long {seed}", a.long), ANSWER))
        while shorts and not whole.done() and not long.times:
            await asyncio.sleep(a.every)
            r = Request()
            others.append(r)
            tasks.append(asyncio.create_task(r.run(client, server.model, text(f"short {seed} {len(others)}", SHORT), ANSWER)))
        await asyncio.gather(whole, *tasks)
    return long, others


def run(a, name):
    with servers.SERVERS[name](a.model, a.threads, 16) as server:
        asyncio.run(beside(server, a, "warm-up", False))
        alone = [asyncio.run(beside(server, a, f"alone {n}", False))[0] for n in range(a.rounds)]
        mixed = [asyncio.run(beside(server, a, f"mixed {n}", True)) for n in range(a.rounds)]
    bad = [r.error for r in [*alone, *(m[0] for m in mixed), *(r for m in mixed for r in m[1])] if r.error]
    for e in sorted(set(bad)):
        print(f"{name}: {e}", file=sys.stderr)
    shorts = [r.ttft for m in mixed for r in m[1] if not r.error]
    cells = [statistics.median(r.ttft for r in alone if not r.error), statistics.median(m[0].ttft for m in mixed if not m[0].error)]
    print(f"| {name} | {alone[0].prompt_tokens} | {cells[0]:.2f} | {cells[1]:.2f} | {len(shorts)} | {quantile(shorts, 0.5):.2f} / "
          f"{quantile(shorts, 0.99):.2f} | {len(bad)} | {os.getloadavg()[0]:.1f} |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=servers.MODELS, default="smollm2")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--servers", type=lambda s: s.split(","), default=list(servers.SERVERS))
    p.add_argument("--long", type=int, default=6000)
    p.add_argument("--every", type=float, default=0.4)
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    servers.CONTEXT = a.long + 1000
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are ended
    print("| server | long prompt, tokens | its TTFT alone, s | beside short ones, s | short prompts | their TTFT p50 / p99, s | failures | load |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name in a.servers:
        run(a, name)


if __name__ == "__main__":
    main()
