#!/usr/bin/env python3
"""A worker for tests of launcher and agent: speaks the launcher's protocol, serves nothing. SCRIPT_DIR is its folder:
  plan.json   what --plan prints      fill-fails   --fill fails with this sentence      slow-fill   seconds that --fill takes
  fills       one line a fill         events       one JSON object a line: what it was told
  not-ready   while it exists the worker says that it is not ready
  masked      what rank 0 adds to its status: {"maskable":true,"masked":[…]}, whenever it changes
  drain       seconds that draining takes (0); "never": it does not end
SIGUSR1: prints "boom: out of cheese" to stderr and ends with code 3."""
import array
import json
import mmap
import os
import pathlib
import signal
import socket
import sys
import time

D = pathlib.Path(os.environ["SCRIPT_DIR"])
DEFAULT = {"weights_bytes": 1 << 20, "kv_bytes": 1 << 20, "other_bytes": 1 << 20, "isa": "test", "layout": "rows"}


def text(name, default=None):
    return (D / name).read_text().strip() if (D / name).exists() else default


def note(**what):
    with open(D / "events", "a") as f:
        f.write(json.dumps({"pid": os.getpid(), **what}) + "\n")


def plan():
    print(text("plan.json", json.dumps(DEFAULT)))


def fill():
    with open(D / "fills", "a") as f:
        f.write(f"{os.getpid()}\n")
    time.sleep(float(text("slow-fill", "0")))
    if text("fill-fails"):
        sys.exit(text("fill-fails"))
    fd = int(os.environ["BATON_WEIGHTS_FD"])
    m = mmap.mmap(fd, os.fstat(fd).st_size)
    m[:] = b"W" * len(m)
    print(json.dumps({"checksum": "00000000deadbeef"}))


def boom(*_):
    print("boom: out of cheese", file=sys.stderr, flush=True)
    os._exit(3)


def serve():
    signal.signal(signal.SIGUSR1, boom)
    s = socket.socket(fileno=int(os.environ["BATON_LAUNCHER_FD"]))
    data, fds = b"", array.array("i")
    role, image, ready, rank, masked = None, None, False, 0, None

    def say(**m):
        s.sendall(json.dumps(m).encode() + b"\n")
    s.settimeout(0.05)
    while True:
        if role is not None and ready != (text("not-ready") is None):
            ready = not ready
            say(type="status", role=role, ready=ready, draining=False, running=0, **json.loads(masked or "{}"))
        if role is not None and rank == 0 and masked != text("masked"):
            masked = text("masked")
            say(type="status", role=role, ready=ready, draining=False, running=0, **json.loads(masked))
        try:
            piece, control, _, _ = s.recvmsg(65536, socket.CMSG_LEN(64))
        except (TimeoutError, socket.timeout):
            continue
        if not piece:
            note(eof=True)
            sys.exit(0)
        for level, kind, raw in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(raw[:len(raw) - len(raw) % fds.itemsize])
        data += piece
        while b"\n" in data:
            line, data = data.split(b"\n", 1)
            m = json.loads(line)
            note(**m)
            if m["type"] == "start":
                fd = fds.pop(0)
                image = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
                try:
                    mmap.mmap(fd, 0)
                    writable = True
                except (PermissionError, OSError):
                    writable = False
                note(image=os.fstat(fd).st_ino, writable=writable, whole=image[:] == b"W" * len(image))
                role, rank = m["role"], m["rank"]
            elif m["type"] == "role":
                role = m["role"]
                say(type="status", role=role, ready=ready, draining=False, running=0, **json.loads(masked or "{}"))
            elif m["type"] == "drain":
                say(type="status", role=role, ready=False, draining=True, running=1)
                how = text("drain", "0")
                if how != "never":
                    time.sleep(float(how))
                    say(type="drained")


{"--plan": plan, "--fill": fill}.get(sys.argv[1] if len(sys.argv) > 1 else "", serve)()
