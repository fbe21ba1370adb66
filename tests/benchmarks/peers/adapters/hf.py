"""transformers, in PyTorch or through optimum-onnx, which share `generate`."""

from __future__ import annotations

import time
from typing import Any

import torch
import transformers
from transformers import GenerationConfig, StoppingCriteria


class _Clock(StoppingCriteria):
    """Notes when each token is there; never stops."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.times: list[float] = []

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        self.times.append(time.perf_counter() - self.start)
        return torch.zeros(len(input_ids), dtype=torch.bool)


class Peer:
    def __init__(self, model: str, threads: int, use_cache: bool = True) -> None:
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        torch.set_num_threads(threads)
        self._use_cache = use_cache
        self._model = self._load(model, threads)
        # What belongs to the checkpoint (sampling, end tokens) is left out: greedy, a fixed number of tokens.
        self._model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)

    def _load(self, model: str, threads: int) -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    @torch.inference_mode()
    def generate(self, ids: list[int], count: int) -> tuple[list[int], list[float]]:
        tensor = torch.tensor([ids])
        clock = _Clock()
        made = self._model.generate(
            tensor, attention_mask=torch.ones_like(tensor), max_new_tokens=count, min_new_tokens=count,
            use_cache=self._use_cache, stopping_criteria=[clock],
        )  # fmt: skip
        return made[0, len(ids) :].tolist(), clock.times

    def forget(self) -> None:
        """Nothing is kept between calls."""

    @torch.inference_mode()
    def logprob_sum(self, windows: list[list[int]]) -> float:
        total = 0.0
        for ids in windows:
            tensor = torch.tensor([ids])
            logits = self._model(tensor, attention_mask=torch.ones_like(tensor)).logits[0, :-1].double()
            total += float(logits.log_softmax(-1).gather(1, tensor[0, 1:, None]).sum())
        return total
