"""How well a model predicts a given text: log-probabilities, perplexity, bits per byte."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.errors import NumericsError, OptionError
from edgelm_runtime.generation.filters import largest
from edgelm_runtime.validation import function, whole

if TYPE_CHECKING:
    from edgelm_runtime.generation.decoder import Decoder
    from edgelm_runtime.text.tokenizer import Tokenizer

# Logits looked at together: enough for numpy, and few next to a pass's own memory.
BLOCK = 1 << 20


@dataclass(frozen=True)
class Score:
    """`logprobs[i]` is the natural log-probability of `token_ids[i + 1]`; the first token has none.

    `perplexity` is exp of the mean negative log-probability per token. `bits_per_byte` is the sum of
    negative log2-probabilities over the number of UTF-8 bytes of the predicted text, which compares models
    whatever their tokenizers.
    """

    token_ids: list[int]
    logprobs: NDArray[np.float64]
    byte_count: int = 0
    top_logprobs: list[tuple[tuple[int, float], ...]] | None = None
    """The likeliest (token id, log-probability) in place of each of `token_ids[1:]`, where asked for."""

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-probability per token; infinite where that is out of range."""
        with np.errstate(over="ignore"):
            return float(np.exp(-self.logprobs.mean()))

    @property
    def bits_per_byte(self) -> float:
        """Bits that the model needs per byte of text; NaN without a tokenizer."""
        return -float(self.logprobs.sum()) / math.log(2) / self.byte_count if self.byte_count else math.nan


def combined(scores: Sequence[Score]) -> Score:
    """The score of several texts together, each predicted from its own beginning."""
    return Score(
        [token_id for score in scores for token_id in score.token_ids],
        np.concatenate([score.logprobs for score in scores]),
        sum(score.byte_count for score in scores),
    )


def score(
    decoder: Decoder,
    tokenizer: Tokenizer | None,
    ids: NDArray[np.int64],
    stride: int | None,
    progress: Callable[[int], None] | None,
    top_logprobs: int | None,
) -> Score:
    """The score of a text's token ids (T,); `LanguageModel.score` says what the options do."""
    if top_logprobs is not None:
        whole("top_logprobs", top_logprobs, 0)
    top: list[tuple[tuple[int, float], ...]] | None = None if top_logprobs is None else []
    logprobs = score_ids(decoder, ids, stride, progress, top, top_logprobs or 0)
    text = b"" if tokenizer is None else tokenizer.decode_bytes(ids[1:].tolist(), skip_special=True)
    return Score(ids.tolist(), logprobs, len(text), top)


def score_ids(
    decoder: Decoder,
    ids: NDArray[np.int64],
    stride: int | None = None,
    progress: Callable[[int], None] | None = None,
    top: list[tuple[tuple[int, float], ...]] | None = None,
    count: int = 0,
) -> NDArray[np.float64]:
    """Log-probabilities (T - 1,) of ids[1:] given all that the context allows before each.

    A pass scores up to `stride` tokens (default half the context), so each of them sees at least
    context - stride tokens before it, where there are that many. `progress` is told how many tokens each
    pass has scored. To `top` the `count` likeliest (id, log-probability) of each place are added.
    Raises OptionError for fewer than two tokens.
    """
    if len(ids) < 2:
        raise OptionError(f"the text has {len(ids)} tokens", "give at least two, the first is not scored")
    context = decoder.context_length
    stride = stride if stride is not None else max(1, context // 2)
    whole("stride", stride, 1, context)
    if progress is not None:
        function("progress", progress)
    result = np.empty(len(ids) - 1)
    for start in range(0, len(result), stride):
        end = min(start + stride, len(result))
        window = ids[max(0, end - context) : end]
        (logits,) = decoder([window], [end - start])
        result[start:end] = _logprobs(logits, ids[start + 1 : end + 1], top, count)
        if not np.isfinite(result[start:end]).all():
            raise NumericsError(
                f"the model's logits between tokens {start} and {end} are not finite",
                "check the model with `edgelm verify`",
            )
        if progress is not None:
            progress(end - start)
    return result


def _logprobs(
    logits: NDArray[Any],
    targets: NDArray[np.int64],
    top: list[tuple[tuple[int, float], ...]] | None,
    count: int,
) -> NDArray[np.float64]:
    """Natural log-probabilities (n,) of `targets` (n,) given logits (n, vocab); the likeliest go to `top`."""
    result = np.empty(len(targets))
    rows = max(1, BLOCK // logits.shape[1])
    for start in range(0, len(targets), rows):
        part = logits[start : start + rows].astype(np.float32, copy=False)
        with np.errstate(invalid="ignore"):  # what is not finite is reported by the caller
            shifted = part - part.max(axis=1, keepdims=True)
        norms = np.log(np.exp(shifted).sum(axis=1, dtype=np.float64))
        result[start : start + rows] = shifted[np.arange(len(part)), targets[start : start + rows]] - norms
        if top is not None:
            top += [_likeliest(row, norm, count) for row, norm in zip(shifted, norms, strict=True)]
    return result


def _likeliest(shifted: NDArray[np.float32], norm: float, count: int) -> tuple[tuple[int, float], ...]:
    """The `count` likeliest ids with their log-probabilities, best first."""
    ids = largest(shifted, count) if 0 < count < len(shifted) else np.arange(len(shifted))[:count]
    best = ids[np.argsort(-shifted[ids], kind="stable")]
    return tuple((int(token_id), float(shifted[token_id] - norm)) for token_id in best)
