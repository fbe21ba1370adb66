"""What the model computes between its weights, as functions that an exporter can put its own operators in place of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional as F

from edgelm.model.attention import Attend, AttentionSpec, causal_attention
from edgelm.model.position import rotate


class Operators(Protocol):
    """Attention, rotation, the choice of experts and convolutions along the text."""

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, spec: AttentionSpec, /
    ) -> torch.Tensor:
        """See `edgelm.model.Attend`."""

    def rotate_by(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor | None, /
    ) -> torch.Tensor:
        """x (B, H, T, D) turned by the rows of the tables (context, R / 2) at `positions` (B, T), or at 0 .. T - 1."""

    def mix(
        self,
        x: torch.Tensor,
        chosen: torch.Tensor,
        shares: torch.Tensor,
        up: torch.Tensor,
        down: torch.Tensor,
        /,
    ) -> torch.Tensor:
        """See `mixture`."""

    def convolve(self, x: torch.Tensor, kernel: torch.Tensor, layer: int, /) -> torch.Tensor:
        """See `convolution`."""


def rotate_by_table(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor | None
) -> torch.Tensor:
    """Rotate x (B, H, T, D) by the rows of the tables at `positions` (B, T), or at 0 .. T - 1."""
    if positions is None:
        return rotate(x, cos[: x.shape[2]].to(x.dtype), sin[: x.shape[2]].to(x.dtype))
    return rotate(x, cos[positions][:, None].to(x.dtype), sin[positions][:, None].to(x.dtype))


def mixture(
    x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """The sum of what the experts `chosen` (B, T, k) make of x (B, T, W), by their `shares` (B, T, k).

    `up` (E, 2 I, W) has a row of the gate and a row of the linear half in turn; `down` is (E, W, I). Each expert
    computes the tokens that chose it, and no others.
    """
    rows, choices, weights = x.flatten(0, 1), chosen.flatten(0, 1), shares.flatten(0, 1)
    total = torch.zeros_like(rows)
    for expert in choices.unique().tolist():
        at, place = torch.where(choices == expert)
        gate, linear = F.linear(rows[at], up[expert]).unflatten(-1, (-1, 2)).unbind(-1)
        made = F.linear(F.silu(gate) * linear, down[expert]) * weights[at, place, None]
        total = total.index_add(0, at, made.to(total.dtype))
    return total.view_as(x)


def convolution(x: torch.Tensor, kernel: torch.Tensor, layer: int) -> torch.Tensor:
    """Each feature of x (B, T, W) over its own last positions, by the `kernel` (L, W), whose last row is for now."""
    return weighted_positions(F.pad(x, (0, 0, len(kernel) - 1, 0)), kernel)


def weighted_positions(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """The same for x (B, L - 1 + T, W) that begins with the positions before: (B, T, W).

    Products and sums feature by feature: a position's result is the same whatever is computed with it.
    """
    back = len(kernel) - 1
    total = x[:, back:] * kernel[back]
    for place in range(back):
        total = total + x[:, place : place - back] * kernel[place]
    return total


RotateBy = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, "torch.Tensor | None"], torch.Tensor]
Mix = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class TorchOperators:
    """PyTorch's, for training and for running without a cache."""

    attend: Attend = causal_attention
    rotate_by: RotateBy = rotate_by_table
    mix: Mix = mixture
    convolve: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor] = convolution
