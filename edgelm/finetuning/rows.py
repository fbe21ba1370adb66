"""Rendered conversations on disk, one per row, and which of them a step sees.

Rows of like length share a batch, so that little of it is padding; which ones, and in which order, is a function of
the seed and the row's number alone. Each row begins at position 0, padding is on the right, and attention is causal,
so rows need no mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from edgelm.data.batches import IGNORED, Batch, mixed, permuted
from edgelm.finetuning.rendering import Row

IDS, COUNTED, ENDS = "ids.npy", "counted.npy", "ends.npy"
_SHUFFLED_TOGETHER = 32
"""Batches whose rows are sorted by length."""


def save_rows(folder: Path, rows: Iterable[Row]) -> None:
    """Write rows to a folder."""
    kept = list(rows)
    ends = np.cumsum([len(row.ids) for row in kept], dtype=np.int64)
    np.save(folder / IDS, np.concatenate([np.asarray(row.ids, np.int32) for row in kept]))
    np.save(folder / COUNTED, np.concatenate([np.asarray(row.counted, np.bool_) for row in kept]))
    np.save(folder / ENDS, ends)


@dataclass(frozen=True)
class ChatRows:
    """Rows of a folder, memory-mapped."""

    ids: NDArray[np.int32]
    counted: NDArray[np.bool_]
    ends: NDArray[np.int64]

    @classmethod
    def load(cls, folder: Path) -> ChatRows:
        """What `save_rows` wrote."""
        ids, counted = (np.load(folder / name, mmap_mode="r") for name in (IDS, COUNTED))
        return cls(ids, counted, np.load(folder / ENDS))

    def __len__(self) -> int:
        return len(self.ends)

    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row."""
        return np.diff(self.ends, prepend=0)

    def count(self, number: int) -> int:
        """Targets that count in a row."""
        end = int(self.ends[number])
        start = int(self.ends[number - 1]) if number else 0
        return int(self.counted[start + 1 : end].sum())

    def batch(self, numbers: Sequence[int]) -> Batch:
        """The rows of these numbers, padded on the right."""
        starts = [int(self.ends[number - 1]) if number else 0 for number in numbers]
        length = max(int(self.ends[number]) - start for number, start in zip(numbers, starts, strict=True))
        ids = torch.zeros(len(numbers), length - 1, dtype=torch.int64)
        targets = torch.full_like(ids, IGNORED)
        for index, (number, start) in enumerate(zip(numbers, starts, strict=True)):
            row = torch.from_numpy(self.ids[start : int(self.ends[number])].astype(np.int64))
            counted = torch.from_numpy(self.counted[start + 1 : int(self.ends[number])].copy())
            ids[index, : len(row) - 1] = row[:-1]
            targets[index, : len(row) - 1] = row[1:].masked_fill(~counted, IGNORED)
        return Batch((ids, targets), int((targets != IGNORED).sum()))


class Rows(Protocol):
    """Rows, or pairs of rows, by their numbers."""

    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each."""

    def count(self, number: int) -> int:
        """Targets that count in one."""

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Those of these numbers, padded on the right."""


@dataclass
class ShuffledRows:
    """Training rows in the order of a run: all of `numbers` in each epoch, like lengths together."""

    rows: Rows
    numbers: Sequence[int]
    batch_size: int
    seed: int
    _order: tuple[int, list[int]] = field(default=(-1, []), repr=False)

    @property
    def per_epoch(self) -> int:
        """Rows in one pass over the data."""
        return len(self.numbers)

    def batch(self, first: int, count: int) -> Batch:
        """Rows number `first` up to `first + count` of the whole run."""
        return self.rows.batch([self._number(place) for place in range(first, first + count)])

    def _number(self, place: int) -> int:
        epoch, index = divmod(place, self.per_epoch)
        if self._order[0] != epoch:
            self._order = (epoch, self._epoch(epoch))
        return self._order[1][index]

    def _epoch(self, epoch: int) -> list[int]:
        """The numbers in the order of an epoch."""
        lengths, size = self.rows.lengths(), len(self.numbers)
        key = mixed(self.seed, epoch)
        shuffled = [self.numbers[permuted(index, size, key)] for index in range(size)]
        # The first batch of an epoch may have begun in the one before.
        begun = epoch * size % self.batch_size
        head = (self.batch_size - begun) % self.batch_size
        batches = []
        for start in range(head, size, self.batch_size * _SHUFFLED_TOGETHER):
            together = sorted(
                shuffled[start : start + self.batch_size * _SHUFFLED_TOGETHER], key=lambda n: (lengths[n], n)
            )
            batches += [
                together[at : at + self.batch_size] for at in range(0, len(together), self.batch_size)
            ]
        tail = batches.pop() if batches and len(batches[-1]) < self.batch_size else []
        order = [batches[permuted(index, len(batches), key ^ 1)] for index in range(len(batches))]
        return shuffled[:head] + [number for batch in order for number in batch] + tail


@dataclass(frozen=True)
class HeldOutRows:
    """Rows to measure on."""

    rows: Rows
    kept: Sequence[int]

    def numbers(self, most_tokens: int) -> list[int]:
        """Rows evenly spread over the held-out ones, of `most_tokens` counted targets in all, and at least one."""
        total = sum(self.rows.count(number) for number in self.kept)
        wanted = max(min(len(self.kept), int(len(self.kept) * most_tokens / max(total, 1))), 1)
        return [self.kept[index] for index in np.linspace(0, len(self.kept) - 1, wanted).round().astype(int)]

    def batch(self, numbers: Sequence[int]) -> Batch:
        """The rows of these numbers."""
        return self.rows.batch(numbers)
