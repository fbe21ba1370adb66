"""The public interface gives a result or raises EdgelmError, whatever it is given."""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import CACHED, CHAT, FOREIGN, TINY, RandomDecoder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import edgelm_runtime
from edgelm_runtime import (
    Conversation,
    EdgelmError,
    Limits,
    Sampling,
    Tokenizer,
    byte_tokenizer,
    generate_ids,
    load,
    load_tokenizer,
    verify,
)
from edgelm_runtime.generation.options import OPTIONS
from edgelm_runtime.reports.benchmark import benchmark
from edgelm_runtime.reports.describe import describe


class Strange:
    """An object that answers no question about itself."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


SIMPLE = [
    None, True, False, 0, 1, -1, 2, 5, 10**6, 2**31, 2**63, 2**64, -(2**64), 10**400, 0.0, 0.5, -0.0, 1.5,
    -2.5, 1e308, math.nan, math.inf, -math.inf, 1j, "", "a", "auto", "all", "none", "the thing", "a\0b",
    "\ud800", "x" * 300, b"", b"abc", bytearray(b"x"), Ellipsis, object(), Strange(), int, len,
    Path("nowhere"), (), [], {}, set(), frozenset(), range(0), range(3), slice(1), iter([]), np.int64(3),
    np.float32("nan"), np.bool_(True), np.str_("a"), np.array([]), np.array(3), np.array([1, 2]),
    np.array([[1, 2]]), np.array([0.5]), np.array(["a"]), np.array([None]), np.array([2**63], np.uint64),
    np.zeros((2, 0)), np.datetime64("2020-01-01"), threading.Event(), [{"role": "user", "content": "a"}],
    [{"role": "user"}], [{"role": 1, "content": 2}], [{}], {"role": "user", "content": "a"},
    {"a": math.nan}, {1: 2}, {-1: 1.0}, {2**70: 1.0}, {"type": "object"}, [[]], [[1, 2], [3]], [1, "a"],
    ["a", 1], [1, None], [2**70], [math.nan], [1.0], [True], ["", ""], ["a", "b"], [b"a"], [[["a"]]],
    [Strange()], "(", "[a-z]+", 1000,
]  # fmt: skip
JUNK = st.sampled_from(SIMPLE) | st.lists(st.sampled_from(SIMPLE[:40]), max_size=3)
QUICK = {"max_new_tokens": 2}


def once(call: Callable[[], Any]) -> None:
    """A result, or an EdgelmError with a message of one line."""
    try:
        result = call()
        if isinstance(result, Iterator):
            for _ in zip(result, range(3), strict=False):
                pass
    except EdgelmError as error:
        assert "\n" not in str(error) and len(str(error)) < 2000, str(error)


def some(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Junk for a few of the arguments `names`."""
    return st.dictionaries(st.sampled_from(names), JUNK, max_size=2)


def quickly(options: dict[str, Any]) -> dict[str, Any]:
    """Few tokens, unless what is tried is their number."""
    asked = options.get("max_new_tokens", 0)
    if isinstance(asked, int) and asked > 5:
        options = {**options, "max_new_tokens": 5}
    return {**QUICK, **options}


@pytest.fixture(scope="module", params=[CHAT, CACHED], ids=lambda path: path.stem)
def lm(request: pytest.FixtureRequest) -> Iterator[edgelm_runtime.LanguageModel]:
    with load(request.param, "cpu", 1) as lm:
        yield lm


ANY = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@ANY
@given(
    prompt=JUNK,
    options=some(sorted({*OPTIONS, "n", "unknown"})),
    method=st.sampled_from(["generate", "stream"]),
)
def test_generating(lm: Any, prompt: Any, options: dict[str, Any], method: str) -> None:
    if isinstance(options.get("n"), int) and options["n"] >= 5:
        options["n"] = 2  # as many as asked for is right, and takes as long
    once(lambda: getattr(lm, method)(prompt, **quickly(options)))


@ANY
@given(messages=JUNK, options=some(sorted(OPTIONS)), method=st.sampled_from(["chat", "stream_chat"]))
def test_chatting(lm: Any, messages: Any, options: dict[str, Any], method: str) -> None:
    once(lambda: getattr(lm, method)(messages, **quickly(options)))
    once(lambda: lm.chat_prompt(messages))


@ANY
@given(data=st.data(), method=st.sampled_from(["logits", "score", "embed", "encode_prompt"]))
def test_reading(lm: Any, data: st.DataObject, method: str) -> None:
    call = getattr(lm, method)
    names = list(inspect.signature(call).parameters)
    options = data.draw(some(names[1:])) if len(names) > 1 else {}
    given = data.draw(JUNK)
    once(lambda: call(given, **options))


@ANY
@given(system=JUNK, text=JUNK, options=some(sorted(OPTIONS)))
def test_conversations(lm: Any, system: Any, text: Any, options: dict[str, Any]) -> None:
    def talk() -> None:
        conversation = Conversation(lm, system)
        for _ in conversation.ask(text, **quickly(options)):
            pass
        conversation.reset()

    once(talk)


@ANY
@given(
    path=JUNK | st.sampled_from([TINY, str(CACHED), FOREIGN, TINY.read_bytes()]),
    options=some(["provider", "threads", "decode", "tokenizer", "context_length"]),
)
def test_loading(path: Any, options: dict[str, Any]) -> None:
    def use() -> None:
        with load(path, **options):
            pass

    once(use)
    once(lambda: verify(path, *list(options.values())[:2]))
    once(lambda: describe(path))


@ANY
@given(paths=JUNK, options=some(["provider", "threads", "decode", "prefill", "contexts", "steps", "rounds"]))
def test_benchmarks(paths: Any, options: dict[str, Any]) -> None:
    once(lambda: benchmark(paths, **options))


@ANY
@given(source=JUNK, text=JUNK, allowed=JUNK, ids=JUNK)
def test_tokenizers(source: Any, text: Any, allowed: Any, ids: Any) -> None:
    tokenizer = byte_tokenizer()
    once(lambda: load_tokenizer(source))
    once(lambda: tokenizer.encode(text, allowed))
    once(lambda: tokenizer.decode(ids))
    once(lambda: tokenizer.decode_bytes(ids, skip_special=True))
    once(lambda: Tokenizer.from_dict(source))


@ANY
@given(
    options=some(
        [name for name in inspect.signature(Tokenizer.__init__).parameters if name not in ("self", "tokens")]
    ),
    tokens=JUNK,
)
def test_making_tokenizers(options: dict[str, Any], tokens: Any) -> None:
    once(lambda: Tokenizer(tokens, **options))
    once(lambda: Tokenizer([bytes([byte]) for byte in range(256)], **options))


@ANY
@given(
    ids=JUNK,
    sampling=some(list(Sampling.__dataclass_fields__)),
    limits=some(list(Limits.__dataclass_fields__)),
)
def test_the_loop(ids: Any, sampling: dict[str, Any], limits: dict[str, Any]) -> None:
    once(lambda: Sampling(**sampling))
    once(lambda: Limits(**limits))
    once(lambda: generate_ids(RandomDecoder(), ids, **quickly({**sampling, **limits})))
