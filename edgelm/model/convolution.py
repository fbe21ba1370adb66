"""Short convolutions in the place of attention, as LFM2 has them (https://arxiv.org/abs/2511.23404).

The state of one is the last few positions that it was fed. What computes it, and what keeps the state, is handed in
(`Operators.convolve`), as attention is.
"""

from __future__ import annotations

import torch
from torch import nn

from edgelm.config import ModelConfig
from edgelm.model.operators import Operators


class Kernel(nn.Module):
    """Weights (L, W) for the last L positions of each feature."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        length, width = config.convolution_length, config.width
        self.weight = nn.Parameter(torch.empty(length, width).normal_(std=length**-0.5))
        self.bias = nn.Parameter(torch.zeros(width)) if config.convolution_bias else None


class ShortConvolution(nn.Module):
    """`output(after * convolution(before * x))`; `input` gives before, after and x in one matrix."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.input = nn.Linear(config.width, 3 * config.width, bias=config.convolution_bias)
        self.kernel = Kernel(config)
        self.output = nn.Linear(config.width, config.width, bias=config.convolution_bias)

    def forward(
        self, x: torch.Tensor, operators: Operators
    ) -> torch.Tensor:  # (B, T, width) -> (B, T, width)
        before, after, inner = self.input(x).chunk(3, dim=-1)
        mixed = operators.convolve(before * inner, self.kernel.weight, self.layer)
        if self.kernel.bias is not None:
            mixed = mixed + self.kernel.bias
        return self.output(after * mixed)
