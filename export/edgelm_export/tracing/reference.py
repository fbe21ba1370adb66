"""PyTorch's answers, which parity compares a graph with."""

from __future__ import annotations

import torch

from edgelm.model import Transformer
from edgelm_export.checks.parity import Answer
from edgelm_runtime.arrays import Floats, Ids


def torch_answer(model: Transformer, vocab_size: int) -> Answer:
    """PyTorch's logits of `model`, in eval mode, cut to `vocab_size`."""

    @torch.no_grad()
    def answer(row: Ids, at: Ids) -> Floats:
        device = model.token_embedding.weight.device
        hidden = model.hidden(torch.from_numpy(row).to(device)[None])[0]
        logits: Floats = (
            model.logits(hidden[torch.from_numpy(at).to(device)])[:, :vocab_size].float().cpu().numpy()
        )
        return logits

    return answer
