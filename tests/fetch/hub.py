"""A server that speaks the Hub's paths, for tests: listing, resolve with redirects to a "CDN" (another origin), LFS ETags, ranges,
tokens, and the faults of the Internet. Everything on loopback.

    hub = Hub(); hub.repo("org/m", {"model.gguf": b"…"}); hub.endpoint
    hub.cut_after = 1000     every body ends after so many bytes (once a connection)      hub.rate = 1e6   bytes a second
    hub.fail = [500, 429]    the next answers                                             hub.requests     [(method, path, headers)]
"""
import hashlib
import http.server
import json
import pathlib
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.parse


def certificate():
    """A key and a certificate for localhost and 127.0.0.1 in one folder."""
    d = pathlib.Path(tempfile.mkdtemp(prefix="baton-hub-"))
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", d / "key.pem",
                    "-out", d / "cert.pem"], check=True, capture_output=True)
    return d


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        pass  # a client that stopped listening


class Hub:
    def __init__(self, tls=None):
        self.repos, self.files, self.token = {}, {}, None
        self.cut_after, self.rate, self.fail, self.ranges, self.lfs = None, None, [], True, True
        self.expire_links, self.corrupt, self.requests, self.sent = False, False, [], 0
        self.lock = threading.Lock()
        self.front, self.cdn = self._serve("front", tls), self._serve("cdn", tls)
        scheme = "https" if tls else "http"
        self.endpoint = f"{scheme}://127.0.0.1:{self.front.server_port}"
        self.cdn_url = f"{scheme}://localhost:{self.cdn.server_port}"

    def repo(self, name, files, commit="c0ffee" * 6 + "abcd"):
        self.repos[name] = (commit, files)

    def bytes_asked(self, suffix):
        return sum(1 for m, p, h in self.requests if p.split("?")[0].endswith(suffix) and m == "GET")

    def close(self):
        for s in (self.front, self.cdn):
            s.shutdown()
            s.server_close()

    def _serve(self, role, tls):
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                with hub.lock:
                    hub.requests.append((self.command, self.path, dict(self.headers)))
                    fault = hub.fail.pop(0) if hub.fail else None
                if fault:
                    return self.reply(fault, b"", {"Retry-After": "0"})
                (hub._front if role == "front" else hub._cdn)(self)

            def reply(self, status, body, headers=None):
                self.send_response(status)
                for k, v in (headers or {}).items():
                    self.send_header(k, v)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def body(self, data, etag, more=None):
                start, end, status = 0, len(data) - 1, 200
                wanted = self.headers.get("Range")
                headers = {"ETag": f'"{etag}"', **(more or {})}
                if wanted and hub.ranges:
                    a, b = wanted.removeprefix("bytes=").split("-")
                    start, end = int(a), min(int(b) if b else len(data) - 1, len(data) - 1)
                    if start >= len(data):
                        return self.reply(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                    status = 206
                    headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
                self.send_response(status)
                for k, v in headers.items():
                    self.send_header(k, v)
                self.send_header("Content-Length", str(end - start + 1))
                self.end_headers()
                piece = bytearray(data[start:end + 1])
                if hub.corrupt and piece and end - start > 16:
                    piece[0] ^= 1
                self.trickle(piece)

            def trickle(self, piece):
                cut = hub.cut_after
                at = 0
                while at < len(piece):
                    n = min(16384, len(piece) - at, max(0, cut - at) if cut is not None else 1 << 30)
                    if n == 0:
                        self.close_connection = True
                        self.connection.close()
                        return
                    self.wfile.write(piece[at:at + n])
                    at += n
                    with hub.lock:
                        hub.sent += n
                    if hub.rate:
                        time.sleep(n / hub.rate)

        s = Server(("127.0.0.1", 0), Handler)
        if tls:
            ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            ctx.load_cert_chain(tls / "cert.pem", tls / "key.pem")
            s.socket = ctx.wrap_socket(s.socket, server_side=True)
        threading.Thread(target=s.serve_forever, args=(0.05,), daemon=True).start()
        return s

    def _denied(self, h):
        given = h.headers.get("Authorization", "")
        if self.token is None or given == f"Bearer {self.token}":
            return False
        h.reply(403 if given else 401, b"", {"X-Error-Message": "Access to this model is restricted."})
        return True

    def _front(self, h):
        path = urllib.parse.unquote(h.path.split("?")[0])
        if self._denied(h):
            return
        if path.startswith("/api/models/"):
            repo = path.removeprefix("/api/models/").split("/revision/")[0]
            if repo not in self.repos:
                return h.reply(404, b"")
            commit, files = self.repos[repo]
            siblings = [{"rfilename": n, "size": len(d), **({"lfs": {"sha256": hashlib.sha256(d).hexdigest(), "size": len(d)}}
                                                           if self.lfs and len(d) > 1000 else {})} for n, d in files.items()]
            return h.reply(200, json.dumps({"id": repo, "sha": commit, "siblings": siblings}).encode())
        if path.startswith("/files/"):  # a plain https source
            data = self.files.get(path.removeprefix("/files/"))
            return h.reply(404, b"") if data is None else h.body(data, hashlib.md5(data).hexdigest())
        parts = path.strip("/").split("/")
        repo, what = "/".join(parts[:2]), parts[2:]
        commit, files = self.repos.get(repo, (None, {}))
        if len(what) < 3 or what[0] != "resolve" or what[1] not in ("main", commit) or "/".join(what[2:]) not in files:
            return h.reply(404, b"", {"X-Error-Message": "Entry not found"})
        data = files["/".join(what[2:])]
        sha = hashlib.sha256(data).hexdigest()
        if not self.lfs or len(data) <= 1000:
            return h.body(data, hashlib.sha1(data).hexdigest(), {"X-Repo-Commit": commit})
        link = f"{self.cdn_url}/blob/{repo.replace('/', '%2F')}/{what[-1]}?sig={len(self.requests)}"
        h.reply(302, b"", {"Location": link, "X-Repo-Commit": commit, "X-Linked-ETag": f'"{sha}"', "X-Linked-Size": str(len(data))})

    def _cdn(self, h):
        assert "Authorization" not in h.headers, "the token went to another origin"
        _, _, repo, name = h.path.split("?")[0].split("/", 3)
        sig = int(h.path.split("sig=")[1])
        if self.expire_links and len(self.requests) - sig > self.expire_links:
            return h.reply(403, b"")
        data = next(d for n, d in self.repos[urllib.parse.unquote(repo)][1].items() if n.endswith(name))
        h.body(data, f"cdn-{len(data)}-{name}")
