"""Convolutions along the text in an exported graph, without and with a cache.

The state of a convolution is what it was fed at its last positions. A cache of only those could not be shortened: what
came before them is gone. So a graph keeps what a convolution was fed at every position, as keys and values are kept
for attention, and reads those before `cache_length`. Then a smaller `cache_length` forgets, as everywhere, and
lookup, shared beginnings and forks need no rule of their own (README.md, "Cache contract"). The price is memory:
`width` numbers in float32 for each token and such a layer; LFM2-350M, ten layers of 1024: 41 KB per token.

`ScatterND` writes in place where past and present are one buffer, and so wants room for the new positions: the axis
is called CAPACITY.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgelm.config import ModelConfig
from edgelm.model.operators import convolution, weighted_positions
from edgelm_runtime.model_file.interface import PAST

INPUTS = "inputs"
PARTS = {False: ("key", "value"), True: (INPUTS,)}
"""What a layer has in a cache, by whether it convolves."""


def cache_names(config: ModelConfig) -> list[str]:
    """The cache inputs, in order: `past_key_values.0.key`, `.0.value`, `past_key_values.1.inputs`, ..."""
    return [
        f"{PAST}{layer}.{part}"
        for layer in range(config.num_layers)
        for part in PARTS[config.convolves(layer)]
    ]


def past_by_layer(config: ModelConfig, past: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """`past`, in the order of `cache_names`, for each layer."""
    rest = iter(past)
    return [[next(rest) for _ in PARTS[config.convolves(layer)]] for layer in range(config.num_layers)]


class Convolutions:
    """`edgelm.model.Operators.convolve` for graphs without a cache."""

    def convolve(self, x: torch.Tensor, kernel: torch.Tensor, layer: int) -> torch.Tensor:
        """See `edgelm.model.operators.convolution`."""
        return convolution(x, kernel, layer)


class CachedConvolutions:
    """The same over new tokens (B, S) that follow a past: (B, 1, C, W) of each layer that convolves."""

    _cache_length: torch.Tensor
    _past: list[list[torch.Tensor]]
    present: list[torch.Tensor]
    _places: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    def convolve(self, x: torch.Tensor, kernel: torch.Tensor, layer: int) -> torch.Tensor:
        """See `edgelm.model.operators.convolution`."""
        (past,) = self._past[layer]
        before, known, written = self._indices(x, len(kernel) - 1)
        symbolic = torch.onnx.ops.symbolic
        shape = (x.shape[0], len(kernel) - 1, x.shape[-1])
        rows = symbolic("GatherND", [past, before], {"batch_dims": 1}, dtype=x.dtype, shape=shape, version=18)
        self.present.append(
            symbolic("ScatterND", [past, written, x], dtype=x.dtype, shape=past.shape, version=18)
        )
        rows = torch.where(known, rows, 0.0)
        return weighted_positions(torch.cat([rows, x], dim=1), kernel)

    def _indices(self, x: torch.Tensor, back: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Where the positions before the new ones lie (B, back, 2), which there are, and where the new ones go
        (B, S, 3): made once for all layers."""
        if self._places is None:
            start = self._cache_length[:, None]
            at = start + torch.arange(-back, 0)
            place = at.clamp(min=0)[..., None]
            new = (start + torch.arange(x.shape[1]))[..., None]
            row = torch.arange(x.shape[0])[:, None, None].expand(new.shape)
            self._places = (
                torch.cat([torch.zeros_like(place), place], dim=-1),
                (at >= 0)[..., None],
                torch.cat([row, torch.zeros_like(new), new], dim=-1),
            )
        return self._places
