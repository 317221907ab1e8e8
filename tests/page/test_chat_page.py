"""The router's chat page at / in a real browser (Debian's Chromium), answered by real workers."""
import json
import re
import shutil
import time

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import browser
from browser import Page
from conftest import wait_for


@pytest.fixture(scope="module")
def driver():
    d, profile = browser.start()
    yield d
    d.quit()
    shutil.rmtree(profile, ignore_errors=True)


@pytest.fixture(scope="module")
def pd(fleet_module):
    """One prefill and one decode worker; every prompt goes through both."""
    return fleet_module(prefill=1, decode=1, policy="always")


@pytest.fixture
def page(driver, pd):
    p = Page(driver, pd.url)
    p.size(1100)
    p.scheme("light")
    p.open(max=48, temperature=0)
    p.wait_models(pd.model)
    return p


def test_it_loads_without_errors_and_shows_model_and_workers(page, pd):
    assert page.d.title == "Baton"
    wait_for(lambda: page.fleet() == "1 prefill, 1 decode ready", 15, message="the workers are counted")
    assert page.d.switch_to.active_element == page.id("prompt"), "one can type at once"
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        page.picture(f"hello-{scheme}")
    assert page.console() == []


def test_nothing_is_fetched_from_elsewhere(page, pd):
    urls = page.d.execute_script("return performance.getEntriesByType('resource').map(r => r.name)")
    assert urls and all(u.startswith(pd.url + "/") for u in urls), urls
    assert not re.search(r'(src|href)="(https?:)?//', page.d.page_source)


def test_a_question_streams_the_answer_that_the_api_gives_from_two_workers(page, pd):
    question = "Name three colours of the rainbow."
    page.d.execute_script("""
        window.seen = [];
        new MutationObserver(() => {
          const t = [...document.querySelectorAll('article.assistant .text')].pop();
          if (t && seen[seen.length - 1] !== t.textContent) seen.push(t.textContent);
        }).observe(document.getElementById('log'), {childList: true, subtree: true, characterData: true});""")
    page.ask(question)
    page.wait_answered()
    status, _, body = pd.chat(question, temperature=0, max_tokens=48)
    assert status == 200
    plain = body["choices"][0]["message"]["content"].replace("**", "").replace("`", "")
    assert page.answer() == plain and len(plain) > 10
    seen = page.d.execute_script("return window.seen")
    assert len(seen) >= 5, f"it appeared in {len(seen)} steps"
    assert page.articles("user")[-1].text == question
    facts = page.facts()
    assert facts["prefill"] == "prefill-0" and facts["decode"] == "decode-0", facts
    assert re.fullmatch(r"[0-9.]+ (KiB|MiB)", facts["KV moved"]), facts
    assert facts["tokens"] == f"{body['usage']['prompt_tokens']} in, {body['usage']['completion_tokens']} out"
    assert "tokens/s" in facts["speed"] and "ms" in facts["first token"]
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        page.picture(f"answer-{scheme}")
    assert page.console() == []


def test_the_second_question_sees_the_first(page, pd):
    page.ask("My name is Ada.")
    page.wait_answered()
    first = page.answer()
    page.ask("What is my name?")
    page.wait_answered()
    history = [{"role": "user", "content": "My name is Ada."}, {"role": "assistant", "content": first},
               {"role": "user", "content": "What is my name?"}]
    status, _, body = pd.post("/v1/chat/completions", {"model": pd.model, "messages": history, "temperature": 0, "max_tokens": 48})
    assert status == 200 and "**" not in first and "`" not in first
    assert page.answer() == body["choices"][0]["message"]["content"].replace("**", "").replace("`", "")
    page.id("clear").click()
    assert not page.articles("user") and page.id("hello").is_displayed()


def test_code_and_bold_are_shown_and_markup_is_not_run(page):
    html = page.d.execute_script("""
        const d = document.createElement('div');
        d.append(...formatted('a **b** `c` <img src=x onerror="window.bad=1">\\n```py\\nx = 1 < 2\\n```\\nend'));
        return d.innerHTML;""")
    assert html.startswith("a <b>b</b> <code>c</code> &lt;img ") and "<pre><code>x = 1 &lt; 2</code></pre>" in html
    assert page.d.execute_script("return window.bad") is None


def test_the_stop_button_stops_and_frees_the_workers_within_a_second(page, pd):
    page.set(max=1500)
    page.ask("Write a very long story about a ship, with many chapters.")
    wait_for(lambda: len(page.answer()) > 20, 60, message="the answer began")
    assert not page.id("send").is_displayed()
    page.id("stop").click()
    pd.wait_idle(1)
    wait_for(lambda: not page.busy(), 2, message="the page sees the stop")
    stopped = page.answer()
    assert "Stopped." in page.articles("assistant")[-1].text
    assert page.id("send").is_displayed() and not page.id("stop").is_displayed()
    time.sleep(0.5)
    assert page.answer() == stopped, "nothing comes after the stop"
    page.set(max=8)
    page.ask("Say hello.")
    page.wait_answered()
    assert page.answer() and page.error() == "", "the page goes on after a stop"
    assert page.console() == []


def test_the_limit_of_tokens_is_named(page):
    page.set(max=3)
    page.ask("Count from one to one hundred.")
    page.wait_answered()
    assert "limit of tokens" in page.articles("assistant")[-1].text


def test_a_new_chat_while_an_answer_streams_ends_that_answer(page, pd):
    page.set(max=1500)
    page.ask("Write a very long story about a train, with many chapters.")
    wait_for(lambda: page.answer(), 60, message="the answer began")
    page.id("clear").click()
    pd.wait_idle(1)
    page.set(max=8)
    page.ask("Say hello.")
    page.wait_answered()
    assert len(page.articles("user")) == len(page.articles("assistant")) == 1
    assert page.d.execute_script("return messages.length") == 2


def focused(page):
    return page.d.switch_to.active_element.get_attribute("id") or page.d.switch_to.active_element.tag_name


def press(page, *keys, holding=None):
    a = ActionChains(page.d)
    a = a.key_down(holding).send_keys(*keys).key_up(holding) if holding else a.send_keys(*keys)
    a.perform()


def test_keyboard_alone_is_enough(page, pd):
    """Everything is reached by Tab in a sensible order; Enter sends, Shift+Enter breaks the line, Escape stops."""
    press(page, "One line")
    press(page, Keys.ENTER, holding=Keys.SHIFT)
    press(page, "and another")
    assert page.id("prompt").get_attribute("value") == "One line\nand another" and not page.articles("user")
    page.set(max=1500)
    press(page, Keys.ENTER)
    wait_for(lambda: page.answer(), 60, message="the answer began")
    assert focused(page) == "stop"
    press(page, Keys.ESCAPE)
    wait_for(lambda: not page.busy(), 2, message="Escape stops")
    pd.wait_idle(1)
    assert focused(page) == "prompt", "and one can type on"
    page.set(max=1500)
    press(page, "Go on.", Keys.ENTER)
    wait_for(lambda: focused(page) == "stop", 5)
    wait_for(lambda: page.answer(), 60, message="the answer began")
    press(page, Keys.ENTER)
    wait_for(lambda: not page.busy(), 2, message="Enter on Stop stops")

    order = []
    page.d.execute_script("document.activeElement.blur(); window.getSelection().removeAllRanges(); document.body.tabIndex = -1; document.body.focus()")
    for _ in range(12):
        press(page, Keys.TAB)
        order.append(focused(page))
    wanted = ["model", "summary", "clear", "prompt", "send"]
    at = [order.index(w) for w in wanted]
    assert at == sorted(at), order
    page.d.execute_script("document.querySelector('summary').focus()")
    press(page, Keys.ENTER)
    assert page.id("temperature").is_displayed(), "Enter opens the settings"
    press(page, Keys.TAB, Keys.TAB)
    assert focused(page) == "max"
    page.picture("settings")
    press(page, "a", holding=Keys.CONTROL)
    press(page, "7", Keys.ESCAPE)
    assert not page.id("temperature").is_displayed() and page.id("max").get_attribute("value") == "7"
    assert focused(page) == "prompt"


def test_every_control_has_a_name_and_answers_are_announced(page):
    unnamed = page.d.execute_script("""
        return [...document.querySelectorAll('button, select, input, textarea, summary')].filter(e =>
          !(e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && e.labels.length))).map(e => e.outerHTML)""")
    assert unnamed == []
    page.set(max=8)
    page.ask("Say hello.")
    page.wait_answered()
    assert page.id("status").get_attribute("aria-live") == "polite"
    assert page.id("status").get_attribute("textContent").startswith("Answer: ")


CONTRAST = """
const lum = c => { const [r, g, b] = c.match(/[0-9.]+/g).slice(0, 3).map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
                   return .2126 * r + .7152 * g + .0722 * b; };
const back = e => { for (; e; e = e.parentElement) { const b = getComputedStyle(e).backgroundColor;
                    if (!/rgba\\(0, 0, 0, 0\\)|transparent/.test(b)) return b; } return 'rgb(255, 255, 255)'; };
return [...document.querySelectorAll('.text, .facts li, .facts b, .note, #fleet, #model, summary, button, .hello b, .hello')]
  .filter(e => e.offsetParent).map(e => { const a = lum(getComputedStyle(e).color), b = lum(back(e));
    return [e.className || e.id || e.tagName, (Math.max(a, b) + .05) / (Math.min(a, b) + .05)]; });
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(page, scheme):
    page.scheme(scheme)
    page.set(max=4)
    page.ask("Say hello.")
    page.wait_answered()
    ratios = page.d.execute_script(CONTRAST)
    assert len(ratios) > 10
    weak = [r for r in ratios if r[1] < 4.5]
    assert weak == [], "contrast below 4.5 (WCAG AA)"
    background = page.d.execute_script("return getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, re.findall(r"\d+", background)[:3])) > 384
    assert light == (scheme == "light"), background


def test_it_is_usable_on_a_screen_of_375_pixels(page):
    page.size(375, 667)
    page.open(max=24, temperature=0)
    wait_for(lambda: page.models(), 30)
    page.picture("phone-hello")
    page.ask("What is the capital of France? Answer in one sentence.")
    page.wait_answered()
    page.picture("phone-answer")
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        page.picture(f"phone-{scheme}")
    page.d.find_element(By.TAG_NAME, "summary").click()
    page.picture("phone-settings")
    box = page.d.execute_script("""
        const out = {width: document.documentElement.scrollWidth, inside: {}};
        for (const id of ['model', 'clear', 'prompt', 'send', 'temperature', 'max', 'key']) {
          const r = document.getElementById(id).getBoundingClientRect();
          out.inside[id] = [r.left, r.top, r.right, r.bottom, r.width];
        }
        return out;""")
    assert box["width"] <= 375, "no sideways scrolling"
    for name, (left, top, right, bottom, width) in box["inside"].items():
        assert left >= 0 and right <= 375 and top >= 0 and bottom <= 667 and width >= 40, (name, box)
    assert box["inside"]["prompt"][4] >= 220, "room to type"
    assert page.articles("assistant")[-1].rect["width"] <= 375
    assert page.console() == []


def test_a_wrong_request_shows_the_routers_sentence(page, pd):
    page.set(max=100000)
    page.ask("Say hello.")
    page.wait_answered()
    assert "maximum context length" in page.error()
    page.set(max=8)
    page.d.find_element(By.CSS_SELECTOR, "article .error button").click()
    page.wait_answered()
    assert page.answer() and page.error() == "" and len(page.articles("user")) == 1


def test_an_api_key_is_asked_for_and_sent(driver, fleet):
    f = fleet(unified=1, policy="never", router_args=["--api-keys", "a-key"])
    p = Page(driver, f.url)
    p.size(1100)
    p.open()
    wait_for(lambda: "API key" in p.fleet(), 15, message="the page says that a key is needed")
    assert p.models() == []
    p.set(key="a-key", max=8)
    p.wait_models(f.model)
    p.ask("Say hello.")
    p.wait_answered()
    facts = p.facts()
    assert facts["served by"] == "unified-0" and "KV moved" not in facts, facts


def test_a_router_that_is_down_is_a_clear_error_and_its_return_is_seen(driver, fleet):
    f = fleet(unified=1, policy="never")
    p = Page(driver, f.url)
    p.size(1100)
    p.scheme("light")
    p.open(max=1500)
    p.wait_models(f.model)
    p.ask("Write a very long story about a lighthouse.")
    wait_for(lambda: len(p.answer()) > 20, 60, message="the answer began")
    f.router.kill()
    p.wait_answered(10)
    assert p.error() == "The connection to the router was lost."
    wait_for(lambda: p.fleet() == "The router doesn't answer. Is it running?", 15, message="the page says so by itself")
    p.ask("Are you there?")
    p.wait_answered(10)
    assert p.error() == "The router doesn't answer. Is it running?"
    p.picture("router-down")
    f.start_router()
    wait_for(lambda: p.fleet() == "1 unified ready", 15, message="the page sees the router again")
    p.set(max=8)
    p.d.find_elements(By.CSS_SELECTOR, "article .error button")[-1].click()
    p.wait_answered()
    assert p.answer() and json.dumps(p.facts())
    assert [m["role"] for m in p.d.execute_script("return messages")] == ["user", "assistant"], "what failed is not in the conversation"
