"""Decoders without a model, and the small model files of this folder."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.generation.decoder import Decoder

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]

DATA = Path(__file__).parent / "data"
TINY, CHAT, IDS = DATA / "tiny.onnx", DATA / "chat.onnx", DATA / "ids.onnx"
CACHED, FOREIGN, BROKEN = DATA / "cached.onnx", DATA / "foreign.onnx", DATA / "broken.onnx"


class ScriptedDecoder(Decoder):
    """Wants to continue any text as `script` goes on at the same place, one token per position."""

    def __init__(self, script: Sequence[int], vocab_size: int = 257, context_length: int = 4096) -> None:
        self.script = list(script)
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.windows: list[list[int]] = []
        """Lengths of the rows of each pass."""

    def __call__(self, rows: Sequence[Ids], counts: Sequence[int]) -> list[Floats]:
        self.windows.append([len(row) for row in rows])
        return [self._logits(len(row), count) for row, count in zip(rows, counts, strict=True)]

    def _logits(self, length: int, count: int) -> Floats:
        logits = np.zeros((count, self.vocab_size), np.float32)
        for index, position in enumerate(range(length - count + 1, length + 1)):
            logits[index, self.script[position % len(self.script)]] = 10
        return logits


class RandomDecoder(Decoder):
    """A deterministic stand-in for a model: logits depend on every token of the window up to the position,
    so that a wrong window, a wrong row or a wrong count shows. Mostly the last token decides, as in text
    that repeats itself, which makes lookup accept some drafts and reject others."""

    def __init__(
        self, vocab_size: int = 12, context_length: int = 20, seed: int = 0, noise: float = 0.5
    ) -> None:
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.noise = noise
        self.passes: list[int] = []
        """Rows of each pass."""
        generator = np.random.default_rng(seed)
        self._by_token = 2 * generator.standard_normal((vocab_size, vocab_size))
        self._noise = generator.standard_normal((997, vocab_size))

    def __call__(self, rows: Sequence[Ids], counts: Sequence[int]) -> list[Floats]:
        assert all(
            1 <= count <= len(row) <= self.context_length for row, count in zip(rows, counts, strict=True)
        )
        self.passes.append(len(rows))
        return [self._logits(row, count) for row, count in zip(rows, counts, strict=True)]

    def _logits(self, row: Ids, count: int) -> Floats:
        ends = range(len(row) - count + 1, len(row) + 1)
        seen = [zlib.crc32(np.asarray(row[:end], np.int64).tobytes()) % len(self._noise) for end in ends]
        logits = self._by_token[row[len(row) - count :]] + self.noise * self._noise[seen]
        return logits.astype(np.float32)


def pieces_text(pieces: Sequence[Any]) -> str:
    """The text of a stream's pieces together."""
    return "".join(piece.text for piece in pieces)
