#!/usr/bin/env python3
"""Prompt-lookup speculation beside plain decode: tokens a CPU second while decoding, and how many drafts are accepted.

    PYTHON tools/bench-speculation.py [--model FILE.gguf] [--tokens 160] [--rounds 3] [--users 1,4,16] [--out FILE.json]

PYTHON has llama-cpp-python (for the tokenizer alone): ~/.cache/baton/bench/llama/bin/python after `make bench`. Two workers run, one with
--speculation off; each prompt goes to both in turn, and their tokens must be equal. CPU is what the kernel counts for the worker
(/proc/PID/task/*/schedstat) from the first token to the last; rounds alternate. Prompts are real text: pages and sources of this
repository to be repeated, edited, quoted and echoed, and (greedy and sampled) texts to be invented, where there is little to look up."""
import argparse
import concurrent.futures
import glob
import json
import os
import pathlib
import statistics
import sys
import tempfile

import llama_cpp

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/worker"))
import wireclient as wc  # noqa: E402


def text(path, first, last):
    return "\n".join((ROOT / path).read_text().splitlines()[first - 1:last])


def record(i):
    names = ["Ada Byron", "Grace Hopper", "Alan Turing", "Edsger Dijkstra", "Barbara Liskov", "Donald Knuth"]
    return {"id": 1000 + 37 * i, "name": names[i % 6], "email": names[i % 6].lower().replace(" ", ".") + "@example.org",
            "active": i % 3 > 0, "roles": ["reader", "writer"][:1 + i % 2]}


def prompts():
    """{kind: [(text, sampling)]}"""
    page, code = text("docs/architecture.md", 1, 14), text("lib/base/str.c", 1, 40)
    table = json.dumps([record(i) for i in range(6)], indent=1)
    log = "\n".join(f"2026-11-{10 + i:02d} node-{i % 3} worker started, {200 + 13 * i} blocks free" for i in range(12))
    greedy, warm = {}, {"temperature": 1.0, "top_p": .95}
    return {
        "repeat": [("Repeat the following text word for word.\n\n" + page, greedy),
                   ("Copy these lines exactly as they are.\n\n" + log, greedy)],
        "edit": [("Correct the spelling in this text and give me the whole text back.\n\n" +
                  page.replace("the ", "teh ", 4), greedy),
                 ("Replace node-1 by node-9 in this log. Give the whole log.\n\n" + log, greedy)],
        "code": [("Add a comment to this C code and return the whole file.\n\n```c\n" + code + "\n```", greedy),
                 ("Rename the variable `n` to `count` in this code and print all of it.\n\n```c\n" + code + "\n```", greedy)],
        "json": [("Return this JSON array unchanged.\n\n" + table, greedy),
                 ("Return this JSON with every \"active\" set to true.\n\n" + table, greedy)],
        "summarise": [("Summarise this text in five sentences, quoting it.\n\n" + page, greedy),
                      ("List the dates and nodes of this log.\n\n" + log, greedy)],
        "invent, sampled": [("Write a story about a lighthouse keeper who finds a letter.", warm),
                            ("Describe a market in a port town a hundred years ago.", warm),
                            ("Explain to a friend how you would plan a journey through the mountains.", warm)],
        "invent, greedy": [("Write a poem about rain on a tin roof.", greedy), ("Tell me about the history of bread.", greedy)],
    }


def cpu_ns(pid):
    return sum(int(open(p).read().split()[0]) for p in glob.glob(f"/proc/{pid}/task/*/schedstat"))


def counters(worker):
    lines = [x.split() for x in worker.get("/metrics")[1].decode().splitlines() if not x.startswith("#")]
    values = {x[0]: float(x[1]) for x in lines if len(x) == 2}
    return [values["baton_worker_draft_tokens_" + x] for x in ("total", "accepted_total")]


def generate(worker, ids, a, seed, sampling, flags):
    """Token ids, and CPU nanoseconds from the first to the last."""
    stream = wc.Stream(worker, wc.encode(ids, max_tokens=a.tokens, flags=flags, seed=seed, **sampling))
    while not stream.records:
        assert stream.more()
    begin = cpu_ns(worker.proc.pid)
    first = len(stream.records)
    answer = stream.finish()
    assert answer.error is None, answer.error
    return answer.ids(), cpu_ns(worker.proc.pid) - begin, len(answer.tokens) - first


def alone(workers, kind, texts, a):
    """One sequence at a time: CPU of decode alone."""
    rounds, tokens = {"off": [], "on": []}, {}
    before = counters(workers["on"])
    for r in range(a.rounds):
        spent, made = {"off": 0, "on": 0}, {"off": 0, "on": 0}
        for i, (ids, sampling) in enumerate(texts):
            for who in ("off", "on") if r % 2 else ("on", "off"):
                out, ns, n = generate(workers[who], ids, a, 77 + i, sampling, 0)
                assert tokens.setdefault(i, out) == out, f"{kind}, prompt {i}: other tokens with speculation {who}"
                spent[who] += ns
                made[who] += n
        for who in rounds:
            rounds[who].append(made[who] / spent[who] * 1e9)
    drafted, accepted = (x - y for x, y in zip(counters(workers["on"]), before))
    made = a.rounds * sum(len(x) for x in tokens.values())
    ratio = statistics.median(y / x for x, y in zip(rounds["off"], rounds["on"]))
    return {"kind": kind, "off": statistics.median(rounds["off"]), "on": statistics.median(rounds["on"]), "ratio": ratio,
            "accepted": accepted / drafted if drafted else 0, "drafted a token": drafted / made,
            "tokens a step": made / (made - accepted)}


def together(workers, texts, users, a):
    """So many sequences of all kinds at once, prompts cached: CPU of everything."""
    jobs = [texts[i % len(texts)] for i in range(users)]
    spent, before = {"off": [], "on": []}, counters(workers["on"])
    for _ in range(a.rounds):
        got = {}
        for who in spent:
            begin = cpu_ns(workers[who].proc.pid)
            with concurrent.futures.ThreadPoolExecutor(users) as pool:
                got[who] = list(pool.map(lambda j: generate(workers[who], j[1][0], a, j[0], j[1][1], wc.IGNORE_EOS)[0],
                                         enumerate(jobs)))
            spent[who].append(users * a.tokens / (cpu_ns(workers[who].proc.pid) - begin) * 1e9)
        assert got["off"] == got["on"], "other tokens with speculation"
    drafted, accepted = (x - y for x, y in zip(counters(workers["on"]), before))
    return {"kind": f"all kinds, {users} together", "off": statistics.median(spent["off"]),
            "on": statistics.median(spent["on"]), "ratio": statistics.median(y / x for x, y in zip(spent["off"], spent["on"])),
            "accepted": accepted / drafted if drafted else 0, "drafted a token": drafted / (users * a.tokens * a.rounds),
            "tokens a step": 1 / (1 - accepted / (users * a.tokens * a.rounds))}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default=wc.MODEL)
    p.add_argument("--tokens", type=int, default=160)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--users", default="1,4,16")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--kinds", default="", help="only those that contain this")
    p.add_argument("--args", default="", help="further arguments of the worker")
    p.add_argument("--out")
    a = p.parse_args()
    vocab = llama_cpp.Llama(a.model, vocab_only=True, verbose=False)

    def tokens_of(t):
        chat = f"<|im_start|>user\n{t}<|im_end|>\n<|im_start|>assistant\n"
        return vocab.tokenize(chat.encode(), add_bos=False, special=True)
    kinds = {k: [(tokens_of(t), s) for t, s in v] for k, v in prompts().items() if a.kinds in k}
    folder = tempfile.mkdtemp(prefix="baton-bench-")
    workers = {who: wc.Worker(folder, "unified", "--speculation", method, *a.args.split(), threads=a.threads, model=a.model)
               for who, method in (("off", "off"), ("on", "prompt-lookup"))}
    results = []
    print(f"{'':28} {'off':>8} {'on':>8} {'ratio':>6} {'accepted':>9} {'drafted':>8} {'tokens'}\n"
          f"{'':28} {'tokens a CPU second':>17} {'':>6} {'':>9} {'a token':>8} {'a step'}")

    def show(r):
        results.append(r)
        print(f"{r['kind']:28} {r['off']:8.1f} {r['on']:8.1f} {r['ratio']:6.2f} {r['accepted']:9.0%} {r['drafted a token']:8.2f}"
              f" {r['tokens a step']:6.2f}", flush=True)
    try:
        for kind, texts in kinds.items():
            show(alone(workers, kind, texts, a))
        for users in (int(x) for x in a.users.split(",") if x):
            show(together(workers, [x for v in kinds.values() for x in v], users, a))
    finally:
        for w in workers.values():
            w.stop()
    if a.out:
        pathlib.Path(a.out).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
