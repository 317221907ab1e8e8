#!/usr/bin/env python3
"""An external client: long streams one after another in several lanes, and short requests beside them, until SIGTERM; one JSON line a
finished request. It hangs up on a stream that has run for --seconds: a router that ends waits only so long. Run outside the nodes, on
their network. Standard library only.

  client.py --url http://HOST:PORT[,http://HOST:PORT…] --model NAME --out FILE [--streams 8] [--seconds 90] [--short 2]

A connection that is refused goes to the next address; a request that was sent is never repeated. At temperature 0 the text of a prompt is
known: `text` is a digest every 64 characters, so that two answers to one prompt can be compared as far as both go."""
import argparse
import asyncio
import hashlib
import json
import signal
import time

PROMPTS = ["Write a long story about a lighthouse.", "Explain how bread is made, in many steps.", "Describe the history of the railway.",
           "List facts about the planets, one after another.", "Tell me about the rivers of Europe.", "Write a long letter from a sailor.",
           "Explain photosynthesis in great detail.", "Describe a day in a busy kitchen.", "Write a long tale about two foxes.",
           "Explain how a steam engine works."]
SHORT = ["What is the capital of France?", "Name a colour.", "What is two plus two?", "Say hello.", "What is the largest ocean?"]


class Client:
    def __init__(self, o):
        self.o, self.stopping = o, False
        self.addresses = [u.removeprefix("http://").rsplit(":", 1) for u in o.url.split(",")]
        self.out = open(o.out, "a", buffering=1)

    async def connect(self):
        last = None
        for host, port in self.addresses:
            try:
                return await asyncio.wait_for(asyncio.open_connection(host, int(port)), 2)
            except (OSError, asyncio.TimeoutError) as e:
                last = e
        raise last

    async def request(self, kind, lane, prompt, max_tokens):
        r = {"kind": kind, "lane": lane, "prompt": prompt, "max_tokens": max_tokens, "start": time.time(), "last": None, "tokens": 0,
             "finish": None, "error": None, "status": 0, "headers": {}, "text": [], "gap": 0.0}
        writer = None
        try:
            reader, writer = await self.connect()
            body = json.dumps({"model": self.o.model, "stream": True, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": kind == "stream",
                               "messages": [{"role": "user", "content": prompt}]}).encode()
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: baton\r\nContent-Type: application/json\r\nConnection: close\r\n"
                         b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await self.answer(r, reader)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, ValueError, KeyError) as e:
            r["error"] = f"{type(e).__name__}: {e}"
        if writer:
            writer.close()
        r["end"] = time.time()
        self.out.write(json.dumps(r) + "\n")
        return r

    async def line(self, reader):
        return (await asyncio.wait_for(reader.readline(), self.o.silence)).decode().rstrip("\r\n")

    async def answer(self, r, reader):
        r["status"] = int((await self.line(reader)).split()[1])
        while header := await self.line(reader):
            name, _, value = header.partition(":")
            if name.lower().startswith("x-"):
                r["headers"][name.lower()] = value.strip()
        text, done = "", False
        while not done:
            raw = await asyncio.wait_for(reader.readline(), self.o.silence)
            if not raw:
                r["error"] = "the stream ended without [DONE]" if r["status"] == 200 else f"HTTP {r['status']}: {text[-300:]}"
                return
            s = raw.decode().strip()
            if not s.startswith("data: "):
                text += s if r["status"] != 200 else ""
                continue
            if s == "data: [DONE]":
                done = True
                continue
            o = json.loads(s[6:])
            if "error" in o:
                r["error"] = json.dumps(o["error"])
                return
            for choice in o.get("choices", []):
                if piece := choice.get("delta", {}).get("content"):
                    text += piece
                    now = time.time()
                    r["gap"] = max(r["gap"], now - (r["last"] or now))
                    r["tokens"] += 1
                    r["last"] = now
                    while len(text) >= 64 * (len(r["text"]) + 1):
                        r["text"].append(hashlib.sha256(text[:64 * (len(r["text"]) + 1)].encode()).hexdigest()[:12])
                r["finish"] = choice.get("finish_reason") or r["finish"]
            if r["kind"] == "stream" and not r["finish"] and time.time() - r["start"] > self.o.seconds:
                r["finish"] = "left"
                return
        if r["status"] != 200:
            r["error"] = f"HTTP {r['status']}"

    async def lane(self, n):
        await asyncio.sleep(n * 1.5)
        turn = 0
        while not self.stopping:
            r = await self.request("stream", n, PROMPTS[(n + turn) % len(PROMPTS)], self.o.tokens)
            turn += 1
            if r["error"]:
                await asyncio.sleep(0.5)

    async def short(self):
        n, running = 0, set()
        while not self.stopping:
            if len(running) < 16:
                t = asyncio.create_task(self.request("short", -1, SHORT[n % len(SHORT)], 4))
                running.add(t)
                t.add_done_callback(running.discard)
                n += 1
            await asyncio.sleep(1 / self.o.short)
        if running:
            await asyncio.wait(running)

    async def run(self):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: setattr(self, "stopping", True))
        await asyncio.gather(self.short(), *(self.lane(n) for n in range(self.o.streams)))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--streams", type=int, default=8)
    p.add_argument("--seconds", type=float, default=90, help="how long a stream is read")
    p.add_argument("--tokens", type=int, default=7000, help="max_tokens of a stream: more than come in that time")
    p.add_argument("--short", type=float, default=2, help="short requests a second")
    p.add_argument("--silence", type=float, default=300,
                   help="seconds without a byte that end a request as failed; OpenAI's own client waits 600")
    asyncio.run(Client(p.parse_args()).run())


if __name__ == "__main__":
    main()
