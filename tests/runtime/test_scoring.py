"""Scores against a sum written out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fakes import TINY, RandomDecoder, ScriptedDecoder

import edgelm_runtime
from edgelm_runtime import NumericsError, OptionError, Score, scoring
from edgelm_runtime.scoring import score_ids

VOCAB = 12
TEXT = np.random.default_rng(0).integers(0, VOCAB, 50)


def by_hand(decoder: RandomDecoder, stride: int) -> list[float]:
    """The log-probability of each token, seen from the window that its stride gives it."""
    result = []
    for index in range(1, len(TEXT)):
        end = min(((index - 1) // stride + 1) * stride, len(TEXT) - 1)
        window = TEXT[max(0, end - decoder.context_length) : index]
        logits = decoder([window], [1])[0][0].astype(float)
        result.append(logits[TEXT[index]] - math.log(np.exp(logits).sum()))
    return result


@pytest.mark.parametrize(("context", "stride"), [(64, None), (20, None), (20, 1), (20, 7), (20, 20), (1, 1)])
def test_scores_of_texts_longer_than_the_context(
    context: int, stride: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "BLOCK", 3 * VOCAB)  # several blocks in a pass
    decoder = RandomDecoder(VOCAB, context)
    told: list[int] = []
    found = score_ids(decoder, TEXT, stride, told.append)
    assert found == pytest.approx(by_hand(decoder, stride or max(1, context // 2)), abs=1e-5)
    assert sum(told) == len(TEXT) - 1


def test_perplexity_and_bits_per_byte() -> None:
    score = Score([1, 2, 3], np.log([0.5, 0.125]), byte_count=8)
    assert score.perplexity == pytest.approx(4)
    assert score.bits_per_byte == pytest.approx(0.5)
    assert math.isnan(Score([1, 2], np.log([0.5])).bits_per_byte)
    assert Score([1, 2], np.array([-1e4])).perplexity == math.inf


@pytest.mark.parametrize(
    ("ids", "stride", "message"), [([1], None, "1 tokens"), ([1, 2], 0, "stride"), ([1, 2], 21, "stride")]
)
def test_what_cannot_be_scored(ids: list[int], stride: int | None, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        score_ids(RandomDecoder(VOCAB), np.array(ids), stride)


def test_logits_that_are_not_finite() -> None:
    class Broken(ScriptedDecoder):
        def _logits(self, length: int, count: int) -> np.ndarray:
            logits = super()._logits(length, count)
            logits[0, 0] = math.inf
            return logits

    with pytest.raises(NumericsError, match="between tokens 0 and 3"):
        score_ids(Broken([1]), np.array([1, 2, 3, 4]))


def test_the_likeliest_tokens_are_those_of_the_logits() -> None:
    with edgelm_runtime.load(TINY) as lm:
        ids = lm.tokenizer.encode("The thing in the bin, and then some more of it")
        score = lm.score(ids, top_logprobs=3)
        assert score.top_logprobs is not None and len(score.top_logprobs) == len(ids) - 1
        logits = lm.logits(ids[:10]).astype(np.float64)
        expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        for row, top in zip(expected[:9], score.top_logprobs, strict=False):
            assert [token for token, _ in top] == np.argsort(-row)[:3].tolist()
            np.testing.assert_allclose([value for _, value in top], np.sort(row)[::-1][:3], atol=1e-5)
        # The token itself has the very number that the list gives it, so that a greedy choice can be told.
        for token_id, value, top in zip(ids[1:], score.logprobs, score.top_logprobs, strict=True):
            assert dict(top).get(token_id, value) == value
        assert lm.score(ids).top_logprobs is None
        np.testing.assert_array_equal(lm.score(ids).logprobs, score.logprobs)
