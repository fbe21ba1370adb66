"""Routed experts: many gated MLPs, of which a router chooses a few for each token.

A token's share of each expert is the softmax of the router over all of them; the k largest are taken, and as the
config says made to sum to 1 (Qwen 3, Granite; the same as a softmax over the chosen alone) or left as they are
(OLMoE). Nothing here balances the load of experts in training: that is for models that have learned to route.
"""

from __future__ import annotations

import torch
from torch import nn

from edgelm.config import ModelConfig
from edgelm.model.mlp import MLP
from edgelm.model.operators import Operators


class Stacked(nn.Module):
    """The matrices of all experts, (experts, out, in), under the name that one matrix would have."""

    def __init__(self, experts: int, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, rows, columns).normal_(std=columns**-0.5))


class Experts(nn.Module):
    """In the place of an `MLP`. Rows of `up` are gate and linear half in turn, as onnxruntime's operator has them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.per_token, self.normalize = config.experts_per_token, config.normalize_experts
        self.router = nn.Linear(config.width, config.num_experts, bias=False)
        self.up = Stacked(config.num_experts, 2 * config.mlp_width, config.width)
        self.down = Stacked(config.num_experts, config.width, config.mlp_width)
        self.shared = MLP(config, config.shared_mlp_width) if config.shared_mlp_width else None

    def forward(
        self, x: torch.Tensor, operators: Operators
    ) -> torch.Tensor:  # (B, T, width) -> (B, T, width)
        shares, chosen = self.router(x).float().softmax(dim=-1).topk(self.per_token)
        if self.normalize:
            shares = shares / shares.sum(dim=-1, keepdim=True)
        mixed = operators.mix(x, chosen, shares, self.up.weight, self.down.weight)
        return mixed if self.shared is None else mixed + self.shared(x)
