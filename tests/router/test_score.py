"""`baton score` gives what /v1/completions gives with echo, max_tokens 0 and logprobs 5: the same numbers to the last digit."""
import json
import re
import subprocess

import pytest
from conftest import BUILD, GEMMA, SMOLLM

PROMPTS = {
    SMOLLM: [[504, 3575, 282, 4649, 314, 7042], list(range(1000, 1075))],
    GEMMA: [[2, 818, 5279, 529, 7001, 563], [2] + list(range(2000, 2070))],
}


def numbers(text, key):
    """The raw digits of a JSON array of numbers, as they were printed."""
    return re.search(rf'"{key}":\s*\[([^\]]*)\]', text)[1].replace(" ", "").split(",")


@pytest.mark.parametrize("model", PROMPTS, ids=["smollm2", "gemma3"])
@pytest.mark.parametrize("shape", [{"unified": 1}, {"prefill": 1, "decode": 1, "policy": "always"}], ids=["alone", "handed-over"])
def test_score_equals_echoed_logprobs_bit_for_bit(fleet, model, shape):
    f = fleet(model=model, **shape)
    for ids in PROMPTS[model]:
        raw = subprocess.run([BUILD / "bin/baton", "score", "--model", model, "--ids", ",".join(map(str, ids))], capture_output=True,
                             text=True, check=True).stdout
        scored = json.loads(raw)
        entries = scored if isinstance(scored, list) else next(v for v in scored.values() if isinstance(v, list))
        assert [e["id"] for e in entries] == ids and entries[0]["logprob"] is None
        status, _, body = f.post("/v1/completions", {"model": f.model, "prompt": ids, "echo": True, "max_tokens": 0, "logprobs": 5, "temperature": 0,
                                                     "return_tokens_as_token_ids": True})
        assert status == 200, body
        served = body["choices"][0]["logprobs"]
        assert len(served["token_logprobs"]) == len(ids) and served["token_logprobs"][0] is None
        for e, logprob, top in list(zip(entries, served["token_logprobs"], served["top_logprobs"]))[1:]:
            assert e["logprob"] == logprob
            assert len(e["top"]) == 5
            for token, value in e["top"]:
                assert top[f"token_id:{token}"] == value
