"""Which tokens stay in the draw: top-k, typical, top-p and min-p, in this order.

Each filter leaves at least one token. Of equal tokens the lower id goes first, so that the choice does not
depend on how numpy partitions. Only the few largest values are ever sorted, since they all but always
suffice: at 50 000 tokens a partition costs a hundredth of a stable sort.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Ids = NDArray[np.int64]

# Temperatures beyond cannot be told from these: they leave the best tokens, or all alike.
COLDEST, HOTTEST = 1e-30, 1e30
FIRST_TRY = 256


def filtered(
    logits: Floats, temperature: float, top_k: int, typical_p: float, top_p: float, min_p: float
) -> tuple[Ids | None, Floats]:
    """Candidates in order of their ids (None: every token), and their unnormalised probabilities.

    `logits` (vocab,) are float32, below infinity, and some are above -inf; `temperature` is above 0.
    """
    with np.errstate(over="ignore"):
        scaled = (logits - logits.max()) / np.float32(min(max(temperature, COLDEST), HOTTEST))
    ids: Ids | None = None
    if 0 < top_k < len(scaled):
        ids = largest(scaled, top_k)
        scaled = scaled[ids]
    weights: Floats = np.exp(scaled)
    if typical_p < 1:
        ids, weights = _kept(ids, weights, typical(weights, typical_p))
    if top_p < 1:
        ids, weights = _kept(ids, weights, nucleus(weights, top_p))
    if min_p > 0:
        ids, weights = _kept(ids, weights, np.flatnonzero(weights >= min_p * weights.max()))
    return ids, weights


def _kept(ids: Ids | None, weights: Floats, kept: Ids) -> tuple[Ids, Floats]:
    return kept if ids is None else ids[kept], weights[kept]


def nucleus(weights: Floats, top_p: float) -> Ids:
    """Indices, ascending, of the fewest largest weights that reach `top_p` of the sum.

    (Holtzman et al. 2019, https://arxiv.org/abs/1904.09751)
    """
    return _fewest(weights, weights, top_p)


def typical(weights: Floats, typical_p: float) -> Ids:
    """Indices, ascending, of the tokens whose surprise is nearest to the entropy and that reach `typical_p`.

    (Meister et al. 2022, https://arxiv.org/abs/2202.00666)
    """
    possible = np.flatnonzero(weights)
    weights = weights[possible]
    total = float(weights.sum(dtype=np.float64))
    surprise = math.log(total) - np.log(weights)
    entropy = float(np.dot(weights, surprise)) / total
    return possible[_fewest(-np.abs(surprise - entropy), weights, typical_p)]


def _fewest(ranking: Floats, weights: Floats, share: float) -> Ids:
    """Indices, ascending, of the fewest tokens that rank highest and reach `share` of all weight."""
    goal = share * float(weights.sum(dtype=np.float64))
    size = min(FIRST_TRY, len(weights))
    while True:
        top = largest(ranking, size)
        top = top[np.argsort(-ranking[top])]
        cumulative = np.cumsum(weights[top], dtype=np.float64)
        if cumulative[-1] >= goal or size == len(weights):
            count = int(np.searchsorted(cumulative, goal)) + 1
            return largest(ranking, min(count, size))
        size = min(16 * size, len(weights))


def largest(values: Floats, count: int) -> Ids:
    """Indices, ascending, of the `count` largest values (1 to all); of equal ones the first."""
    threshold = np.partition(values, -count)[-count]
    kept: Ids = np.flatnonzero(values >= threshold)
    surplus = len(kept) - count
    if surplus:
        tied = np.flatnonzero(values[kept] == threshold)
        kept = np.delete(kept, tied[len(tied) - surplus :])
    return kept
