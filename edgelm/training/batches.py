"""Which tokens a training step sees: a function of the seed and the step, and of nothing else.

So a resumed run goes on exactly where it stopped, and N processes share one global batch without talking
to each other. The tokens are cut into windows of the context's length, from a random first place that
changes each epoch, and an epoch visits every window once in random order. The order comes from a
Feistel permutation, which needs no memory where a shuffled list would grow with the corpus.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgelm.training.shards import TokenStream

Ints = NDArray[np.int64]
_ROUNDS = 4


@dataclass(frozen=True)
class Windows:
    """Training windows over `tokens`: `context` input tokens each, and the one behind them as target."""

    tokens: TokenStream
    context: int
    seed: int

    @property
    def per_epoch(self) -> int:
        """Windows in an epoch. One less than would fit, so that the first place can move."""
        return max((len(self.tokens) - 1) // self.context - 1, 1)

    def batch(self, first: int, count: int) -> Ints:
        """Windows number `first` up to `first + count` of the whole run, int64 (count, context + 1)."""
        rows = [self._start(number) for number in range(first, first + count)]
        return np.stack([self.tokens.read(start, self.context + 1) for start in rows])

    def _start(self, number: int) -> int:
        epoch, index = divmod(number, self.per_epoch)
        spare = len(self.tokens) - 1 - self.per_epoch * self.context
        phase = mixed(self.seed, epoch) % (spare + 1)
        return phase + self.context * permuted(index, self.per_epoch, mixed(self.seed, epoch + (1 << 32)))


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
