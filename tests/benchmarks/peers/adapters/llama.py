"""llama-cpp-python over a GGUF file."""

from __future__ import annotations

import time
from itertools import islice

import llama_cpp
import numpy as np

CONTEXT = 2048


class Peer:
    def __init__(self, model: str, threads: int, logits_all: bool = False) -> None:
        self.version = f"llama-cpp-python {llama_cpp.__version__}"
        self._llama = llama_cpp.Llama(
            model,
            n_ctx=CONTEXT,
            n_threads=threads,
            n_threads_batch=threads,
            logits_all=logits_all,
            verbose=False,
        )

    def generate(self, ids: list[int], count: int) -> tuple[list[int], list[float]]:
        new, times = [], []
        start = time.perf_counter()
        for token in islice(self._llama.generate(ids, temp=0.0), count):
            times.append(time.perf_counter() - start)
            new.append(token)
        return new, times

    def forget(self) -> None:
        """Without this the prompt's common prefix with the last call is not evaluated again."""
        self._llama.reset()

    def logprob_sum(self, windows: list[list[int]]) -> float:
        total = 0.0
        for ids in windows:
            self._llama.reset()
            self._llama.eval(ids)
            logits = self._llama.scores[: len(ids) - 1].astype(np.float64)
            logits -= logits.max(-1, keepdims=True)
            logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
            total += float(logits[np.arange(len(ids) - 1), ids[1:]].sum())
        return total
