"""How well a model predicts the held-out tokens, in nats per token and bits per byte."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import nn

from edgelm.checkpoint import Checkpoint
from edgelm.data.batches import IGNORED, HeldOut
from edgelm.training.distributed import World


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
    objective: nn.Module,
    held_out: HeldOut,
    token_bytes: torch.Tensor,
    most_tokens: int,
    batch_size: int,
    world: World,
    autocast: Callable[[], AbstractContextManager[object]],
) -> Measure:
    """Mean loss over rows that are evenly spread over `held_out`, of `most_tokens` at most.

    Bits per byte counts all bits, those for end-of-text too, over the bytes of the predicted text. Every
    process measures its share of the rows. The objective's mode is restored.
    """
    mine = held_out.numbers(most_tokens)[world.rank :: world.size]
    nats, tokens, size = 0.0, 0, 0
    was_training = objective.training
    objective.eval()
    try:
        for first in range(0, len(mine), batch_size):
            batch = held_out.batch(mine[first : first + batch_size])
            with autocast():
                nats += float(objective(*batch.to(world.device), 1.0))
            tokens += batch.count
            size += int(token_bytes[batch.targets[batch.targets != IGNORED]].sum())
    finally:
        objective.train(was_training)
    nats, all_tokens, all_bytes = world.sums([nats, float(tokens), float(size)])
    return Measure(nats / max(all_tokens, 1), nats / math.log(2) / max(all_bytes, 1), int(all_tokens))


def token_bytes(checkpoint: Checkpoint) -> torch.Tensor:
    """UTF-8 bytes that each token id stands for, int64 (vocab); none for special tokens."""
    tokenizer, size = checkpoint.tokenizer, checkpoint.config.vocab_size
    lengths = torch.zeros(size, dtype=torch.int64)
    if tokenizer is not None:
        for token_id in range(min(tokenizer.vocab_size, size)):
            lengths[token_id] = len(tokenizer.decode_bytes([token_id], skip_special=True))
    return lengths
