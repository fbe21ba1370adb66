"""The sampler against a slow, obvious re-statement of each rule, and with random options."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelm_runtime import NumericsError, OptionError, Sampling
from edgelm_runtime.generation.filters import filtered
from edgelm_runtime.generation.logprobs import top_logprobs
from edgelm_runtime.generation.sampler import Sampler, uniform

VOCAB = 40

logits_rows = st.builds(
    lambda seed, scale, ties: np.round(
        np.random.default_rng(seed).standard_normal(VOCAB) * scale, 1 if ties else 8
    ).astype(np.float32),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.01, 1.0, 5.0, 1e6, 1e37]),
    st.booleans(),
)
finite = {"allow_nan": False, "allow_infinity": False}
options = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.one_of(st.just(0.0), st.floats(1e-300, 1e300), st.floats(0.1, 3)),
        "top_k": st.integers(0, 2 * VOCAB),
        "top_p": st.floats(1e-12, 1),
        "min_p": st.floats(0, 1),
        "typical_p": st.floats(1e-12, 1),
        "repeat_penalty": st.one_of(st.floats(0.5, 2), st.floats(1e-300, 1e300)),
        "repeat_last_n": st.integers(-1, 50),
        "frequency_penalty": st.floats(**finite),
        "presence_penalty": st.floats(**finite),
        "logit_bias": st.dictionaries(
            st.integers(0, VOCAB - 1), st.one_of(st.floats(**finite), st.just(-math.inf)), max_size=4
        ),
        "banned_tokens": st.lists(st.integers(0, VOCAB - 1), max_size=5),
        "seed": st.integers(0, 2**64 - 1),
    },
)


def forbidden(given_options: dict[str, Any]) -> set[int]:
    biases = given_options.get("logit_bias", {})
    return {*given_options.get("banned_tokens", ()), *(i for i, bias in biases.items() if bias == -math.inf)}


@settings(max_examples=300, deadline=None)
@given(logits_rows, options, st.lists(st.integers(0, VOCAB - 1), max_size=30))
def test_any_options_leave_a_token_that_is_allowed(
    logits: np.ndarray, chosen: dict[str, Any], text: list[int]
) -> None:
    """With every warning of numpy an error: no NaN, no infinity, never a forbidden token, the same twice."""
    seeded = {"seed": 1} | chosen
    ids = np.array(text, np.int64)
    before = logits.copy()
    with np.errstate(all="raise", under="ignore"):
        token = Sampler(Sampling(**seeded))(logits, ids, len(ids))
        again = Sampler(Sampling(**seeded))(logits, ids, len(ids))
    assert 0 <= token < VOCAB and token not in forbidden(chosen)
    assert token == again
    assert np.array_equal(logits, before)


@settings(max_examples=200, deadline=None)
@given(
    logits_rows,
    st.floats(0.2, 3),
    st.integers(0, VOCAB + 5),
    st.one_of(st.just(1.0), st.floats(0.01, 1)),
    st.one_of(st.just(1.0), st.floats(0.01, 1)),
    st.one_of(st.just(0.0), st.floats(0.001, 1)),
)
def test_filters_keep_what_their_definitions_say(
    logits: np.ndarray, temperature: float, top_k: int, typical_p: float, top_p: float, min_p: float
) -> None:
    """Against plain Python that sorts everything. Where a threshold is hit to within rounding, either goes."""
    options = Sampling(temperature=temperature, top_k=top_k, typical_p=typical_p, top_p=top_p, min_p=min_p)
    ids, _ = filtered(logits, options)
    kept = set(range(VOCAB) if ids is None else ids.tolist())

    def reference(slack: float) -> set[int]:
        return _filtered_slowly(logits, temperature, top_k, typical_p, top_p, min_p, slack)

    assert kept
    if reference(1e-5) == reference(-1e-5) == reference(0):
        # Tokens whose probability is nothing in float32 may be kept or not.
        likely = {i for i in range(VOCAB) if logits[i] - logits.max() > -80 * temperature}
        assert kept & likely == reference(0) & likely


def _filtered_slowly(
    logits: np.ndarray,
    temperature: float,
    top_k: int,
    typical_p: float,
    top_p: float,
    min_p: float,
    slack: float,
) -> set[int]:
    scaled = {i: (float(x) - float(logits.max())) / temperature for i, x in enumerate(logits)}
    weight = {i: math.exp(x) if x > -745 else 0.0 for i, x in scaled.items()}
    if 0 < top_k < VOCAB:
        weight = {i: weight[i] for i in sorted(scaled, key=lambda i: (-scaled[i], i))[:top_k]}
    if typical_p < 1:
        p = _probabilities(weight)
        entropy = -sum(x * math.log(x) for x in p.values())
        weight = _until(p, {i: abs(-math.log(x) - entropy) for i, x in p.items()}, typical_p + slack)
    if top_p < 1:
        p = _probabilities(weight)
        weight = _until(p, {i: -x for i, x in p.items()}, top_p + slack)
    best = max(weight.values())
    return {i for i, w in weight.items() if w >= (min_p - slack) * best}


def _probabilities(weight: dict[int, float]) -> dict[int, float]:
    total = sum(weight.values())
    return {i: w / total for i, w in weight.items() if w > 0}


def _until(p: dict[int, float], rank: dict[int, float], share: float) -> dict[int, float]:
    """The first of `p` by rank that together reach `share`."""
    kept: dict[int, float] = {}
    for i in sorted(p, key=lambda i: (rank[i], i)):
        if kept and sum(kept.values()) >= share:
            break
        kept[i] = p[i]
    return kept


def test_draws_follow_the_distribution() -> None:
    """4000 draws over 600 tokens, more than one block of the running sum, against their probabilities."""
    logits = np.random.default_rng(0).standard_normal(600).astype(np.float32)
    sampler = Sampler(Sampling(temperature=0.5, seed=11))
    draws = [sampler(logits, np.zeros(n, np.int64), 0) for n in range(4000)]
    expected = np.exp(logits / 0.5)
    expected *= 4000 / expected.sum()
    bins = np.array_split(np.argsort(expected), 20)
    found = np.bincount(draws, minlength=600)
    chi_square = sum((found[b].sum() - expected[b].sum()) ** 2 / expected[b].sum() for b in bins)
    assert chi_square < 43.8  # 0.1% of fair samplers exceed it at 19 degrees of freedom; the seed is fixed


def test_a_draw_depends_on_seed_sample_and_position_alone() -> None:
    numbers = {
        uniform((seed, sample), position) for seed in (0, 1) for sample in (0, 1) for position in (0, 1)
    }
    assert len(numbers) == 8
    assert uniform((3, 1), 7) == uniform((3, 1), 7)
    assert 0 <= uniform((2**64 - 1, 0), 2**40) < 1


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, 3),
        ({"banned_tokens": [3]}, 1),
        ({"logit_bias": {0: 10.0}}, 0),
        ({"logit_bias": {3: -math.inf}}, 1),
        ({"repeat_penalty": 2.0}, 1),
        ({"repeat_penalty": 2.0, "repeat_last_n": 0}, 3),
        ({"repeat_penalty": 2.0, "repeat_last_n": 1}, 3),
        ({"presence_penalty": 1.5}, 1),
        ({"frequency_penalty": 0.3}, 3),
        ({"frequency_penalty": 1.1}, 1),
        ({"forced_tokens": [2]}, 2),
        ({"processor": lambda ids, logits: -logits}, 4),
        ({"processor": lambda ids, logits: logits.astype(np.float64) * (ids[0] - 4)}, 4),
        ({"temperature": 1.0, "top_k": 1}, 3),
        ({"temperature": 1.0, "top_p": 0.3}, 3),
        ({"temperature": 1.0, "min_p": 1.0}, 3),
    ],
)
def test_what_each_option_does(chosen: dict[str, Any], expected: int) -> None:
    """The text is 3, 3, 0."""
    logits = np.array([0.0, 2.2, 1.0, 3.0, -5.0], np.float32)
    ids = np.array([3, 3, 0])
    assert Sampler(Sampling(**{"seed": 0, **chosen}))(logits, ids, 3) == expected


def test_a_processor_cannot_change_the_text_or_the_logits_of_others() -> None:
    def vandal(ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        ids[:] = 0
        logits[:] = -1
        return logits

    ids, logits = np.array([1, 2]), np.zeros(4, np.float32)
    Sampler(Sampling(processor=vandal))(logits, ids, 2)
    assert ids.tolist() == [1, 2] and logits.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1}, {"temperature": math.nan}, {"temperature": math.inf}, {"temperature": "1"},
        {"temperature": True}, {"top_p": 0}, {"top_p": 1.01}, {"top_p": math.nan}, {"typical_p": 0},
        {"min_p": -0.1}, {"min_p": 2}, {"top_k": -1}, {"top_k": 2.5}, {"repeat_penalty": 0},
        {"repeat_last_n": -2}, {"frequency_penalty": math.nan}, {"presence_penalty": math.inf},
        {"seed": -1}, {"seed": 2**64}, {"seed": 1.0}, {"banned_tokens": [-1]}, {"banned_tokens": 5},
        {"banned_tokens": "ab"}, {"forced_tokens": [0.5]}, {"logit_bias": {0: math.nan}},
        {"logit_bias": {0: math.inf}}, {"logit_bias": {-1: 1.0}}, {"logit_bias": [1]}, {"processor": 3},
    ],
)  # fmt: skip
def test_a_wrong_option_is_named_with_its_value(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        Sampling(**wrong)
    assert isinstance(caught.value, ValueError)
    assert next(iter(wrong)) in caught.value.problem and caught.value.remedy


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_an_error(bad: float) -> None:
    logits = np.array([0, bad, 1], np.float32)
    with pytest.raises(NumericsError, match="token 1 "):
        Sampler(Sampling())(logits, np.array([0]), 1)


@pytest.mark.parametrize(
    ("processor", "error"),
    [
        (lambda ids, logits: logits[:2], OptionError),
        (lambda ids, logits: [1, 2, 3], OptionError),
        (lambda ids, logits: logits * math.nan, NumericsError),
        (lambda ids, logits: logits + math.inf, NumericsError),
        (lambda ids, logits: np.full_like(logits, -math.inf), OptionError),
    ],
)
def test_a_processor_that_returns_nonsense_is_an_error(processor: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Sampler(Sampling(processor=processor))(np.ones(3, np.float32), np.array([0]), 1)


def test_logprobs_are_of_the_unmodified_distribution_best_first() -> None:
    logits = np.array([1.0, 3.0, 3.0, 0.0], np.float32)
    logprob, top = top_logprobs(logits, 0, 3)
    exact = logits.astype(float) - math.log(math.exp(1) + 2 * math.exp(3) + 1)
    assert logprob == pytest.approx(exact[0], abs=1e-12)
    assert [token for token, _ in top] == [1, 2, 0]
    assert [value for _, value in top] == pytest.approx([exact[1], exact[2], exact[0]], abs=1e-12)
    assert top_logprobs(logits, 0, 0)[1] == () and len(top_logprobs(logits, 0, 99)[1]) == 4
