"""The position-wise MLP, plain (width -> mlp_width -> width) or gated (SwiGLU and its kin)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from edgelm.config import ModelConfig
from edgelm.model.operators import Operators


def activate(name: str, x: torch.Tensor) -> torch.Tensor:
    """Apply the activation that the config calls `name`; the shape stays."""
    if name == "relu":
        return F.relu(x)
    if name == "silu":
        return F.silu(x)
    return F.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")


class MLP(nn.Module):
    """`down(activation(up(x)))`; gated: `down(activation(gate) * up)`, gate and up in one matrix."""

    def __init__(self, config: ModelConfig, mlp_width: int = 0) -> None:
        """`mlp_width` 0: the config's."""
        super().__init__()
        self.activation = config.activation
        self.gated = config.gated_mlp
        size = mlp_width or config.mlp_width
        self.up = nn.Linear(config.width, size * (2 if self.gated else 1), bias=config.mlp_bias)
        self.down = nn.Linear(size, config.width, bias=config.mlp_bias)

    def forward(self, x: torch.Tensor, operators: Operators | None = None) -> torch.Tensor:
        inner = self.up(x)  # (B, T, width) -> (B, T, inner)
        if not self.gated:
            return self.down(activate(self.activation, inner))
        gate, up = inner.chunk(2, dim=-1)
        return self.down(activate(self.activation, gate) * up)
