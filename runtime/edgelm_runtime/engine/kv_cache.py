"""One key-value cache: buffers that the graph updates in place, and the token ids that they stand for.

A cache has slots, and a row of tokens is computed in a slot of its own, which its caller names at each call. All
layers' keys and values lie in arrays (slots, kv_heads, capacity, head_dim) that are input and output of the graph at
once, bound by address, so a step copies nothing (`kv_buffers.py` has them where the graph is computed). Nothing beyond
a slot's ids is ever read, so a slot is shortened by forgetting ids, and a released slot keeps its ids until another
row takes it: rows that begin alike copy what is there.

Rows with one new token each are one run, if they lie next to each other in the buffers; others run one at a time, since
the attention operator takes several tokens after a past of single rows only. Quantised files with a float32 cache put a
spare position after each run's tokens, so that a step is computed like a longer pass; their rows all run one at a time,
and their buffers are that much longer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from edgelm_runtime.engine.graph_inputs import past_states
from edgelm_runtime.engine.io_binding import BoundRun
from edgelm_runtime.engine.kv_buffers import Buffer, cache_device, make_buffer
from edgelm_runtime.model_file.interface import past_names
from edgelm_runtime.model_file.metadata import cache_spare

if TYPE_CHECKING:
    from edgelm_runtime.arrays import Ids, Logits
    from edgelm_runtime.engine.session import Session

SMALLEST_CAPACITY = 256
"""Tokens. Buffers grow by doubling, so a short text costs little memory and a long one few copies."""

DRAFT = 16  # tokens per row that are no more than a rejected draft, or a step

MOST_BINDINGS = 8
"""Bindings kept for later runs. One takes a third of a millisecond to make, and rows come and go for ever."""

NOTHING: Ids = np.zeros(0, np.int64)


class Cache:
    """The states of a few rows, and how to go on from them. Serves one call at a time.

    `slots` is how many texts it holds at most; there are more only while more are acquired at once.
    """

    def __init__(self, session: Session, context_length: int, vocab_size: int, slots: int) -> None:
        self._session = session
        self._context_length = context_length
        self._vocab_size = vocab_size
        self._device = cache_device(session)
        self._spare = cache_spare(session)
        self.chunk = chunk_size(session)
        self._past: dict[str, Buffer] = {}
        self._size = (0, 0)  # slots and capacity of each buffer
        self._slots = slots
        self._held: list[Ids] = []  # what each slot holds the states of
        self._place: list[int] = []  # where each slot lies in the buffers
        self._free: list[int] = []  # the least recently used first
        self.reused = 0
        inputs = session.inputs
        self._token_bytes = sum(past_states(inputs[name], 1, 1).nbytes for name in past_names(inputs))
        self._raw = session.raw
        self._bindings: OrderedDict[tuple[int, int], BoundRun] = OrderedDict()

    @property
    def tokens(self) -> int:
        """Tokens whose states are in the cache."""
        return sum(map(len, self._held))

    @property
    def bytes(self) -> int:
        """What the buffers take now."""
        return self._size[0] * self._size[1] * self._token_bytes

    @property
    def bytes_limit(self) -> int:
        """What the buffers take at most: every slot as long as the context."""
        return max(self._slots, len(self._held)) * (self._context_length + self._spare) * self._token_bytes

    def known(self, rows: Sequence[Ids]) -> int:
        """How many tokens of `rows` need not be computed again."""
        return sum(max((common_prefix(row, held) for held in self._held), default=0) for row in rows)

    def acquire(self, row: Ids) -> int:
        """A slot for a text that begins as `row`, until `release`: one that it continues, a new one, or the least
        recently used."""
        known = {slot: common_prefix(row, self._held[slot]) for slot in self._free}
        best = max(known, key=known.__getitem__, default=None)
        # One that holds much more belongs to another text with the same beginning, which is copied from there.
        if best is not None and known[best] and len(self._held[best]) - known[best] <= DRAFT:
            self._free.remove(best)
            self.reused += known[best]
            return best
        if self._free and len(self._held) >= self._slots:
            return self._free.pop(0)
        self._held.append(NOTHING)
        self._place.append(len(self._place))
        return len(self._held) - 1

    def release(self, slot: int) -> None:
        """Give a slot back. What it holds stays until another text takes it."""
        self._free.append(slot)

    def release_all(self) -> None:
        """Give every slot back."""
        self._free += [slot for slot in range(len(self._held)) if slot not in self._free]

    def keep(self, slots: int) -> None:
        """Where there are more than twice as many slots as `slots`, go on with those most recently used, and give the
        memory of the others back. All must be free."""
        if len(self._held) <= 2 * slots:
            return
        kept = self._free[-slots:]
        places = [self._place[slot] for slot in kept]
        self._past = {
            name: make_buffer(buffer.states()[places], self._device) for name, buffer in self._past.items()
        }
        self._held = [self._held[slot] for slot in kept]
        self._place, self._free = list(range(slots)), list(range(slots))
        self._size = (slots, self._size[1])
        self._bindings.clear()

    def remaining(self, slot: int, row: Ids, count: int) -> int:
        """How many tokens of `row` have to be computed for logits at its last `count` positions.

        Where that is more than a step, the slot first takes over what another slot holds of the row's beginning.
        """
        wanted = len(row) - count
        known = min(common_prefix(row, self._held[slot]), wanted)
        if wanted - known > DRAFT:
            known = self._take_over(slot, row, known, wanted)
        return len(row) - known

    def prefill(self, slot: int, row: Ids, count: int) -> None:
        """Compute the next `chunk` tokens of `row` that the slot lacks, short of the last `count`."""
        self._make_room(len(row))
        start = len(row) - self.remaining(slot, row, count)
        self._feed(slot, row, start, min(start + self.chunk, len(row) - count), 0)

    def logits(self, slots: Sequence[int], rows: Sequence[Ids], counts: Sequence[int]) -> list[Logits]:
        """Logits (counts[i], vocab_size) at the last positions of row i, which is in slot `slots[i]`."""
        self._make_room(max(map(len, rows)))
        results: list[Logits] = [NO_LOGITS] * len(rows)
        steps = []
        for index, (slot, row, count) in enumerate(zip(slots, rows, counts, strict=True)):
            left = self.remaining(slot, row, count)
            if left == 1 and not self._spare:
                self._held[slot] = self._held[slot][: len(row) - 1]
                steps.append(index)
            else:
                results[index] = self._in_chunks(slot, row, len(row) - left, count)
        if len(steps) > 1:
            self._arrange(slots)
        for run in self._neighbours(steps, slots):
            for index, logits in zip(run, self._step(run, slots, rows), strict=True):
                results[index] = logits
        return results

    def _take_over(self, slot: int, row: Ids, known: int, wanted: int) -> int:
        """Copy the beginning of `row` from the slot that holds most of it, if that is more than `known`.

        Gives how much of it the slot then holds, `wanted` at most.
        """
        best = max(range(len(self._held)), key=lambda other: common_prefix(row, self._held[other]))
        length = min(common_prefix(row, self._held[best]), wanted)
        if length <= known:
            return known
        self._make_room(length)  # the slot may be newer than the buffers
        for buffer in self._past.values():
            buffer.copy_slot(self._place[best], self._place[slot], length)
        self._held[slot] = row[:length].copy()
        self.reused += length - known
        return length

    def _make_room(self, length: int) -> None:
        """Buffers for all slots, of `length` tokens at least; larger ones take over what the old ones hold."""
        old_slots, old_capacity = self._size
        slots, capacity = max(old_slots, 1), max(old_capacity, SMALLEST_CAPACITY)
        while slots < len(self._held):
            slots = min(2 * slots, max(self._slots, len(self._held)))
        while capacity < length + self._spare:
            capacity *= 2
        capacity = min(capacity, self._context_length + self._spare)
        if (slots, capacity) == self._size:
            return
        self._bindings.clear()
        inputs = self._session.inputs
        for name in past_names(inputs):
            states = past_states(inputs[name], slots, capacity)
            if name in self._past:
                states[:old_slots, :, :old_capacity] = self._past[name].states()
            self._past[name] = make_buffer(states, self._device)
        self._size = (slots, capacity)

    def _in_chunks(self, slot: int, row: Ids, start: int, count: int) -> Logits:
        """Compute `row` from `start` to its end; logits at its last `count` positions."""
        parts = []
        while start < len(row):
            end = min(start + self.chunk, len(row))
            parts.append(
                self._feed(slot, row, start, end, min(end - start, max(0, count - (len(row) - end))))
            )
            start = end
        parts = [part for part in parts if len(part)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _feed(self, slot: int, row: Ids, start: int, end: int, count: int) -> Logits:
        """Compute row[start:end] in one run, after what the slot holds of the row; logits of the last `count`."""
        place = self._place[slot]
        self._held[slot] = self._held[slot][:start]  # if the run fails, the rest is not to be relied on
        logits = self._bound(place, place + 1)(row[None, start:end], [start], count)
        self._held[slot] = row[:end].copy()
        return logits[0, :, : self._vocab_size]

    def _arrange(self, slots: Sequence[int]) -> None:
        """Bring `slots` next to each other in the buffers, since a run takes what lies between two addresses.

        They trade places with slots of other rows, waiting or released, which lose nothing by it. This happens when
        a row joins or leaves, and costs as much as copying both texts' states: less than a step. All rows of a call
        count, those too that run alone this time because of a draft, so that drafts do not move anything.
        """
        places = sorted(self._place[slot] for slot in slots)
        if places[-1] - places[0] == len(places) - 1:
            return
        total = len(self._held)
        # Of all stretches of that length, the one that most of them are in already.
        first = max(
            range(total - len(places) + 1), key=lambda at: sum(at <= p < at + len(places) for p in places)
        )
        target = range(first, first + len(places))
        inside = [slot for slot in range(total) if self._place[slot] in target and slot not in slots]
        outside = [slot for slot in slots if self._place[slot] not in target]
        for one, other in zip(inside, outside, strict=True):
            for buffer in self._past.values():
                buffer.swap_slots(
                    self._place[one], len(self._held[one]), self._place[other], len(self._held[other])
                )
            self._place[one], self._place[other] = self._place[other], self._place[one]

    def _neighbours(self, indices: Sequence[int], slots: Sequence[int]) -> Iterator[list[int]]:
        """`indices` of rows, in groups whose slots lie next to each other."""
        ordered = sorted(indices, key=lambda index: self._place[slots[index]])
        group = ordered[:1]
        for before, index in pairwise(ordered):
            if self._place[slots[index]] != self._place[slots[before]] + 1:
                yield group
                group = []
            group.append(index)
        if group:
            yield group

    def _step(self, run: Sequence[int], slots: Sequence[int], rows: Sequence[Ids]) -> Logits:
        """Compute the last token of each row of `run`, whose slots are neighbours: logits (len(run), 1, vocab_size)."""
        first = self._place[slots[run[0]]]
        lengths = [len(rows[index]) - 1 for index in run]
        ids = np.array([rows[index][-1:] for index in run])
        logits = self._bound(first, first + len(run))(ids, lengths, 1)
        for index in run:
            self._held[slots[index]] = rows[index].copy()
        return logits[:, :, : self._vocab_size]

    def _bound(self, first: int, last: int) -> BoundRun:
        if self._raw is not self._session.raw:  # a session is made anew in a forked process
            self._raw = self._session.raw
            self._bindings.clear()
        key = (first, last)
        if key not in self._bindings:
            self._bindings[key] = BoundRun(self._session, self._past, first, last)
            if len(self._bindings) > MOST_BINDINGS:
                self._bindings.popitem(last=False)
        self._bindings.move_to_end(key)
        return self._bindings[key]


def chunk_size(session: Session) -> int:
    """Tokens per run of a long prompt: few enough that a run's attention stays in the processor's own memory.

    128 took the least time, or within 4% of it, of 32 to 1024 for each kind of file (one thread, CPU seconds in a whole
    and in 128s): SmolLM2 in 4 bits, 768 tokens, 7.3 and 5.5; four layers of its width, 1024 tokens: float32 0.76 and
    0.61, 4 bits with a float32 cache 1.10 and 0.87, 4 bits with an int8 cache 1.45 and 1.22, standard operators 0.96
    and 0.78. Logits were identical to the last bit. On a device, where it has not been measured, runs are longer,
    since each waits for the one before.
    """
    return 128 if cache_device(session) is None else 512


NO_LOGITS: Logits = np.zeros((0, 0), np.float32)


def common_prefix(one: Ids, other: Ids) -> int:
    """How many ids two lists begin with together."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length
