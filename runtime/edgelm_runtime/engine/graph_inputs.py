"""What a graph is fed: padded ids, positions of logits, and a past of no tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.model_file.interface import CACHE_LENGTH, CAPACITY, TensorInfo, past_names

if TYPE_CHECKING:
    from edgelm_runtime.arrays import Ids, Logits

PAST_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int8)": np.int8}


def empty_cache(inputs: Mapping[str, TensorInfo], batch: int, length: int) -> dict[str, NDArray[Any]]:
    """What a graph with a cache wants to be fed to run without one: a past of no tokens. Empty for other graphs.

    `length` is that of the ids (batch, length) fed with it, and matters where the graph `needs_room`.
    """
    room = length if needs_room(inputs) else 0
    feeds = {name: past_states(inputs[name], batch, room) for name in past_names(inputs)}
    return {**feeds, CACHE_LENGTH: np.zeros(batch, np.int64)} if CACHE_LENGTH in inputs else feeds


def needs_room(inputs: Mapping[str, TensorInfo]) -> bool:
    """Whether a graph with these inputs writes into its cache by standard operators (CAPACITY)."""
    return CACHE_LENGTH in inputs and any(CAPACITY in inputs[name].shape for name in past_names(inputs))


def past_states(info: TensorInfo, batch: int, length: int) -> NDArray[Any]:
    """Zeros for a past-state input: its first axis is the batch, other free axes are `length`."""
    shape = [batch, *(size if isinstance(size, int) else length for size in info.shape[1:])]
    return np.zeros(shape, PAST_TYPES[info.type])


def padded(rows: Sequence[Ids]) -> Ids:
    """Rows of unequal length as one int64 array (B, longest), filled up with 0 on the right."""
    if len(rows) == 1:
        return np.asarray(rows[0], np.int64)[None]
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for target, row in zip(ids, rows, strict=True):
        target[: len(row)] = row
    return ids


def last_positions(rows: Sequence[Ids], counts: Sequence[int]) -> Ids:
    """Positions (B, largest count) whose last `counts[i]` entries are the end of row i.

    Rows that want fewer repeat earlier positions in front, which costs a row of logits and no branch.
    """
    back = np.arange(-max(counts), 0)
    return np.maximum(np.array([len(row) for row in rows])[:, None] + back, 0)


MOST_TOKENS = 512
"""Tokens of a pass of several rows without a cache, padding included: memory grows with the largest pass so far (the
bundled model with 4 rows of 512: 119 MB, and 151 MB in one pass), and a larger pass is no faster per token."""


def in_passes(
    compute: Callable[[Sequence[Ids], Sequence[int]], list[Logits]],
    rows: Sequence[Ids],
    counts: Sequence[int],
) -> list[Logits]:
    """What `compute` gives for the rows, in passes of rows of similar length, `MOST_TOKENS` at most."""
    results: dict[int, Logits] = {}
    group: list[int] = []
    by_length = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    for index, following in zip_longest(by_length, by_length[1:]):
        group.append(index)
        if following is None or (len(group) + 1) * len(rows[following]) > MOST_TOKENS:
            computed = compute([rows[one] for one in group], [counts[one] for one in group])
            results.update(zip(group, computed, strict=True))
            group = []
    return [results[index] for index in range(len(rows))]
