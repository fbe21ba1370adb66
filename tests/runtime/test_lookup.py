"""Drafts, and that they never change a token: the loop with lookup against the loop without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fakes import RandomDecoder, ScriptedDecoder
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelm_runtime import Limits, Sampling, Stats, byte_tokenizer
from edgelm_runtime.generation.loop import run
from edgelm_runtime.generation.prompt_lookup import DraftLength, draft
from edgelm_runtime.generation.sampler import Sampler
from edgelm_runtime.generation.sequence import Row

VOCAB = 12
BYTES = byte_tokenizer()


def ids(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int64)


@pytest.mark.parametrize(
    ("text", "reference", "most", "expected"),
    [
        ("the cat, the", None, 5, " cat,"),
        ("1 abx 2 abx 3 ab", None, 3, "x 3"),  # of equal matches the most recent
        ("9abcX abY abc", None, 2, "X "),  # the longest before the most recent
        ("ababab", None, 5, "ababa"),  # a period goes on
        ("xxxx", None, 3, "xxx"),
        ("no such thing!", None, 4, ""),
        ("a1xa2ya", None, 4, ""),  # one token alone is no match
        ("say he", "when hello there", 4, "llo "),
        ("the cat, the", "the dog", 4, " cat"),  # the text before the reference, at equal length
        ("the cat, a the", "or a the dog", 4, " dog"),
        ("end", "the end", 4, ""),  # nothing follows
        ("x", None, 4, ""),
    ],
)
def test_drafts(text: str, reference: str | None, most: int, expected: str) -> None:
    found = draft(ids(text), most, ids(reference) if reference is not None else None)
    assert bytes(found.astype(np.uint8)).decode() == expected


def test_draft_length_grows_with_success_and_is_bounded_by_what_may_be_wasted() -> None:
    length = DraftLength(10)
    assert length.next() == 0  # nothing is known yet of what a pass costs
    for _ in range(4):
        length.update(50, 0, 0)
    for expected in (4, 8, 10, 10):
        assert length.next() == expected
        length.update(50, length.next(), length.next())
    length.update(50, 10, 3)
    assert length.next() == 6
    drafted = 0
    for _ in range(2000):  # nothing is ever accepted again
        now = length.next()
        drafted += now
        length.update(50, now, 0)
    assert drafted <= 50 + 0.02 * 50 * 2000
    fixed = DraftLength(7, fixed=True)
    fixed.update(1, 7, 0)
    assert fixed.next() == 7


def generate(decoder: RandomDecoder, prompt: list[int], lookup: Any, **options: Any) -> tuple[Any, Stats]:
    """Token ids, pieces and counts of one text over the byte tokenizer."""
    sampling = {name: value for name, value in options.items() if name in Sampling.__dataclass_fields__}
    limits = Limits(
        lookup=lookup, **{k: v for k, v in options.items() if k not in {*sampling, "end_ids", "sample"}}
    )
    sampler = Sampler(Sampling(**sampling), options.get("sample", 0))
    row = Row(prompt, sampler, limits, options.get("end_ids", ()), BYTES)
    stats = Stats()
    pieces = [(p.text, p.token_id, p.finish_reason) for p in run(decoder, [row], limits, stats)]
    return (row.new_ids, pieces, row.finish_reason), stats


options = st.fixed_dictionaries(
    {"max_new_tokens": st.integers(0, 60), "seed": st.integers(0, 99)},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 1.0]),
        "top_k": st.integers(0, VOCAB),
        "top_p": st.sampled_from([0.3, 0.9]),
        "repeat_penalty": st.sampled_from([1.1, 0.8]),
        "repeat_last_n": st.integers(-1, 30),
        "frequency_penalty": st.sampled_from([-0.2, 0.2]),
        "stop": st.lists(st.text("".join(map(chr, range(VOCAB))), min_size=1, max_size=4), max_size=2),
        "end_ids": st.lists(st.integers(0, VOCAB - 1), max_size=2),
        "banned_tokens": st.lists(st.integers(0, VOCAB - 1), max_size=3),
        "forced_tokens": st.lists(st.integers(0, VOCAB - 1), max_size=5),
        "overflow": st.sampled_from(["slide", "stop"]),
        "reference": st.lists(st.integers(0, VOCAB - 1), max_size=30),
        "sample": st.integers(0, 2),
    },
)


@pytest.mark.filterwarnings("ignore::edgelm_runtime.ContextWarning")
@settings(max_examples=250, deadline=None)
@given(
    options,
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30),
    st.integers(0, 50),
    st.sampled_from([0.0, 0.3, 2.0]),
    st.integers(3, 70),
)
def test_lookup_changes_no_token(
    chosen: dict[str, Any], prompt: list[int], seed: int, noise: float, context_length: int
) -> None:
    decoder = RandomDecoder(VOCAB, context_length, seed, noise)
    plain, plain_stats = generate(decoder, prompt, 0, **chosen)
    for lookup in ("auto", 1, 5):
        found, stats = generate(decoder, prompt, lookup, **chosen)
        assert found == plain
        assert stats.passes <= plain_stats.passes
        assert 0 <= stats.accepted <= stats.drafted


def test_text_that_repeats_itself_takes_few_passes() -> None:
    """At most half a pass per token, counted where copied stretches and new text alternate."""
    random = np.random.default_rng(0)
    known = random.integers(0, 200, 300).tolist()
    script = known + known[:100] + random.integers(0, 200, 10).tolist() + known[100:250]
    prompt = script[:310]
    stats = Stats()
    limits = Limits(max_new_tokens=len(script) - len(prompt))
    row = Row(prompt, Sampler(Sampling()), limits)
    list(run(ScriptedDecoder(script), [row], limits, stats))
    assert row.new_ids == script[310:]
    assert stats.passes / stats.tokens < 0.3
    assert stats.accept_rate > 0.7


def test_a_decoder_whose_passes_are_cheap_is_given_few_drafts() -> None:
    """With a cache a pass costs about as much as a few tokens, and a wrong draft more of it."""
    script = [token for number in range(400) for token in (1, 2, 10 + number)]
    drafted = []
    for pass_cost in (None, 8):
        decoder, limits, stats = ScriptedDecoder(script, vocab_size=500), Limits(max_new_tokens=500), Stats()
        decoder.pass_cost = pass_cost
        list(run(decoder, [Row(script[:200], Sampler(Sampling()), limits)], limits, stats))
        drafted.append(stats.drafted)
    assert drafted[1] <= 0.02 * 8 * 500 + 8 < drafted[0]


@pytest.mark.parametrize(("prompt_length", "made"), [(8, 40), (30, 200), (200, 900)])
def test_text_whose_every_draft_is_wrong_costs_next_to_nothing(prompt_length: int, made: int) -> None:
    """The same two tokens come again and again, each time followed by another one."""
    script = [token for number in range(400) for token in (1, 2, 10 + number)]
    limits, stats = Limits(max_new_tokens=made), Stats()
    decoder = ScriptedDecoder(script, vocab_size=500)
    row = Row(script[:prompt_length], Sampler(Sampling()), limits)
    list(run(decoder, [row], limits, stats))
    fed = sum(sum(lengths) for lengths in decoder.windows)
    plain = sum(prompt_length + n for n in range(made))
    assert row.new_ids == script[prompt_length : prompt_length + made]
    assert stats.drafted > 0 and stats.accepted == 0
    assert fed < 1.03 * plain
