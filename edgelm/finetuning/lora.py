"""Low-rank adapters (LoRA, Hu et al. 2021): W x + (alpha / rank) B A x, with W as it was and A and B learned.

Every matrix of the blocks gets one. Optimiser state and gradients exist for A and B alone, so a model that does not
fit for full training does. At the end W + (alpha / rank) B A takes the place of W.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from edgelm.model import Transformer

ALPHA_PER_RANK = 2.0
"""alpha / rank: the same learning rate then serves every rank."""


class LoraLinear(nn.Module):
    """A linear layer (out, in) that is frozen, with an adapter of `rank` next to it."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.empty(rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))  # so that nothing changes at first
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + ALPHA_PER_RANK * (x @ self.down.T.to(x.dtype)) @ self.up.T.to(x.dtype)

    def merged(self) -> torch.Tensor:
        """The weight (out, in) that computes the same by itself."""
        return self.base.weight.detach() + ALPHA_PER_RANK * self.up.detach() @ self.down.detach()


def add_adapters(model: Transformer, rank: int, seed: int) -> None:
    """Freeze the model and put an adapter next to every matrix of its blocks, in place."""
    torch.manual_seed(seed)
    model.requires_grad_(False)
    for module in list(model.blocks.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, LoraLinear(child, rank))


def adapters(model: Transformer) -> dict[str, torch.Tensor]:
    """The weights of all adapters and the matrices next to them, by name: what a resumed run needs exactly."""
    return {
        f"{name}.{part}": value.detach()
        for name, module in model.named_modules()
        if isinstance(module, LoraLinear)
        for part, value in (("down", module.down), ("up", module.up), ("base", module.base.weight))
    }


def load_adapters(model: Transformer, values: dict[str, torch.Tensor]) -> None:
    """Take over what `adapters` gave. Raises KeyError, RuntimeError where it is of another model."""
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, LoraLinear):
                module.down.copy_(values[f"{name}.down"])
                module.up.copy_(values[f"{name}.up"])
                module.base.weight.copy_(values[f"{name}.base"])


def merged_weights(model: Transformer) -> dict[str, torch.Tensor]:
    """The weights of a model without adapters that computes the same, by the names of such a model."""
    merged = {
        f"{name}.weight": module.merged()
        for name, module in model.named_modules()
        if isinstance(module, LoraLinear)
    }
    weights = {}
    for name, weight in model.state_dict().items():
        if name.endswith((".down", ".up")) and name.rpartition(".")[0] + ".weight" in merged:
            continue
        plain = name.replace(".base.", ".")
        weights[plain] = merged.get(plain, weight.detach())
    return weights
