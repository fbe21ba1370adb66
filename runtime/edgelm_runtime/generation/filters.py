"""Which tokens stay in the draw: top-k, typical, top-p and min-p, in this order.

Each filter leaves at least one token. Of equal tokens the lower id goes first, so that the choice does not
depend on how numpy partitions. Only the few largest values are ever sorted, since they all but always
suffice: at 50 000 tokens a partition costs a hundredth of a stable sort.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgelm_runtime.arrays import Floats, Ids
    from edgelm_runtime.generation.options import Sampling

# Temperatures beyond cannot be told from these: they leave the best tokens, or all alike.
COLDEST, HOTTEST = 1e-30, 1e30
FIRST_TRY = 256
BLOCK = 256


def filtered(logits: Floats, options: Sampling) -> tuple[Ids | None, Floats]:
    """Candidates in order of their ids (None: every token), and their unnormalised probabilities.

    `logits` (vocab,) are float32, below infinity, and some are above -inf; `options.temperature` is above 0. A new
    filter gets its line here, which is its place in the order.
    """
    with np.errstate(over="ignore"):
        scaled = (logits - logits.max()) / np.float32(min(max(options.temperature, COLDEST), HOTTEST))
    ids: Ids | None = None
    if 0 < options.top_k < len(scaled):
        ids = largest(scaled, options.top_k)
        scaled = scaled[ids]
    weights: Floats = np.exp(scaled)
    if options.typical_p < 1:
        ids, weights = _kept(ids, weights, typical(weights, options.typical_p))
    if options.top_p < 1:
        ids, weights = _kept(ids, weights, nucleus(weights, options.top_p))
    if options.min_p > 0:
        ids, weights = _kept(ids, weights, np.flatnonzero(weights >= options.min_p * weights.max()))
    return ids, weights


def _kept(ids: Ids | None, weights: Floats, kept: Ids) -> tuple[Ids, Floats]:
    return kept if ids is None else ids[kept], weights[kept]


def nucleus(weights: Floats, top_p: float) -> Ids:
    """Indices, ascending, of the fewest largest weights that reach `top_p` of the sum.

    (Holtzman et al. 2019, https://arxiv.org/abs/1904.09751)
    """
    goal = top_p * float(weights.sum(dtype=np.float64))
    for size in _sizes(len(weights)):
        best = np.sort(np.partition(weights, -size)[-size:])[::-1]
        if size == len(weights) or float(best.sum(dtype=np.float64)) >= goal:
            break
    return largest(weights, min(reaching(best, goal) + 1, size))


def typical(weights: Floats, typical_p: float) -> Ids:
    """Indices, ascending, of the tokens whose surprise is nearest to the entropy and that reach `typical_p`.

    (Meister et al. 2022, https://arxiv.org/abs/2202.00666)
    """
    possible = np.flatnonzero(weights)
    weights = weights[possible]
    total = float(weights.sum(dtype=np.float64))
    surprise = math.log(total) - np.log(weights)
    closeness = -np.abs(surprise - float(np.dot(weights, surprise)) / total)
    for size in _sizes(len(weights)):
        best = largest(closeness, size)
        best = best[np.argsort(-closeness[best])]
        if size == len(weights) or float(weights[best].sum(dtype=np.float64)) >= typical_p * total:
            break
    return possible[largest(closeness, min(reaching(weights[best], typical_p * total) + 1, size))]


def _sizes(most: int) -> Iterator[int]:
    """How many of the first to look at: few, and more only where those do not suffice."""
    size = FIRST_TRY
    while size < most:
        yield size
        size *= 16
    yield most


def reaching(weights: Floats, goal: float, beyond: bool = False) -> int:
    """First index at which the running sum of `weights` is `goal` or more (`beyond`: more than `goal`).

    Where rounding leaves none, it is the last index that adds anything. Blocks are summed first, since a running sum
    over 50 000 numbers costs more than all filters together.
    """
    starts = np.arange(0, len(weights), BLOCK)
    sums = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    block = _first(sums, goal, beyond)
    inside = np.cumsum(weights[starts[block] : starts[block] + BLOCK], dtype=np.float64)
    return int(starts[block]) + _first(inside, goal - (sums[block - 1] if block else 0.0), beyond)


def _first(sums: NDArray[np.float64], goal: float, beyond: bool) -> int:
    goal = min(goal, float(np.nextafter(sums[-1], 0) if beyond else sums[-1]))
    return int(np.searchsorted(sums, goal, "right" if beyond else "left"))


def largest(values: Floats, count: int) -> Ids:
    """Indices, ascending, of the `count` largest values (1 to all); of equal ones the first."""
    threshold = np.partition(values, -count)[-count]
    kept: Ids = np.flatnonzero(values >= threshold)
    surplus = len(kept) - count
    if surplus:
        tied = np.flatnonzero(values[kept] == threshold)
        kept = np.delete(kept, tied[len(tied) - surplus :])
    return kept
