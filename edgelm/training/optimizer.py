"""AdamW, and its learning rate over the run: linear warm-up, then half a cosine down.

The rate is a function of progress, the share of the budget that is used up, so one schedule serves a
budget in steps, in tokens or in minutes. Weight decay acts on what has two dimensions or more: every
matrix, embeddings among them; biases and norms are left alone.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from edgelm.training.config import TrainingConfig


def make_optimizer(model: nn.Module, config: TrainingConfig, device: torch.device) -> torch.optim.AdamW:
    """AdamW that decays matrices only, in PyTorch's fused form where the device has it."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in weights if weight.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [weight for weight in weights if weight.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        fused=device.type in ("cpu", "cuda"),
    )


def learning_rate(progress: float, peak: float, warmup: float, final_fraction: float) -> float:
    """The rate at `progress` in [0, 1]; `warmup` is the share of the budget that the rise takes."""
    if progress < warmup:
        # Never quite zero, so that the first step counts.
        return peak * max(progress / warmup, 0.01)
    fall = min((progress - warmup) / max(1.0 - warmup, 1e-9), 1.0)
    return peak * (final_fraction + (1.0 - final_fraction) * 0.5 * (1.0 + math.cos(math.pi * fall)))
