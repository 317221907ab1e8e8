"""A router that does not see the model's files takes the tokenizer from a worker that has them."""
import http.server
import json
import threading

from conftest import wait_for


def test_the_tokenizer_comes_from_a_worker_when_the_source_is_out_of_sight(fleet):
    f = fleet(unified=1, start_router=False)
    real, f.model_file = f.model_file, "/nowhere/model.gguf"
    f.start_router()
    answer = f.client().chat.completions.create(model=f.model, max_tokens=8, temperature=0,
                                                messages=[{"role": "user", "content": "What is the capital of France?"}])
    assert "Paris" in answer.choices[0].message.content
    f.model_file = real


def test_a_router_without_worker_and_file_says_what_it_misses(fleet):
    f = fleet(unified=1, start_router=False)
    for w in f.workers.values():
        w.kill()
    f.model_file, f.wait_routable = "/nowhere/model.gguf", lambda: None  # it never gets ready
    f.start_router()
    wait_for(lambda: "no worker has told its tokenizer yet" in f.router.log(), 20)


def test_a_model_at_zero_whose_tokenizer_nobody_has_told_is_woken(fleet):
    """A router that sees no model files and began while the model had no worker: it can't hold the request, but asks for a worker."""
    asked = []

    class Controller(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append((self.path, json.loads(self.rfile.read(int(self.headers["content-length"])))["infd"]))
            self.send_response(202)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Controller)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        f = fleet(start_router=False, router_args=["--controller-url", f"http://127.0.0.1:{server.server_port}"])
        f.model_file, f.static_more, f.wait_routable = "/nowhere/model.gguf", {"wakes": True}, lambda: None
        f.start_router()
        wait_for(lambda: "no worker has told its tokenizer yet" in f.router.log(), 60)
        status, headers, r = f.chat(max_tokens=2)
        assert status == 503 and r["error"]["code"] == "model_not_ready" and "asked for" in r["error"]["message"], r
        assert headers["retry-after"] == "10"
        wait_for(lambda: ("/v1/internal/wake", "chat") in asked, 60)
    finally:
        server.shutdown()
        server.server_close()
