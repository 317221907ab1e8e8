"""The documents say what is: examples run, generated pages are fresh, tables of metrics and errors are complete, links lead somewhere."""
import os
import re
import subprocess

import pytest

from conftest import ROOT

PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("charts/**/*.md")])


@pytest.fixture(scope="module")
def chat(fleet_module):
    return fleet_module(prefill=1, decode=1, policy="auto", name="smollm2-135m-instruct", max_context=8192)


def examples(page):
    return re.findall(r"^```sh\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)


@pytest.mark.parametrize("number", range(len(examples("docs/api.md"))))
def test_every_example_of_the_api_runs(chat, number):
    script = examples("docs/api.md")[number]
    assert "http://127.0.0.1:8080" in script
    script = script.replace("http://127.0.0.1:8080", chat.url).replace("curl ", "curl -sS --fail-with-body ")
    r = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", script], capture_output=True, text=True, timeout=120)
    assert r.returncode == 0, f"{script}\n{r.stdout}\n{r.stderr}"
    assert '{"error"' not in r.stdout and len(r.stdout) > 20


def test_the_metrics_are_those_of_the_router(chat):
    chat.chat(max_tokens=2)
    served = set(re.findall(r"^# TYPE (\S+)", chat.get("/metrics")[2].decode(), re.M))
    in_api, in_reference = (set(re.findall(r"^\| `(baton_router_\w+)`", (ROOT / "docs" / page).read_text(), re.M))
                            for page in ("api.md", "metrics.md"))
    assert {m for m in served if m.startswith("baton_router_")} <= in_reference
    sources = "".join(p.read_text() for p in ROOT.glob("router/*.c"))
    assert in_api <= in_reference & set(re.findall(r'"(baton_router_\w+)"', sources))


def test_every_error_code_of_the_router_is_documented():
    text = (ROOT / "docs/api.md").read_text()
    codes = set()
    for path in [*ROOT.glob("router/*.c"), *ROOT.glob("lib/llm/openai*.c")]:
        source = path.read_text()
        codes |= set(re.findall(r'openai_error_set\([^;]*?\b\d{3},\s*"(\w+)"', source, re.S))
        codes |= set(re.findall(r'\bfail\(\w+, \d{3},\s*"(\w+)"', source))
    assert len(codes) >= 10
    assert {c for c in codes if f"`{c}`" not in text} == set()


def test_every_field_of_requests_is_documented():
    text = (ROOT / "docs/api.md").read_text()
    table = (ROOT / "lib/llm/openai_parse.c").read_text()
    table = table[table.index("} members[] = {"):]
    fields = set(re.findall(r'^    \{"(\w+)", [^}]*\}', table, re.M))
    assert len(fields) > 30
    unnamed = {f for f in fields if f not in text}
    assert unnamed <= {"modalities"}, unnamed


def test_the_reference_of_custom_resources_is_fresh():
    r = subprocess.run([ROOT / "tools/crd-docs", "--check"], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr


def test_conditions_reasons_and_events_are_documented():
    text = "".join((ROOT / "docs" / p).read_text() for p in ("resources.md", "operations.md"))
    status = (ROOT / "lib/decide/reconcile_status.c").read_text()
    words = set(re.findall(r'"([A-Z][a-z]+(?:[A-Z][a-z]+)+|Accepted|Ready|Progressing|Settled|Updating|Draining|Scaling)"', status))
    words |= set(re.findall(r'reject\(r, "(\w+)"', (ROOT / "lib/decide/reconcile.c").read_text()))
    execute = (ROOT / "controller/execute.c").read_text()
    words |= set(re.findall(r'\{REC_\w+, "(\w+)"', execute)) | set(re.findall(r'"Warning", "(\w+)"', execute))
    launch = "".join(p.read_text() for p in ROOT.glob("agent/launch*.c"))
    words |= set(re.findall(r'worker_failed\(l, "(\w+)"', launch))
    assert len(words) > 25
    assert {w for w in words if f"`{w}`" not in text} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if not re.match(r"\w+:", target):
            assert os.path.exists(page.parent / target), f"{page.name}: {target}"
    for anchor in re.findall(r"\]\(#([^)]+)\)", text):
        heads = {re.sub(r"[^\w -]", "", h.lower()).strip().replace(" ", "-") for h in re.findall(r"^#+ (.+)$", text, re.M)}
        assert anchor in heads, f"{page.name}: #{anchor}"
