"""The graph with its inputs and outputs bound to a cache's buffers, once.

A run binds no more than what differs from the run before it: nothing at all from one single token to the next. That
is so on the CPU, where a run reads what the bound memory holds by then. For another device onnxruntime copies what
lies in this process' memory at the moment it is bound, and not again, so there it is bound again for each run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.engine.kv_buffers import Buffer, Place, place
from edgelm_runtime.model_file.interface import CACHE_LENGTH, INPUT_IDS, LOGITS, LOGITS_AT, present_name

if TYPE_CHECKING:
    from edgelm_runtime.arrays import Ids
    from edgelm_runtime.engine.session import Session


class BoundRun:
    """Runs the slots from `first` to before `last` of `past`, the buffers by the names of the graph's inputs."""

    def __init__(self, session: Session, past: Mapping[str, Buffer], first: int, last: int) -> None:
        self._session = session
        self._binding = session.binding()
        self._copied = session.copies_inputs
        self._past = dict(past)  # bound by address, so they must not go away before the binding
        rows = last - first
        self._ids = np.zeros((rows, 0), np.int64)
        self._lengths = np.zeros(rows, np.int64)
        self._at = np.zeros((0, 0), np.int64)
        vocab_size: Any = session.outputs[LOGITS].shape[-1]
        self._vocab_size = vocab_size
        self._inputs: dict[str, Place] = {CACHE_LENGTH: place(self._lengths)}
        for name, buffer in past.items():
            self._inputs[name] = buffer.place(first, last)
            self._binding.bind_output(present_name(name), *self._inputs[name])
        self._new = set(self._inputs)

    def __call__(self, ids: Ids, lengths: Sequence[int], count: int) -> NDArray[np.float32]:
        """Append ids (B, S) to slots that hold `lengths` tokens; logits (B, count, vocab) at the last positions."""
        if ids.shape != self._ids.shape:
            self._ids = np.zeros_like(ids)
            self._set(INPUT_IDS, self._ids)
        if self._at.shape != (1, count):
            self._at = np.arange(-count, 0, dtype=np.int64)[None]
            self._set(LOGITS_AT, self._at)
        self._ids[:] = ids
        self._lengths[:] = lengths
        self._bind_inputs()
        # Made anew for each run, and so the caller's: what is kept for later would grow with the largest batch.
        logits = np.empty((len(ids), count, self._vocab_size), np.float32)
        self._binding.bind_output(LOGITS, *place(logits))
        self._session.run_bound(self._binding)
        if self._copied:
            self._binding.synchronize_outputs()
        return logits

    def _set(self, name: str, array: Ids) -> None:
        self._inputs[name] = place(array)
        self._new.add(name)

    def _bind_inputs(self) -> None:
        """What is new, and for a device what lies in the memory of this process."""
        if not self._new and not self._copied:
            return
        for name, where in self._inputs.items():
            if name in self._new or where[0] == "cpu":
                self._binding.bind_input(name, *where)
        self._new.clear()
        if self._copied:
            self._binding.synchronize_inputs()
