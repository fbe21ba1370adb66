"""Decoders: token ids in, logits out.

A decoder answers one question, without memory of earlier ones as far as its caller can tell: what are the
logits at the last few positions of these rows? `RecomputeDecoder` feeds the whole window every time: no
cache, nothing kept between calls, any number of threads on one session. Attention is causal and rows are
padded on the right, so a batch needs no mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.engine.graph_inputs import empty_cache, in_passes, last_positions, padded
from edgelm_runtime.model_file.interface import ATTENTION_MASK, INPUT_IDS, LOGITS, LOGITS_AT, POSITION_IDS

if TYPE_CHECKING:
    from edgelm_runtime.arrays import Ids, Logits
    from edgelm_runtime.engine.session import Session


class RecomputeDecoder:
    """Runs an edgelm graph over whole windows."""

    pass_cost: int | None = None

    def __init__(self, session: Session, context_length: int, vocab_size: int) -> None:
        self.context_length = context_length
        self.vocab_size = vocab_size
        self._session = session
        self._inputs = session.inputs

    def __call__(self, rows: Sequence[Ids], counts: Sequence[int]) -> list[Logits]:
        return in_passes(self._pass, rows, counts)

    def _pass(self, rows: Sequence[Ids], counts: Sequence[int]) -> list[Logits]:
        ids = padded(rows)
        feeds: dict[str, NDArray[Any]] = {
            INPUT_IDS: ids,
            LOGITS_AT: last_positions(rows, counts),
            **empty_cache(self._inputs, *ids.shape),
        }
        logits = self._session.run((LOGITS,), feeds)[0]
        ends = zip(logits, counts, strict=True)
        return [row[len(row) - count :, : self.vocab_size] for row, count in ends]

    def clear(self) -> None:
        """Nothing is kept between calls."""


class ForeignDecoder(RecomputeDecoder):
    """Runs a plain ONNX language model from elsewhere: `input_ids` and, where the graph has them,
    `attention_mask`, `position_ids` and an empty past; `logits` (batch, sequence, vocab or more)."""

    def _pass(self, rows: Sequence[Ids], counts: Sequence[int]) -> list[Logits]:
        ids = padded(rows)
        lengths = np.array([len(row) for row in rows])
        feeds: dict[str, NDArray[Any]] = {INPUT_IDS: ids}
        if ATTENTION_MASK in self._inputs:
            feeds[ATTENTION_MASK] = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
        if POSITION_IDS in self._inputs:
            feeds[POSITION_IDS] = np.broadcast_to(np.arange(ids.shape[1]), ids.shape).copy()
        feeds |= empty_cache(self._inputs, *ids.shape)
        logits = self._session.run((LOGITS,), feeds)[0]
        ends = zip(logits, lengths, counts, strict=True)
        return [row[length - count : length, : self.vocab_size] for row, length, count in ends]
