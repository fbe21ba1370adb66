"""One key-value cache: buffers that the graph updates in place, and the token ids that they stand for.

A cache has a slot for each row of a batch. All layers' keys and values lie in arrays (slots, kv_heads, capacity,
head_dim) that are input and output of the graph at once, bound by address, so a step copies nothing
(`kv_buffers.py` has them where the graph is computed). What lies behind a
slot's ids is never read, and a slot is shortened by forgetting ids.

Rows with one new token each are one run; others run one at a time, since the attention operator takes chunks
behind a past of single rows only. Quantised files with a float32 cache put a spare position behind each chunk, so that
a step is computed like a longer chunk; their rows all run one at a time, and their buffers are that much longer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgelm_runtime.arrays import Ids, Logits
from edgelm_runtime.engine.graph_inputs import past_states
from edgelm_runtime.engine.io_binding import BoundRun
from edgelm_runtime.engine.kv_buffers import Buffer, cache_device, make_buffer
from edgelm_runtime.engine.session import Session
from edgelm_runtime.model_file.interface import past_names
from edgelm_runtime.model_file.metadata import cache_spare

SMALLEST_CAPACITY = 256
"""Tokens. Buffers grow by doubling, so a short text costs little memory and a long one few copies."""


class Cache:
    """The states of a few rows, and how to go on from them. Serves one call at a time."""

    def __init__(self, session: Session, context_length: int) -> None:
        self._session = session
        self._context_length = context_length
        self._device = cache_device(session)
        self._past: dict[str, Buffer] = {}
        self._slots = self._capacity = 0  # the size of each buffer
        self._spare = cache_spare(session)
        self._ids: list[Ids] = []
        self._raw = session.raw
        self._runs: dict[tuple[int, int], BoundRun] = {}

    @property
    def held(self) -> int:
        """Tokens in the cache."""
        return sum(map(len, self._ids))

    def known(self, rows: Sequence[Ids]) -> int:
        """How many tokens of `rows` need not be computed again."""
        return sum(
            common_prefix(row, self._ids[slot])
            for row, slot in zip(rows, self._matches(rows), strict=True)
            if slot is not None
        )

    def logits(self, rows: Sequence[Ids], counts: Sequence[int]) -> list[Logits]:
        """See `Decoder`."""
        self._make_room(len(rows), max(map(len, rows)))
        self._arrange(rows)
        shared = self._shorten(rows, counts)
        results: list[Logits] = []
        first = 0
        while first < len(rows):
            last = self._end_of_run(rows, shared, first)
            results += self._run(first, last, rows, counts)
            first = last
        return results

    def _matches(self, rows: Sequence[Ids]) -> list[int | None]:
        """The slot that each row continues, in ascending order: rows leave a batch, and the rest stay in order."""
        matches: list[int | None] = []
        start = 0
        for index, row in enumerate(rows):
            # A slot too many for the rows that follow shows that a row has left.
            room = max(len(self._ids) - (len(rows) - index), start)
            candidates = range(start, min(room + 1, len(self._ids)))
            best = max(candidates, key=lambda slot: common_prefix(row, self._ids[slot]), default=None)
            matches.append(best)
            start = start if best is None else best + 1
        return matches

    def _make_room(self, slots: int, length: int) -> None:
        """Buffers for `slots` rows of `length` tokens; larger ones take over what the old ones hold."""
        if slots <= self._slots and length + self._spare <= self._capacity:
            return
        capacity = max(self._capacity, SMALLEST_CAPACITY)
        while capacity < length + self._spare:
            capacity *= 2
        capacity = min(capacity, self._context_length + self._spare)
        slots = max(slots, self._slots)
        self._runs.clear()
        inputs = self._session.inputs
        for name in past_names(inputs):
            states = past_states(inputs[name], slots, capacity)
            if name in self._past:
                states[: self._slots, :, : self._capacity] = self._past[name].states()
            self._past[name] = make_buffer(states, self._device)
        self._slots, self._capacity = slots, capacity

    def _arrange(self, rows: Sequence[Ids]) -> None:
        """Move slots so that row i finds its own in slot i."""
        matches = self._matches(rows)
        nothing = np.zeros(0, np.int64)
        self._ids = [self._ids[slot] if slot is not None else nothing for slot in matches]
        for target, slot in enumerate(matches):
            if slot is not None and slot != target:
                self._copy(slot, target, len(self._ids[target]))

    def _copy(self, source: int, target: int, length: int) -> None:
        for buffer in self._past.values():
            buffer.copy_slot(source, target, length)

    def _shorten(self, rows: Sequence[Ids], counts: Sequence[int]) -> list[bool]:
        """Leave in each slot what its row begins with, short of the tokens whose logits are wanted.

        Gives, for each row, whether the row before it has more in common with it than its own slot has. Then
        its slot is a copy of that.
        """
        shared = []
        for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
            own = min(common_prefix(row, self._ids[index]), len(row) - count)
            other = min(common_prefix(row, rows[index - 1]), len(row) - count) if index else 0
            shared.append(other > own)
            self._ids[index] = row[: max(own, other)]
        return shared

    def _end_of_run(self, rows: Sequence[Ids], shared: Sequence[bool], first: int) -> int:
        """Copy what row `first` and those after it share with their neighbours, as far as they can run together."""
        index = first
        while index < len(rows):
            kept = len(self._ids[index])
            if index > first:
                ready = not shared[index] or kept <= len(self._ids[index - 1])
                if not ready or len(rows[index]) - kept != 1:
                    break
            if shared[index]:
                self._copy(index - 1, index, kept)
            index += 1
            if self._spare or len(rows[first]) - len(self._ids[first]) != 1:
                break
        return index

    def _run(self, first: int, last: int, rows: Sequence[Ids], counts: Sequence[int]) -> list[Logits]:
        lengths = [len(ids) for ids in self._ids[first:last]]
        new = [row[length:] for row, length in zip(rows[first:last], lengths, strict=True)]
        logits = self._bound(first, last)(np.array(new), lengths, counts[first])
        for index in range(first, last):
            self._ids[index] = rows[index].copy()
        return list(logits)

    def _bound(self, first: int, last: int) -> BoundRun:
        if self._raw is not self._session.raw:  # a session is made anew in a forked process
            self._raw = self._session.raw
            self._runs.clear()
        if (first, last) not in self._runs:
            self._runs[first, last] = BoundRun(self._session, self._past, first, last)
        return self._runs[first, last]


def common_prefix(one: Ids, other: Ids) -> int:
    """How many ids two lists begin with together."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length
