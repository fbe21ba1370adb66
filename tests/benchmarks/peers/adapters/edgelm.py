"""edgelm itself, from this checkout."""

from __future__ import annotations

import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[4]
sys.path[:0] = [str(ROOT), str(ROOT / "runtime")]

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402

import edgelm_runtime  # noqa: E402
from edgelm_runtime.scoring import score_ids  # noqa: E402


class Peer:
    """`decode` and `lookup` are those of edgelm; without a cache in the file `recompute` is all there is."""

    def __init__(self, model: str, threads: int, decode: str = "auto", lookup: int | str = 0) -> None:
        self.version = f"edgelm, onnxruntime {onnxruntime.__version__}"
        self._lm = edgelm_runtime.load(model, threads=threads, decode=decode)
        self._decoder = self._lm._decoder
        self._lookup = lookup

    def generate(self, ids: list[int], count: int) -> tuple[list[int], list[float]]:
        times: list[float] = []
        start = time.perf_counter()
        new = edgelm_runtime.generate_ids(
            self._decoder, ids, max_new_tokens=count, lookup=self._lookup,
            on_token=lambda _: times.append(time.perf_counter() - start),
        )  # fmt: skip
        return new, times

    def forget(self) -> None:
        """Drop what the cached decoder remembers of earlier prompts."""
        if hasattr(self._decoder, "clear"):
            self._decoder.clear()

    def logprob_sum(self, windows: list[list[int]]) -> float:
        return float(sum(score_ids(self._decoder, np.asarray(ids)).sum() for ids in windows))
