"""Attention with a cache by ONNX's own operators, for devices: `TensorScatter` and `Attention` of opset 24.

`GroupQueryAttention` takes float32 on the CPU only; these have float32 kernels on CUDA too. `TensorScatter` writes
the new keys and values into the cache, in place where past and present are one buffer, and `Attention` is told how
much of the buffer is valid in each row. Causality counts from the end of that (bottom right), which onnxruntime does
from 1.28 on. README.md has the contract of the graph, and where it differs from the other operator's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgelm.config import ModelConfig
from edgelm.model import AttentionSpec, visible
from edgelm_export.opsets import STATIC_CACHE_OPSET
from edgelm_export.tracing.attention import one_node, rotary_node, spelled_out
from edgelm_export.tracing.convolution import CachedConvolutions, past_by_layer
from edgelm_export.tracing.experts import RoutedExperts
from edgelm_runtime.model_file.interface import CAPACITY


class StandardCachedOperators(RoutedExperts, CachedConvolutions):
    """`attend` and `rotate_by` for one trace over new tokens (B, S) that follow a cached past.

    `past` are keys and values (B, KV, C, D) of each layer in turn; `present` collects what the graph returns
    for them, in the same order.
    """

    axis = CAPACITY
    """Name of the axis of `past` that tokens are on; it tells readers that the cache can never be empty."""

    @staticmethod
    def head_dim(head_dim: int) -> int:
        """Features per head in the cache."""
        return head_dim

    def __init__(self, config: ModelConfig, cache_length: torch.Tensor, past: Sequence[torch.Tensor]) -> None:
        self._cache_length = cache_length
        self._past = past_by_layer(config, past)
        self._positions: torch.Tensor | None = None  # (B, S)
        self._valid: torch.Tensor | None = None  # (B), tokens in the cache with the new ones
        self._masks: dict[int, torch.Tensor] = {}
        self.present: list[torch.Tensor] = []

    def positions(self, ids: torch.Tensor) -> torch.Tensor | None:
        length = ids.shape[1]
        self._valid = self._cache_length + length
        self._positions = self._cache_length[:, None] + torch.arange(length)
        return self._positions

    def rotate_by(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor | None
    ) -> torch.Tensor:
        assert positions is not None
        # Heads apart (B, H, S, D), as `TensorScatter` wants them.
        return rotary_node(x, x.shape[1], x.shape[-1], cos, sin, positions)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, spec: AttentionSpec
    ) -> torch.Tensor:
        past_key, past_value = self._past[spec.layer]
        key, value = self._written(past_key, key), self._written(past_value, value)
        self.present += [key, value]
        if spec.softcap:  # `FusedOperators` says why
            return spelled_out(query, key, value, spec, self._seen(spec.window, past_key)[:, :, None])
        inputs: list[torch.Tensor | None] = [query, key, value]
        if spec.window:
            inputs.append(self._seen(spec.window, past_key))
        else:
            inputs += [None, None, None, self._valid]
        attributes = {"scale": spec.scale, "is_causal": int(not spec.window)}
        return one_node("Attention", inputs, attributes, like=query, version=STATIC_CACHE_OPSET)

    def _written(self, past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """The cache (B, KV, C, D) with the new tokens' states (B, KV, S, D) after what was valid."""
        return one_node(
            "TensorScatter",
            [past, new, self._cache_length],
            {"axis": 2},
            like=past,
            version=STATIC_CACHE_OPSET,
        )

    def _seen(self, window: int, past: torch.Tensor) -> torch.Tensor:
        """Where in the buffer a new token may look: boolean (B, 1, S, C)."""
        assert self._positions is not None
        if window not in self._masks:
            distance = self._positions[:, None, :, None] - torch.arange(past.shape[2])
            self._masks[window] = visible(distance, window)
        return self._masks[window]
