"""How well a model predicts the held-out tokens, in nats per token and bits per byte."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch

from edgelm.checkpoint import Checkpoint
from edgelm.model import Transformer
from edgelm.training.distributed import World
from edgelm.training.shards import TokenStream


@dataclass(frozen=True)
class Measure:
    """`loss` in nats per token, end-of-text included; `tokens` it was measured on."""

    loss: float
    bits_per_byte: float
    tokens: int

    def to_dict(self) -> dict[str, float]:
        """The figures as a checkpoint's origin names them."""
        return {
            "val_loss": round(self.loss, 5),
            "val_bits_per_byte": round(self.bits_per_byte, 5),
            "val_tokens": self.tokens,
        }


@torch.no_grad()
def measure(
    model: Transformer,
    held_out: TokenStream,
    token_bytes: torch.Tensor,
    most_tokens: int,
    batch_size: int,
    world: World,
    autocast: Callable[[], AbstractContextManager[object]],
) -> Measure:
    """Mean loss over windows of the context's length, evenly spaced over `held_out`, `most_tokens` at most.

    Bits per byte counts all bits, those for end-of-text too, over the bytes of the predicted text. Every
    process measures its share of the windows. The model's mode is restored.
    """
    context = model.config.context_length
    available = (len(held_out) - 1) // context
    count = max(min(available, most_tokens // context), 1)
    starts = np.linspace(0, available - 1, count).round().astype(int) * context
    mine = starts[world.rank :: world.size]
    nats, tokens, size = 0.0, 0, 0
    was_training = model.training
    model.eval()
    try:
        for first in range(0, len(mine), batch_size):
            rows = np.stack([held_out.read(int(at), context + 1) for at in mine[first : first + batch_size]])
            batch = torch.from_numpy(rows)
            targets = batch[:, 1:]
            with autocast():
                _, loss = model(batch[:, :-1].to(world.device), targets.to(world.device))
            assert loss is not None
            nats += float(loss) * targets.numel()
            tokens += targets.numel()
            size += int(token_bytes[targets].sum())
    finally:
        model.train(was_training)
    nats, all_tokens, all_bytes = world.sums([nats, float(tokens), float(size)])
    return Measure(nats / all_tokens, nats / math.log(2) / max(all_bytes, 1), int(all_tokens))


def token_bytes(checkpoint: Checkpoint) -> torch.Tensor:
    """UTF-8 bytes behind each token id, int64 (vocab); special tokens stand for none."""
    tokenizer, size = checkpoint.tokenizer, checkpoint.config.vocab_size
    lengths = torch.zeros(size, dtype=torch.int64)
    if tokenizer is not None:
        for token_id in range(min(tokenizer.vocab_size, size)):
            lengths[token_id] = len(tokenizer.decode_bytes([token_id], skip_special=True))
    return lengths
