"""PyTorch eager: the edgelm checkpoint in PyTorch, through the same generation loop, without a cache."""

from __future__ import annotations

import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[4]
sys.path[:0] = [str(ROOT), str(ROOT / "runtime")]

import torch  # noqa: E402

from edgelm.checkpoint import load_checkpoint  # noqa: E402


class Peer:
    def __init__(self, model: str, threads: int) -> None:
        self.version = f"torch {torch.__version__}"
        torch.set_num_threads(threads)
        self._model = load_checkpoint(Path(model)).model.eval()

    def generate(self, ids: list[int], count: int) -> tuple[list[int], list[float]]:
        times: list[float] = []
        start = time.perf_counter()
        new = self._model.generate(
            ids, max_new_tokens=count, lookup=0, on_token=lambda _: times.append(time.perf_counter() - start)
        )
        return new, times

    def forget(self) -> None:
        """There is nothing to forget."""
