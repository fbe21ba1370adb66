"""Generation as a first sketch of such a program does it, in PyTorch: no cache, the last `context` tokens in
full at every step, logits for every position, and a draw from the softmax of the last."""

from __future__ import annotations

import time

import torch
import transformers


class Peer:
    def __init__(self, model: str, threads: int) -> None:
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        torch.set_num_threads(threads)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self._context = self._model.config.max_position_embeddings

    @torch.inference_mode()
    def generate(self, ids: list[int], count: int) -> tuple[list[int], list[float]]:
        text, times = torch.tensor([ids]), []
        start = time.perf_counter()
        for _ in range(count):
            logits = self._model(text[:, -self._context :], use_cache=False).logits
            drawn = torch.multinomial(logits[:, -1].softmax(-1), 1)
            text = torch.cat((text, drawn), dim=1)
            times.append(time.perf_counter() - start)
        return text[0, len(ids) :].tolist(), times

    def forget(self) -> None:
        """Nothing is kept between calls."""
