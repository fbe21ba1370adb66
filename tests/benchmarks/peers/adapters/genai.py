"""onnxruntime-genai over a folder that its own model builder made."""

from __future__ import annotations

import json
import time
from importlib.metadata import version

import numpy as np
import onnxruntime_genai as og


class Peer:
    def __init__(self, model: str, threads: int) -> None:
        self.version = f"onnxruntime-genai {version('onnxruntime-genai')}"
        config = og.Config(model)
        options = {"session_options": {"intra_op_num_threads": threads}}
        config.overlay(json.dumps({"model": {"decoder": options}}))
        self._model = og.Model(config)

    def _generator(self, length: int) -> og.Generator:
        params = og.GeneratorParams(self._model)
        # No end before `length` tokens, however likely the model finds one.
        params.set_search_options(do_sample=False, max_length=length, min_length=length, batch_size=1)
        return og.Generator(self._model, params)

    def generate(self, ids: list[int], count: int) -> tuple[list[int], list[float]]:
        times: list[float] = []
        start = time.perf_counter()
        generator = self._generator(len(ids) + count)
        generator.append_tokens(np.array(ids, np.int32))
        for _ in range(count):
            generator.generate_next_token()
            times.append(time.perf_counter() - start)
        return generator.get_sequence(0)[len(ids) :].tolist(), times

    def forget(self) -> None:
        """Each call has a generator of its own."""

    def logprob_sum(self, windows: list[list[int]]) -> float:
        total = 0.0
        for ids in windows:
            generator = self._generator(len(ids) + 1)
            generator.append_tokens(np.array(ids, np.int32))
            logits = generator.get_output("logits")[0, :-1].astype(np.float64)
            logits -= logits.max(-1, keepdims=True)
            logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
            total += float(logits[np.arange(len(ids) - 1), ids[1:]].sum())
        return total
