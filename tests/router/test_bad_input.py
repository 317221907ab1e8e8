"""Bad bodies, numbers, models and lengths: each a clear 4xx in OpenAI's shape, and the router goes on."""
import http.client
import json
import socket

import pytest


@pytest.fixture(scope="module")
def f(fleet_module):
    return fleet_module(unified=1, policy="never", max_context=256)


MSG = [{"role": "user", "content": "hi"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def chat(**kw):
    return json.dumps({"model": "test-model", "messages": MSG, "max_tokens": 4, **kw})


def complete(**kw):
    return json.dumps({"model": "test-model", "prompt": "hi", "max_tokens": 4, **kw})


BAD_JSON = {
    "empty": "", "not json": "hello", "an array": "[]", "a number": "1", "null": "null",
    "cut": '{"model": "test-model", "messages": [', "cut in a string": '{"model": "test-mod',
    "trailing comma": '{"model": "test-model",}', "trailing text": chat() + "x",
    "two keys alike": '{"model": "test-model", "model": "b", "messages": []}',
    "nan": '{"model": "test-model", "messages": [{"role":"user","content":"x"}], "temperature": NaN}',
    "single quotes": "{'model': 'test-model'}",
    "a bad escape": '{"model": "\\q"}', "a lone surrogate's half": '{"model": "\\ud8"}',
    "a control character": '{"model": "a\nb"}', "too deep": '{"a":' * 2000 + "1" + "}" * 2000,
    "a leading zero": '{"model": "test-model", "messages": [], "max_tokens": 012}',
}
BAD_CHAT = {
    "no model": json.dumps({"messages": MSG}),
    "model is a number": chat(model=3), "model is empty": chat(model=""),
    "no messages": json.dumps({"model": "test-model"}),
    "messages empty": chat(messages=[]), "messages a string": chat(messages="hi"),
    "a message without a role": chat(messages=[{"content": "x"}]),
    "a message that is a number": chat(messages=[7]),
    "a role that is a number": chat(messages=[{"role": 1, "content": "x"}]),
    "content is a number": chat(messages=[{"role": "user", "content": 5}]),
    "temperature negative": chat(temperature=-0.1), "temperature too high": chat(temperature=1e9),
    "temperature a string": chat(temperature="hot"), "top_p zero": chat(top_p=0), "top_p over one": chat(top_p=1.5),
    "min_p over one": chat(min_p=1.5), "top_k negative": chat(top_k=-5), "top_k not whole": chat(top_k=1.5),
    "max_tokens negative": chat(max_tokens=-1), "max_tokens huge": chat(max_tokens=10 ** 12),
    "max_tokens past 64 bits": chat(max_tokens=10 ** 30), "max_tokens not whole": chat(max_tokens=1.5),
    "n zero": chat(n=0), "n huge": chat(n=100000), "n a string": chat(n="two"),
    "presence_penalty out of bounds": chat(presence_penalty=1e6), "frequency_penalty a list": chat(frequency_penalty=[]),
    "repetition_penalty zero": chat(repetition_penalty=0),
    "stop a number": chat(stop=5), "stop too many": chat(stop=["x"] * 100), "stop empty": chat(stop=[""]),
    "stop too long": chat(stop="x" * 5000),
    "top_logprobs without logprobs": chat(top_logprobs=3), "top_logprobs too many": chat(logprobs=True, top_logprobs=1000),
    "logprobs a string": chat(logprobs="yes"), "stream a string": chat(stream="yes"),
    "logit_bias a list": chat(logit_bias=[1]), "logit_bias of no number": chat(logit_bias={"abc": 1}),
    "logit_bias too strong": chat(logit_bias={"5": 1e6}), "logit_bias past the vocabulary": chat(logit_bias={"99999999": 1}),
    "seed a string": chat(seed="x"), "seed not whole": chat(seed=0.5), "tools a string": chat(tools="x"),
}
BAD_COMPLETIONS = {
    "no prompt": json.dumps({"model": "test-model"}), "prompt a number": complete(prompt=5),
    "prompt an object": complete(prompt={}), "prompt an empty list": complete(prompt=[]),
    "prompt negative ids": complete(prompt=[-1, 2]), "prompt ids past the vocabulary": complete(prompt=[1, 99999999]),
    "prompt mixed": complete(prompt=["a", 1]), "prompt too many": complete(prompt=["a"] * 5000),
    "logprobs too many": complete(logprobs=1000), "logprobs negative": complete(logprobs=-1),
    "echo a string": complete(echo="x"), "stop_token_ids past the vocabulary": complete(stop_token_ids=[99999999]),
    "context overflow by the prompt": complete(prompt="word " * 1000),
    "context overflow by max_tokens": complete(max_tokens=300),
}
CASES = ([(CHAT, k, v) for k, v in {**BAD_JSON, **BAD_CHAT}.items()] +
         [(COMPLETIONS, k, v) for k, v in BAD_COMPLETIONS.items()] +
         [("/tokenize", "nothing to tokenize", "{}"), ("/tokenize", "prompt a number", '{"prompt": 5}'),
          ("/detokenize", "no tokens", "{}"), ("/detokenize", "tokens a string", '{"tokens": "x"}'),
          ("/detokenize", "tokens past the vocabulary", '{"tokens": [99999999]}')])


@pytest.mark.parametrize("path,name,body", CASES, ids=[f"{p} {n}" for p, n, _ in CASES])
def test_a_bad_body_is_a_clear_400(f, path, name, body):
    status, headers, answer = f.post(path, body)
    assert status == 400, (status, answer)
    e = answer["error"]
    assert e["type"] == "invalid_request_error" and len(e["message"]) > 10
    assert set(e) >= {"message", "type", "param", "code"}
    assert headers["x-request-id"]
    if name.startswith("context overflow"):
        assert e["code"] == "context_length_exceeded"


def test_an_unknown_model_is_404(f):
    for path in (CHAT, COMPLETIONS, "/tokenize"):
        prompt = {"messages": MSG} if path == CHAT else {"prompt": "x"}
        status, _, answer = f.post(path, {"model": "gpt-9", **prompt})
        assert status == 404 and answer["error"]["code"] == "model_not_found", path


def test_unknown_paths_and_methods(f):
    assert f.get("/v1/nothing")[0] == 404
    assert f.get(CHAT)[0] == 405
    assert f.post("/v1/models", "{}")[0] == 405
    assert f.get("/v1/models/none")[0] == 404


def test_a_body_too_large_is_413(f):
    c = http.client.HTTPConnection(f.host, f.port, timeout=10)
    c.putrequest("POST", CHAT)
    c.putheader("content-length", str(64 << 20))
    c.endheaders()
    r = c.getresponse()
    assert r.status == 413 and json.loads(r.read())["error"]["code"] == "request_too_large"
    assert r.getheader("x-request-id")
    c.close()


def test_a_malformed_path_is_400_in_openais_form(f):
    head, body = raw(f, b"GET /v1/models%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").split(b"\r\n\r\n", 1)
    assert b" 400 " in head and json.loads(body)["error"]["type"] == "invalid_request_error"


def raw(f, data):
    with socket.create_connection((f.host, f.port), timeout=10) as s:
        s.sendall(data)
        return s.recv(4096)


def test_smuggled_lengths_are_refused(f):
    body = chat().encode()
    answer = raw(f, b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"
                 b"Transfer-Encoding: chunked\r\n\r\n" % len(body) + body)
    assert b" 400 " in answer.split(b"\r\n")[0], answer


def test_a_wrong_request_id_is_replaced(f):
    for bad in ("x" * 200, "a b", 'a"b', "é"):
        _, h, _ = f.post(CHAT, chat(max_tokens=1), {"x-request-id": bad.encode("utf-8")})
        assert h["x-request-id"].startswith("req_")
    _, h, _ = f.post(CHAT, chat(max_tokens=1), {"x-request-id": "my-id_1.2"})
    assert h["x-request-id"] == "my-id_1.2"


def test_after_all_that_it_still_answers(f):
    status, _, answer = f.post(CHAT, chat())
    assert status == 200, answer
    f.wait_idle()
