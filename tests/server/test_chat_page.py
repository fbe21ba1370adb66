"""The chat page, in a real browser."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator

import pytest
from browser import CHROMIUM, Page
from servers import serving

from edgelm_runtime.language_model import LanguageModel

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (apt-get install chromium)")


@pytest.fixture
def page() -> Iterator[Page]:
    with Page() as opened:
        yield opened


def ask(page: Page, text: str) -> None:
    page.type("#message", text)
    page.press_enter()


def test_a_conversation(page: Page, url: str, lm: LanguageModel) -> None:
    page.open(url)
    page.until("document.querySelector('#model').textContent === 'python'")
    assert page.run("document.querySelector('#context').textContent") == "512 tokens of context"
    page.click("#options")
    page.type("#system", "Be brief.")
    page.type("#max_tokens", "30")
    page.type("#seed", "5")
    page.type("#temperature", "0.7")
    ask(page, "Write a class.")
    page.until("document.querySelectorAll('.note').length")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Write a class."}]
    expected = lm.chat(messages, max_new_tokens=30, seed=5, temperature=0.7).text
    assert page.run("messages.at(-1)") == {"role": "assistant", "content": expected.strip()}
    note = page.run("document.querySelector('.note').textContent")
    assert note.startswith("cut off") and "30 tokens" in note
    ask(page, "And now a function.")
    page.until("document.querySelectorAll('.note').length === 2")
    assert [message["role"] for message in page.run("messages")] == ["user", "assistant"] * 2
    page.click("#new")
    assert page.run("messages.length + document.querySelectorAll('article').length") == 0
    assert not page.console


def test_streaming_and_stop(page: Page, lm: LanguageModel) -> None:
    with serving(lm) as url:
        page.open(url)
        ask(page, "Write a class.")
        page.until("running && document.querySelector('article.assistant').textContent.length > 20")
        page.click("#stop")
        page.until("!running")
        assert page.run("document.querySelector('.note').textContent") == "stopped"
        assert page.run("messages.length") == 2
        assert page.run("document.querySelector('#stop').hidden")
        end = time.monotonic() + 10
        while "edgelm_texts_active 0" not in urllib.request.urlopen(f"{url}/metrics").read().decode():
            assert time.monotonic() < end, "the slot is still held"
            time.sleep(0.02)


def test_an_error_is_shown_and_the_question_kept(page: Page, lm: LanguageModel) -> None:
    with serving(lm) as url:
        page.open(url)
        ask(page, "word " * 600)
        text = page.until("document.querySelector('.error')?.textContent")
        assert "tokens and the context 512" in text
        assert page.run("document.querySelector('#message').value").startswith("word word")
        page.run("document.querySelector('#message').value = ''")
    ask(page, "Hello?")
    page.until("document.querySelectorAll('.error').length === 2")
    assert (
        page.run("[...document.querySelectorAll('.error')].at(-1).textContent")
        == "The server cannot be reached."
    )
    assert page.run("[document.querySelector('#message').value, messages.length]") == ["Hello?", 0]


def test_html_of_the_model_is_text(page: Page, url: str) -> None:
    page.open(url)
    text = (
        "<img src=x onerror='window.broken = 1'> **bold** `<b>`\n\n```html\n<script>window.broken = 2</script>\n```\n"
        "[link](javascript:alert(1))"
    )
    page.run(f"show(add(document.querySelector('#log'), 'article'), {json.dumps(text)})")
    inside = "document.querySelector('article')"
    assert page.run(f"{inside}.querySelectorAll('img, script, a, b').length") == 0
    assert page.run(f"{inside}.querySelector('pre').textContent") == "<script>window.broken = 2</script>"
    assert page.run(f"[...{inside}.querySelectorAll('strong, p code')].map((e) => e.textContent)") == [
        "bold",
        "<b>",
    ]
    assert "<img src=x" in page.run(f"{inside}.textContent") and page.run("window.broken") is None
    # Were it parsed as HTML all the same, the policy would not run it.
    page.run("document.querySelector('#log').innerHTML = \"<img src=x onerror='window.broken = 3'>\"")
    page.until("document.querySelectorAll('#log img').length")
    assert page.run("new Promise((done) => setTimeout(() => done(window.broken ?? null), 200))") is None
    assert page.console  # the refusal


def test_the_page_loads_nothing_else(page: Page, url: str) -> None:
    page.open(url)
    page.until("document.querySelector('#context').textContent")
    names = page.run("performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert set(names) <= {f"{url}/v1/models", "data:,"}
