"""How well a model predicts a given text: log-probabilities, perplexity, bits per byte."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.decoder import Decoder
from edgelm_runtime.errors import NumericsError, OptionError
from edgelm_runtime.sampler import log_softmax, whole


@dataclass(frozen=True)
class Score:
    """`logprobs[i]` is the natural log-probability of `token_ids[i + 1]`; the first token has none.

    `perplexity` is exp of the mean negative log-probability per token. `bits_per_byte` is the sum of
    negative log2-probabilities over the number of UTF-8 bytes of the predicted text, which compares models
    whatever their tokenizers; NaN for a model without a tokenizer.
    """

    token_ids: list[int]
    logprobs: NDArray[np.float64]
    byte_count: int = 0

    @property
    def perplexity(self) -> float:
        return math.exp(-float(self.logprobs.mean()))

    @property
    def bits_per_byte(self) -> float:
        return -float(self.logprobs.sum()) / math.log(2) / self.byte_count if self.byte_count else math.nan


def score_ids(
    decoder: Decoder,
    ids: NDArray[np.int64],
    stride: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float64]:
    """Log-probabilities (T - 1,) of ids[1:] given all that the context allows before each.

    A pass scores up to `stride` tokens (default half the context), so each of them sees at least
    context - stride tokens before it, where there are that many. `progress` is told how many tokens each
    pass has scored. Raises OptionError for fewer than two tokens.
    """
    if len(ids) < 2:
        raise OptionError(f"the text has {len(ids)} tokens", "give at least two, the first is not scored")
    context = decoder.context_length
    stride = stride if stride is not None else max(1, context // 2)
    whole("stride", stride, 1, context)
    result = np.empty(len(ids) - 1)
    for start in range(0, len(result), stride):
        end = min(start + stride, len(result))
        window = ids[max(0, end - context) : end]
        (logits,) = decoder([window], [end - start])
        logprobs = log_softmax(logits)
        if np.isnan(logprobs).any():
            raise NumericsError(
                f"the model's logits at token {start} are not finite", "check it with `edgelm verify`"
            )
        result[start:end] = logprobs[np.arange(end - start), ids[start + 1 : end + 1]]
        if progress is not None:
            progress(end - start)
    return result
