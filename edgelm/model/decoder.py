"""The runtime's generation loop over a PyTorch model: same window, sampler and rules, another engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgelm.model.transformer import Transformer
from edgelm_runtime.engine.graph_inputs import last_positions, padded
from edgelm_runtime.generation.decoder import Decoder
from edgelm_runtime.generation.loop import generate_ids


class TorchDecoder(Decoder):
    """The runtime's `Decoder` over a `Transformer`, on the device where its weights are."""

    def __init__(self, model: Transformer) -> None:
        self._model = model
        self.context_length = model.config.context_length
        self.vocab_size = model.config.vocab_size

    @torch.no_grad()
    def __call__(self, rows: Sequence[NDArray[np.int64]], counts: Sequence[int]) -> list[NDArray[Any]]:
        device = self._model.token_embedding.weight.device
        hidden = self._model.hidden(torch.from_numpy(padded(rows)).to(device))
        at = torch.from_numpy(last_positions(rows, counts)).to(device)
        wanted = hidden.gather(1, at[..., None].expand(-1, -1, hidden.shape[-1]))
        logits = self._model.logits(wanted).float().cpu().numpy()
        return [row[len(row) - count :] for row, count in zip(logits, counts, strict=True)]


def generate(model: Transformer, prompt: Sequence[int], **options: Any) -> list[int]:
    """Token ids that continue `prompt`, by the same loop, sampler and sliding window as the runtime.

    `options` are those of `edgelm_runtime.generate_ids`. Gradients are off; the model runs in eval mode and
    is left in the mode that it was in.
    """
    training = model.training
    model.eval()
    try:
        return generate_ids(TorchDecoder(model), prompt, **options)
    finally:
        model.train(training)
