"""Log-probabilities from logits, in double precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.generation.filters import largest

if TYPE_CHECKING:
    from edgelm_runtime.arrays import Floats


def top_logprobs(logits: Floats, token_id: int, count: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Natural log-probability of `token_id` given logits (vocab,), and the `count` likeliest ids with theirs,
    best first."""
    every = log_softmax(logits)
    top = largest(every, count) if 0 < count < len(every) else np.arange(len(every))[:count]
    best = top[np.argsort(-every[top], kind="stable")]
    return float(every[token_id]), tuple((int(index), float(every[index])) for index in best)


def log_softmax(logits: Floats) -> NDArray[np.float64]:
    """Natural log-probabilities over the last axis, in double precision."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide


def logsumexp(logits: NDArray[Any]) -> float:
    """log(sum(exp(logits))) in float64."""
    wide = logits.astype(np.float64)
    top = wide.max()
    return float(top + np.log(np.exp(wide - top).sum()))
