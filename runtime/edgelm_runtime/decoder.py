"""Decoders: token ids in, logits out.

A decoder answers one question, without memory of earlier ones as far as its caller can tell: what are the
logits at the last few positions of these rows? `RecomputeDecoder` feeds the whole window every time: no
cache, nothing kept between calls, any number of threads on one session. Attention is causal and rows are
padded on the right, so a batch needs no mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.session import Session, TensorInfo

Ids = NDArray[np.int64]
Logits = NDArray[np.floating[Any]]

CAPACITY = "capacity"
"""Name of the cache's axis in graphs that write new tokens into it, and so want room for them, also without a past."""
PAST_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int8)": np.int8}


class Decoder(Protocol):
    """What the generation loop needs of a model."""

    context_length: int
    vocab_size: int

    def __call__(self, rows: Sequence[Ids], counts: Sequence[int]) -> list[Logits]:
        """Logits (counts[i], vocab) at the last `counts[i]` positions of each row (1 to context_length ids)."""
        ...


class RecomputeDecoder:
    """Runs an edgelm graph over whole windows."""

    def __init__(self, session: Session, context_length: int, vocab_size: int) -> None:
        self.context_length = context_length
        self.vocab_size = vocab_size
        self._session = session
        self._inputs = session.inputs

    def __call__(self, rows: Sequence[Ids], counts: Sequence[int]) -> list[Logits]:
        ids = padded(rows)
        feeds: dict[str, NDArray[Any]] = {
            "input_ids": ids,
            "logits_at": last_positions(rows, counts),
            **empty_cache(self._inputs, *ids.shape),
        }
        logits = self._session.run(("logits",), feeds)[0]
        ends = zip(logits, counts, strict=True)
        return [row[len(row) - count :, : self.vocab_size] for row, count in ends]


class ForeignDecoder:
    """Runs a plain ONNX language model from elsewhere: `input_ids` and, where the graph has them,
    `attention_mask`, `position_ids` and an empty past; `logits` (batch, sequence, vocab or more)."""

    def __init__(self, session: Session, context_length: int, vocab_size: int) -> None:
        self.context_length = context_length
        self.vocab_size = vocab_size
        self._session = session
        self._inputs = session.inputs

    def __call__(self, rows: Sequence[Ids], counts: Sequence[int]) -> list[Logits]:
        ids = padded(rows)
        lengths = np.array([len(row) for row in rows])
        feeds: dict[str, NDArray[Any]] = {"input_ids": ids}
        if "attention_mask" in self._inputs:
            feeds["attention_mask"] = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
        if "position_ids" in self._inputs:
            feeds["position_ids"] = np.broadcast_to(np.arange(ids.shape[1]), ids.shape).copy()
        feeds |= empty_cache(self._inputs, *ids.shape)
        logits = self._session.run(("logits",), feeds)[0]
        ends = zip(logits, lengths, counts, strict=True)
        return [row[length - count : length, : self.vocab_size] for row, length, count in ends]


def empty_cache(inputs: Mapping[str, TensorInfo], batch: int, length: int) -> dict[str, NDArray[Any]]:
    """What a graph with a cache wants to be fed to run without one: a past of no tokens. Empty for other graphs.

    `length` is that of the ids (batch, length) fed beside it, and matters where the graph `needs_room`.
    """
    room = length if needs_room(inputs) else 0
    feeds = {name: past_states(inputs[name], batch, room) for name in past_names(inputs)}
    return {**feeds, "cache_length": np.zeros(batch, np.int64)} if "cache_length" in inputs else feeds


def needs_room(inputs: Mapping[str, TensorInfo]) -> bool:
    """Whether a graph with these inputs writes into its cache by standard operators (CAPACITY)."""
    return "cache_length" in inputs and any(CAPACITY in inputs[name].shape for name in past_names(inputs))


def past_names(inputs: Mapping[str, TensorInfo]) -> list[str]:
    """The inputs that are a past."""
    return [name for name in inputs if name.startswith("past_key_values.")]


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
