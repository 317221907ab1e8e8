"""The official `openai` client, unmodified, against a prefill and a decode worker."""
import math

import openai
import pytest


@pytest.fixture(scope="module")
def f(fleet_module):
    return fleet_module(prefill=1, decode=1, policy="always")


@pytest.fixture(scope="module")
def client(f):
    return f.client()


ASK = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


def test_models_are_listed_and_shown(f, client):
    models = list(client.models.list())
    assert [m.id for m in models] == [f.model]
    assert client.models.retrieve(f.model).owned_by == "baton"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_chat_completion_is_whole(f, client):
    r = client.chat.completions.create(model=f.model, messages=ASK, max_tokens=24, temperature=0)
    assert r.object == "chat.completion" and r.id.startswith("chatcmpl-") and r.model == f.model
    assert r.choices[0].message.role == "assistant" and r.choices[0].message.content
    assert r.choices[0].finish_reason in ("stop", "length")
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    assert 0 < r.usage.completion_tokens <= 24
    assert "Paris" in r.choices[0].message.content


def test_headers_name_two_workers_and_the_bytes_moved(f, client):
    for stream in (False, True):
        raw = client.chat.completions.with_raw_response.create(
            model=f.model, messages=[{"role": "user", "content": f"Count to {stream + 3}. " * 20}],
            max_tokens=4, stream=stream)
        h = raw.headers
        p, p_inc = h["x-baton-prefill"].rsplit(":", 1)
        d, d_inc = h["x-baton-decode"].rsplit(":", 1)
        assert (p, d) == ("prefill-0", "decode-0") and p_inc != d_inc and len(p_inc) == len(d_inc) == 16
        assert int(h["x-baton-kv-bytes"]) > 0
        assert h["x-request-id"].startswith("req_")
        raw.http_response.read()


def test_kv_bytes_are_the_blocks_of_the_prompt(f, client):
    """2 x layers x KV heads x head size x element x blocks x block size, of an uncached prompt (SmolLM2: 30, 3, 64, f16)."""
    words = " ".join(f"w{i}" for i in range(150))
    raw = client.completions.with_raw_response.create(model=f.model, prompt=words, max_tokens=2, temperature=0)
    n = raw.parse().usage.prompt_tokens
    blocks = math.ceil(n / 32)
    assert int(raw.headers["x-baton-kv-bytes"]) == 2 * 30 * 3 * 64 * 2 * blocks * 32


def test_a_stream_gives_the_same_text_and_its_usage(f, client):
    whole = client.chat.completions.create(model=f.model, messages=ASK, max_tokens=24, temperature=0)
    stream = client.chat.completions.create(model=f.model, messages=ASK, max_tokens=24, temperature=0,
                                            stream=True, stream_options={"include_usage": True})
    text, finish, usage, roles, ids = "", None, None, [], set()
    for chunk in stream:
        ids.add(chunk.id)
        if chunk.usage:
            usage = chunk.usage
            assert not chunk.choices
        for c in chunk.choices:
            text += c.delta.content or ""
            roles += [c.delta.role] if c.delta.role else []
            finish = c.finish_reason or finish
    assert text == whole.choices[0].message.content
    assert finish == whole.choices[0].finish_reason
    assert (usage.prompt_tokens, usage.completion_tokens) == (
        whole.usage.prompt_tokens, whole.usage.completion_tokens)
    assert roles == ["assistant"] and len(ids) == 1


def test_a_stream_without_usage_has_none(f, client):
    for chunk in client.chat.completions.create(model=f.model, messages=ASK, max_tokens=3, stream=True):
        assert chunk.usage is None


def test_cached_tokens_are_reported(f, client):
    message = [{"role": "user", "content": "Tell me about rivers. " * 30}]
    first = client.chat.completions.create(model=f.model, messages=message, max_tokens=2)
    second = client.chat.completions.create(model=f.model, messages=message, max_tokens=2)
    assert first.usage.prompt_tokens_details.cached_tokens in (0, None)
    assert second.usage.prompt_tokens_details.cached_tokens >= 32


def test_chat_logprobs(f, client):
    r = client.chat.completions.create(model=f.model, messages=ASK, max_tokens=5, temperature=0,
                                       logprobs=True, top_logprobs=3)
    content = r.choices[0].logprobs.content
    assert len(content) == 5
    for t in content:
        assert t.logprob <= 0 and len(t.top_logprobs) == 3
        assert t.top_logprobs[0].token == t.token  # greedy
        assert t.top_logprobs[0].logprob >= t.top_logprobs[1].logprob >= t.top_logprobs[2].logprob
    assert b"".join(bytes(t.bytes) for t in content).decode() == r.choices[0].message.content


def test_streamed_logprobs_equal_whole_ones(f, client):
    kw = dict(model=f.model, messages=ASK, max_tokens=6, temperature=0, logprobs=True, top_logprobs=2)
    whole = client.chat.completions.create(**kw).choices[0].logprobs.content
    parts = []
    for chunk in client.chat.completions.create(stream=True, **kw):
        if chunk.choices and chunk.choices[0].logprobs:
            parts += chunk.choices[0].logprobs.content
    assert [(t.token, t.logprob) for t in parts] == [(t.token, t.logprob) for t in whole]


def test_completion_logprobs_and_echo(f, client):
    r = client.completions.create(model=f.model, prompt="The sky is", max_tokens=4, temperature=0,
                                  logprobs=2, echo=True)
    c = r.choices[0]
    assert c.text.startswith("The sky is")
    lp = c.logprobs
    assert len(lp.tokens) == r.usage.prompt_tokens + 4
    assert lp.token_logprobs[0] is None and all(x <= 0 for x in lp.token_logprobs[1:])
    assert "".join(lp.tokens) == c.text
    assert [c.text[o:o + len(t)] for o, t in zip(lp.text_offset, lp.tokens)] == lp.tokens


def test_scoring_a_prompt_generates_nothing(f, client):
    r = client.completions.create(model=f.model, prompt="One two three four", max_tokens=0, echo=True, logprobs=5)
    c = r.choices[0]
    assert c.text == "One two three four" and r.usage.completion_tokens == 0
    assert len(c.logprobs.tokens) == r.usage.prompt_tokens
    assert all(len(t) >= 5 for t in c.logprobs.top_logprobs[1:])


def test_scoring_is_the_same_by_ids(f, client):
    ids = f.post("/tokenize", {"model": f.model, "prompt": "One two three four"})[2]["tokens"]
    by_text, by_ids = (client.completions.create(model=f.model, prompt=p, max_tokens=0, echo=True, logprobs=5)
                       for p in ("One two three four", ids))
    assert by_text.choices[0].logprobs.token_logprobs == by_ids.choices[0].logprobs.token_logprobs


def test_stop_strings_end_the_text_before_them(f, client):
    kw = dict(model=f.model, prompt="1, 2, 3, 4, 5,", max_tokens=40, temperature=0)
    full = client.completions.create(**kw).choices[0].text
    stop = full[8:11]
    r = client.completions.create(stop=[stop, "never there"], **kw)
    assert r.choices[0].text == full[:full.index(stop)]
    assert r.choices[0].finish_reason == "stop"
    streamed = "".join(c.choices[0].text for c in client.completions.create(stop=stop, stream=True, **kw) if c.choices)
    assert streamed == r.choices[0].text
    f.wait_idle()


def test_several_choices_and_a_seed(f, client):
    kw = dict(model=f.model, messages=ASK, max_tokens=12, temperature=1.2, n=3)
    a = client.chat.completions.create(seed=7, **kw)
    b = client.chat.completions.create(seed=7, **kw)
    c = client.chat.completions.create(seed=8, **kw)
    texts = [[x.message.content for x in r.choices] for r in (a, b, c)]
    assert [x.index for x in a.choices] == [0, 1, 2]
    assert texts[0] == texts[1] != texts[2]
    assert len(set(texts[0])) > 1
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(seed=7, stream=True, **kw):
        for x in chunk.choices:
            streamed[x.index] += x.delta.content or ""
    assert streamed == texts[0]


def test_several_prompts(f, client):
    prompts = ["The sun is", "Water is", "A cat is"]
    r = client.completions.create(model=f.model, prompt=prompts, max_tokens=5, temperature=0, n=2)
    assert [c.index for c in r.choices] == list(range(6))
    for i, p in enumerate(prompts):
        one = client.completions.create(model=f.model, prompt=p, max_tokens=5, temperature=0).choices[0].text
        assert r.choices[2 * i].text == r.choices[2 * i + 1].text == one


def test_logit_bias_and_penalties_reach_the_sampler(f, client):
    ids = f.post("/tokenize", {"model": f.model, "prompt": " banana", "add_special_tokens": False})[2]["tokens"]
    r = client.completions.create(model=f.model, prompt="I like", max_tokens=3, temperature=0,
                                  logit_bias={str(ids[0]): 100})
    assert r.choices[0].text.startswith(f.post("/detokenize", {"model": f.model, "tokens": ids[:1]})[2]["prompt"])
    kw = dict(model=f.model, prompt="ha ha ha ha", max_tokens=12, temperature=0)
    assert client.completions.create(**kw).choices[0].text != client.completions.create(
        presence_penalty=2, frequency_penalty=2, **kw).choices[0].text


def test_errors_are_the_clients_own_exceptions(f, client):
    with pytest.raises(openai.NotFoundError) as e:
        client.chat.completions.create(model="nope", messages=ASK)
    assert e.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model=f.model, messages=ASK, temperature=-1)
    assert "temperature" in str(e.value)
    with pytest.raises(openai.BadRequestError) as e:
        client.completions.create(model=f.model, prompt="word " * 5000, max_tokens=10)
    assert e.value.code == "context_length_exceeded"


def test_tokenize_and_detokenize_are_inverse(f):
    text = "Hello, wörld! 你好 <|im_end|>"
    status, _, t = f.post("/tokenize", {"model": f.model, "prompt": text, "add_special_tokens": False})
    assert status == 200 and t["count"] == len(t["tokens"]) and t["max_model_len"] == f.max_context
    assert f.post("/detokenize", {"model": f.model, "tokens": t["tokens"]})[2] == {"prompt": text}
    chat = f.post("/tokenize", {"model": f.model, "messages": ASK})[2]
    usage = f.chat(ASK[0]["content"], max_tokens=1)[2]["usage"]
    assert chat["count"] == usage["prompt_tokens"]
