"""The loop: batches, endings, the context's end, interruption, streaming."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fakes import RandomDecoder, ScriptedDecoder, pieces_text
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelm_runtime import (
    ContextWarning,
    Limits,
    NumericsError,
    OptionError,
    Piece,
    Sampling,
    Stats,
    byte_tokenizer,
    generate_ids,
)
from edgelm_runtime.generation.loop import run
from edgelm_runtime.generation.sampler import Sampler
from edgelm_runtime.generation.sequence import Row

VOCAB = 12
BYTES = byte_tokenizer()


def stream(
    decoder: Any,
    prompts: list[list[int]],
    sampling: dict[str, Any] | None = None,
    end_ids: tuple[int, ...] = (),
    n: int = 1,
    stats: Stats | None = None,
    **limits: Any,
) -> Iterator[Piece]:
    """The pieces of a batch, `n` samples of each prompt."""
    made = Limits(**limits)
    rows = [
        Row(prompt, Sampler(Sampling(**(sampling or {})), sample), made, end_ids, BYTES, index * n + sample)
        for index, prompt in enumerate(prompts)
        for sample in range(n)
    ]
    return run(decoder, rows, made, stats)


def ids_of(pieces: list[Piece], row: int = 0) -> list[int]:
    return [p.token_id for p in pieces if p.row == row and p.token_id is not None]


@pytest.mark.filterwarnings("ignore::edgelm_runtime.ContextWarning")
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=25), min_size=1, max_size=5),
    st.fixed_dictionaries(
        {"seed": st.integers(0, 9), "temperature": st.sampled_from([0.0, 1.0])},
        optional={"top_p": st.just(0.8), "repeat_penalty": st.just(1.2)},
    ),
    st.sampled_from([0, 3, "auto"]),
    st.integers(1, 3),
)
def test_a_batch_gives_what_each_prompt_alone_gives(
    prompts: list[list[int]], sampling: dict[str, Any], lookup: Any, n: int
) -> None:
    decoder = RandomDecoder(VOCAB, noise=0.3)
    common: dict[str, Any] = {"end_ids": (0,), "lookup": lookup, "max_new_tokens": 25, "stop": ["\x01\x02"]}
    together = list(stream(decoder, prompts, sampling, n=n, **common))
    for index, prompt in enumerate(prompts):
        alone = list(stream(decoder, [prompt], sampling, n=n, **common))
        for sample in range(n):
            row = index * n + sample
            assert ids_of(together, row) == ids_of(alone, sample)
            mine = [p for p in together if p.row == row]
            own = [p for p in alone if p.row == sample]
            assert pieces_text(mine) == pieces_text(own)
            assert mine[-1].finish_reason == own[-1].finish_reason
            assert [p for p in mine[:-1] if p.finish_reason] == []


def test_samples_of_one_prompt_differ_and_each_is_reproducible() -> None:
    decoder = RandomDecoder(VOCAB, noise=2.0)
    chosen = {"temperature": 1.0, "seed": 5}
    pieces = list(stream(decoder, [[1]], chosen, n=3, max_new_tokens=12))
    samples = [tuple(ids_of(pieces, row)) for row in range(3)]
    assert len(set(samples)) == 3
    alone = ids_of(list(stream(decoder, [[1]], chosen, max_new_tokens=12)))
    assert alone == list(samples[0])


def test_rows_that_are_finished_leave_the_batch() -> None:
    decoder = RandomDecoder(VOCAB)
    list(stream(decoder, [[1], [2], [3]], {"forced_tokens": [4, 4]}, (5,), max_new_tokens=2, lookup=0))
    assert decoder.passes == [3, 3]
    script = ScriptedDecoder([9, 9, 9, 5, 9, 9, 9, 9])
    list(stream(script, [[9], [9, 9, 9, 9]], None, (5,), max_new_tokens=4, lookup=0))
    assert [len(lengths) for lengths in script.windows] == [2, 2, 2, 1]


SCRIPT = list(b"0123456789 and so on, and so on")


@pytest.mark.parametrize(
    ("limits", "end_ids", "text", "reason"),
    [
        ({"max_new_tokens": 4}, (), "1234", "length"),
        ({"max_new_tokens": 0}, (), "", "length"),
        ({"max_new_tokens": 9}, (ord("5"),), "1234", "end"),
        ({"max_new_tokens": 9}, (ord("7"), ord("3")), "12", "end"),
        ({"max_new_tokens": 9, "stop": ["56", "4567"]}, (), "1234", "stop"),
        ({"max_new_tokens": 9, "stop": ["56", "45"]}, (), "123", "stop"),
        ({"max_new_tokens": 5, "stop": ["56"]}, (), "12345", "length"),
        ({"max_new_tokens": 9, "stop": ["x", "9 z"]}, (), "123456789", "length"),
        ({"max_new_tokens": 9, "stop": ["9 z"]}, (ord("5"),), "1234", "end"),
    ],
)
@pytest.mark.parametrize("lookup", [0, "auto"])
def test_endings(
    limits: dict[str, Any], end_ids: tuple[int, ...], text: str, reason: str, lookup: Any
) -> None:
    decoder = ScriptedDecoder(SCRIPT)
    pieces = list(stream(decoder, [SCRIPT[:1]], None, end_ids, lookup=lookup, **limits))
    assert pieces_text(pieces) == text
    assert [p.finish_reason for p in pieces] == [None] * (len(pieces) - 1) + [reason]


def test_whole_characters_only_and_what_is_left_once() -> None:
    text = "a\u20acb\u20ac"
    script = [0, *text.encode()]
    pieces = list(stream(ScriptedDecoder(script), [[0]], max_new_tokens=7))
    assert [p.text for p in pieces] == ["a", "", "", "\u20ac", "b", "", "\ufffd"]


@pytest.mark.parametrize(
    ("overflow", "prompt_length", "made", "reason"),
    [
        ("slide", 3, 9, "length"),
        ("stop", 3, 5, "context"),
        ("stop", 8, 0, "context"),
        ("stop", 9, 0, "context"),
    ],
)
@pytest.mark.filterwarnings("ignore::edgelm_runtime.ContextWarning")
def test_the_end_of_the_context(overflow: str, prompt_length: int, made: int, reason: str) -> None:
    decoder = RandomDecoder(VOCAB, context_length=8)
    pieces = list(stream(decoder, [[1] * prompt_length], max_new_tokens=9, overflow=overflow))
    assert len(ids_of(pieces)) == made
    assert pieces[-1].finish_reason == reason


def test_overflow_error_is_raised_before_the_first_token_and_only_where_needed() -> None:
    decoder = RandomDecoder(VOCAB, context_length=8)
    with pytest.raises(OptionError, match="3 tokens and 6 new"):
        next(stream(decoder, [[1], [1] * 3], max_new_tokens=6, overflow="error"))
    assert decoder.passes == []
    assert len(list(stream(decoder, [[1] * 3], max_new_tokens=5, overflow="error"))) == 5


def test_sliding_says_what_is_left_out() -> None:
    decoder = RandomDecoder(VOCAB, context_length=8)
    with pytest.warns(ContextWarning, match="prompt has 10 tokens and the model sees 8: the first 2"):
        list(stream(decoder, [[1] * 10], max_new_tokens=2))
    with pytest.warns(ContextWarning, match="context of 8 tokens is full") as caught:
        list(stream(decoder, [[1] * 3], max_new_tokens=20))
    assert len(caught) == 1


def test_the_last_window_is_what_the_model_sees() -> None:
    """Eight tokens of context: the ids equal a loop written out by hand."""
    decoder = RandomDecoder(VOCAB, context_length=8)
    text = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    for _ in range(10):
        text.append(int(decoder([np.array(text[-8:])], [1])[0][0].argmax()))
    with pytest.warns(ContextWarning):
        assert generate_ids(decoder, [3, 1, 4, 1, 5, 9, 2, 6, 5], max_new_tokens=10) == text[9:]


def test_a_text_can_be_cancelled_from_another_thread() -> None:
    cancel, seen = threading.Event(), threading.Event()
    found: list[Piece] = []

    def consume() -> None:
        for piece in stream(
            ScriptedDecoder(SCRIPT), [[0]], max_new_tokens=10**6, cancel=cancel, stop=["5 6"]
        ):
            found.append(piece)
            seen.set()

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    assert seen.wait(10)
    cancel.set()
    thread.join(10)
    assert not thread.is_alive()
    assert found[-1].finish_reason == "cancelled" and found[-1].token_id is None


def test_no_pass_starts_after_max_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    pieces = []
    for piece in stream(ScriptedDecoder(SCRIPT), [[0]], max_new_tokens=50, max_time=2.5):
        pieces.append(piece)
        now[0] += 1
    assert [p.finish_reason for p in pieces] == [None, None, None, "time"]


def test_on_token_sees_every_piece_and_its_errors_come_through() -> None:
    seen: list[Piece] = []
    pieces = list(stream(ScriptedDecoder(SCRIPT), [[0]], max_new_tokens=4, on_token=seen.append))
    assert seen == pieces

    def fail(piece: Piece) -> None:
        raise KeyError(piece.token_id)

    with pytest.raises(KeyError):
        list(stream(ScriptedDecoder(SCRIPT), [[0]], on_token=fail))


def test_logprobs_belong_to_the_model_and_not_to_the_options() -> None:
    decoder = RandomDecoder(VOCAB)
    pieces = list(stream(decoder, [[1, 2]], {"banned_tokens": [0, 1, 2]}, logprobs=3, max_new_tokens=6))
    text = [1, 2]
    for piece in pieces:
        logits = decoder([np.array(text)], [1])[0][0].astype(float)
        exact = logits - np.log(np.exp(logits).sum())
        assert piece.token_id is not None
        assert piece.logprob == pytest.approx(exact[piece.token_id], abs=1e-6)
        assert [i for i, _ in piece.top_logprobs] == np.argsort(-exact)[:3].tolist()
        text.append(piece.token_id)


def test_an_end_token_has_a_logprob_too() -> None:
    decoder = ScriptedDecoder([1, 2, 3, 4, 5, 6] * 10)
    *_, last = stream(decoder, [[0]], end_ids=(4,), logprobs=1)
    assert (last.token_id, last.end_id, last.finish_reason) == (None, 4, "end")
    assert last.logprob is not None and last.top_logprobs == ((4, last.logprob),)


def test_stats_count_what_happened() -> None:
    stats = Stats()
    script = [1, 2, 3, 4, 5, 6] * 10
    list(
        stream(ScriptedDecoder(script), [script[:12], script[:13]], lookup=5, max_new_tokens=12, stats=stats)
    )
    assert (stats.prompt_tokens, stats.tokens, stats.passes) == (25, 24, 2)
    assert (stats.drafted, stats.accepted, stats.accept_rate) == (20, 20, 1.0)
    assert 0 < stats.first_token_seconds <= stats.seconds
    assert all(type(value) in (int, float) for value in vars(stats).values())


def test_broken_logits_name_the_place() -> None:
    class Broken(ScriptedDecoder):
        def _logits(self, length: int, count: int) -> Any:
            logits = super()._logits(length, count)
            return logits * np.nan if length > 3 else logits

    made: list[Piece] = []
    with pytest.raises(NumericsError, match="token 4 "):
        for piece in stream(Broken(SCRIPT), [[0]]):
            made.append(piece)
    assert len(made) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_new_tokens": -1}, {"max_new_tokens": 1.5}, {"max_new_tokens": None}, {"max_time": 0},
        {"max_time": "1"}, {"max_time": float("nan")}, {"stop": "text"}, {"stop": [""]}, {"stop": [1]},
        {"overflow": "wrap"}, {"lookup": -1}, {"lookup": "always"}, {"lookup": True}, {"logprobs": -1},
        {"logprobs": True}, {"cancel": True}, {"on_token": 1},
    ],
)  # fmt: skip
def test_a_wrong_limit_is_named_with_its_value(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        Limits(**wrong)
    assert next(iter(wrong)) in str(caught.value).replace("stop string", "stop") and caught.value.remedy


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "empty"),
        ([12], {}, "12 is outside the vocabulary of 12"),
        ([-1], {}, "-1 is outside"),
        ([1.0], {}, "float64"),
        ([True], {}, "bool"),
        (["a"], {}, "U1"),
        ([[1, 2]], {}, "shape"),
        ([[1], [2, 3]], {}, "nested"),
        (5, {}, "shape"),
        (None, {}, "shape"),
        ([1], {"temprature": 1}, "unknown option 'temprature'"),
        ([1], {"forced_tokens": [12]}, "12 is outside"),
        ([1], {"logit_bias": {99: 1}}, "99 is outside"),
        ([1], {"reference": [1, 40]}, "40 is outside"),
        ([1], {"stop": ["a"]}, "tokenizer"),
        ([1], {"banned_tokens": list(range(12))}, "forbid every token"),
    ],
)
def test_wrong_input_is_named(prompt: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        generate_ids(RandomDecoder(VOCAB), prompt, **options)
