"""Which tokens a training step sees: a function of the seed and the step, and of nothing else.

So a resumed run goes on exactly where it stopped, and N processes share one global batch without talking
to each other. The tokens of plain text are cut into windows of the context's length, from a random first place that
changes each epoch, and an epoch visits every window once in random order. The order comes from a
Feistel permutation, which needs no memory where a shuffled list would grow with the corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from edgelm.data.shards import TokenStream

Ints = NDArray[np.int64]
IGNORED = -100
"""A target that does not count."""
_ROUNDS = 4


@dataclass(frozen=True)
class Batch:
    """Rows for the objective: what it is called with, and the number of targets that its loss is a mean over."""

    inputs: tuple[torch.Tensor, ...]
    """ids and targets, int64 (B, T) both, and whatever else the objective takes."""
    count: int

    @property
    def targets(self) -> torch.Tensor:
        """Int64 (B, T); -100 where a target does not count."""
        return self.inputs[1]

    def to(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """The inputs on a device."""
        return tuple(value.to(device, non_blocking=True) for value in self.inputs)


class Examples(Protocol):
    """What a run learns from: rows in an order that is a function of their number alone."""

    @property
    def per_epoch(self) -> int:
        """Rows in one pass over the data."""

    def batch(self, first: int, count: int) -> Batch:
        """Rows number `first` up to `first + count` of the whole run."""


class HeldOut(Protocol):
    """What a run is measured on."""

    def numbers(self, most_tokens: int) -> list[int]:
        """Numbers of the rows to measure on, evenly spread, of about `most_tokens` in all and at least one."""

    def batch(self, numbers: Sequence[int]) -> Batch:
        """The rows of these numbers."""


@dataclass(frozen=True)
class Windows:
    """Training windows over `tokens`: `context` input tokens each, and the one after each as its target."""

    tokens: TokenStream
    context: int
    seed: int

    @property
    def per_epoch(self) -> int:
        """Windows in an epoch. One less than would fit, so that the first place can move."""
        return max((len(self.tokens) - 1) // self.context - 1, 1)

    def batch(self, first: int, count: int) -> Batch:
        """Windows number `first` up to `first + count` of the whole run."""
        return _windows(self.tokens, self.context, [self._start(n) for n in range(first, first + count)])

    def _start(self, number: int) -> int:
        epoch, index = divmod(number, self.per_epoch)
        spare = len(self.tokens) - 1 - self.per_epoch * self.context
        phase = mixed(self.seed, epoch) % (spare + 1)
        return phase + self.context * permuted(index, self.per_epoch, mixed(self.seed, epoch + (1 << 32)))


@dataclass(frozen=True)
class HeldOutWindows:
    """Windows to measure on, one after the other."""

    tokens: TokenStream
    context: int

    def numbers(self, most_tokens: int) -> list[int]:
        """Evenly spaced windows of `most_tokens` tokens in all at most."""
        available = (len(self.tokens) - 1) // self.context
        count = max(min(available, most_tokens // self.context), 1)
        spaced: list[int] = np.linspace(0, available - 1, count).round().astype(int).tolist()
        return spaced

    def batch(self, numbers: Sequence[int]) -> Batch:
        """The windows of these numbers."""
        return _windows(self.tokens, self.context, [number * self.context for number in numbers])


def _windows(tokens: TokenStream, context: int, starts: Sequence[int]) -> Batch:
    rows = torch.from_numpy(np.stack([tokens.read(start, context + 1) for start in starts]))
    return Batch((rows[:, :-1], rows[:, 1:]), rows[:, 1:].numel())


def permuted(index: int, size: int, key: int) -> int:
    """Where `index` goes in a pseudo-random permutation of range(size) that `key` selects.

    A Feistel network permutes the numbers of 2 * half bits; those outside the range are sent through
    again until they fall inside (cycle walking), which takes fewer than 4 turns on average.
    """
    half = max((size - 1).bit_length() + 1, 2) // 2
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for turn in range(_ROUNDS):
            left, right = right, left ^ (mixed(key + turn, right) & mask)
        index = left << half | right
        if index < size:
            return index


def mixed(key: int, value: int) -> int:
    """64 well-mixed bits of both numbers (the finaliser of SplitMix64, Steele et al. 2014)."""
    bits = (key * 0x9E3779B97F4A7C15 + value * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & _ALL
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & _ALL
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & _ALL
    return bits ^ bits >> 31


_ALL = (1 << 64) - 1
