"""Muon for the matrices of the blocks, AdamW for the rest, and their learning rates over the run.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) makes each update of a matrix orthogonal; its
updates are scaled to the size of AdamW's (Liu et al. 2025, https://arxiv.org/abs/2502.16982), so that one weight
decay suits both. What the model keeps in one matrix for speed (queries, keys and values; gate and up) is several
matrices to Muon. Embeddings, head, norms and biases are AdamW's.

Rates are a function of progress, the share of the budget that is used up, so one schedule serves a budget in steps,
in tokens or in minutes: a linear rise, the peak, and a fall over the last part. Weight decay acts on what has two
dimensions or more, embeddings among them; biases and norms are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from edgelm.model import Transformer
from edgelm.model.convolution import Kernel
from edgelm.training.config import TrainingConfig


class Optimizer:
    """AdamW, and Muon where `matrix_rate` asks for it, as one."""

    def __init__(self, model: Transformer, config: TrainingConfig, device: torch.device) -> None:
        self._cuts = dict(_matrices(model)) if config.matrix_rate else {}
        self._parts = {weight: _views(weight, rows) for weight, rows in self._cuts.items()}
        rest = [w for w in model.parameters() if w.requires_grad and w not in self._cuts]
        groups = [
            {"params": [weight for weight in rest if weight.dim() >= 2], "weight_decay": config.weight_decay},
            {"params": [weight for weight in rest if weight.dim() < 2], "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(
            groups,
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            fused=device.type in ("cpu", "cuda"),
        )
        self.muon: torch.optim.Muon | None = None
        if self._parts:
            self.muon = torch.optim.Muon(
                [part for parts in self._parts.values() for part in parts],
                lr=config.matrix_rate,
                weight_decay=config.weight_decay,
                momentum=config.momentum,
                adjust_lr_fn="match_rms_adamw",
            )
        self._peaks = config.learning_rate, config.matrix_rate

    def set_rates(self, share: float) -> None:
        """Set each rate to a share of its peak."""
        for optimizer, peak in zip((self.adamw, self.muon), self._peaks, strict=True):
            for group in optimizer.param_groups if optimizer is not None else ():
                group["lr"] = share * peak

    def step(self) -> None:
        """Change the weights by their gradients."""
        self.adamw.step()
        if self.muon is None:
            return
        for weight, parts in self._parts.items():
            if weight.grad is not None:
                for part, gradient in zip(parts, weight.grad.split(self._cuts[weight]), strict=True):
                    part.grad = gradient
        self.muon.step()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.adamw.zero_grad(set_to_none=True)
        for weight, parts in self._parts.items():
            for holder in (weight, *parts):
                holder.grad = None

    def state_dict(self) -> dict[str, Any]:
        """All that going on with the same steps needs."""
        return self.adamw.state_dict() | ({"muon": self.muon.state_dict()} if self.muon is not None else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave. Raises ValueError or KeyError where it is of other weights."""
        state = dict(state)
        if self.muon is not None:
            self.muon.load_state_dict(state.pop("muon"))
        self.adamw.load_state_dict(state)


def _matrices(model: Transformer) -> Iterator[tuple[nn.Parameter, list[int]]]:
    """The trained matrices of the blocks, each with the rows of the matrices that it is made of."""
    config = model.config
    keys = config.num_kv_heads * config.head_dim
    queries_keys_values = [config.num_heads * config.head_dim, keys, keys]
    # A convolution's taps for each feature are no matrix, though they have two dimensions.
    taps = {id(module.weight) for module in model.modules() if isinstance(module, Kernel)}
    for name, weight in model.blocks.named_parameters():
        if weight.dim() != 2 or not weight.requires_grad or id(weight) in taps:
            continue
        if name.endswith("attention.qkv.weight"):
            yield weight, queries_keys_values
        elif name.endswith(".up.weight") and config.gated_mlp:
            yield weight, [len(weight) // 2] * 2
        else:
            yield weight, [len(weight)]


def _views(weight: nn.Parameter, rows: list[int]) -> list[nn.Parameter]:
    """Parts of a weight that share its memory, for an optimiser of their own."""
    return [nn.Parameter(part) for part in weight.detach().split(rows)]


def rate_share(progress: float, config: TrainingConfig) -> float:
    """The share of the peak rate that holds at `progress` in [0, 1]."""
    if progress < config.warmup:
        # Never quite zero, so that the first step counts.
        return max(progress / config.warmup, 0.01)
    start = max(config.warmup, 1.0 - config.cooldown)
    fall = min(max((progress - start) / max(1.0 - start, 1e-9), 0.0), 1.0)
    left = 1.0 - fall if config.decay == "linear" else 0.5 * (1.0 + math.cos(math.pi * fall))
    return config.final_fraction + (1.0 - config.final_fraction) * left
