"""Attention with a cache: one `com.microsoft.GroupQueryAttention` per layer.

It writes the new keys and values into the cache (in place where past and present are one buffer), rotates
queries and keys by their position, and attends to what is valid. Opset 24's `TensorScatter` and `Attention`
do the same with standard operators, but `Attention` works through the whole buffer whatever is in it: one
step at 64 tokens in a buffer of 1024 took 100 us per layer against 12, a pass of 128 tokens 1.8 ms against
0.37 (one thread of an EPYC with AVX-512, onnxruntime 1.32, 9 heads on 3, 2026-11-29); `scatter_attention.py` has
them for devices that lack this operator. README.md has the contract of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from edgelm.config import ModelConfig
from edgelm.model import AttentionSpec, rotate_by_table
from edgelm_export.tracing.attention import as_heads, as_rows
from edgelm_export.tracing.convolution import CachedConvolutions, past_by_layer
from edgelm_export.tracing.experts import RoutedExperts


class CachedOperators(RoutedExperts, CachedConvolutions):
    """`attend` and `rotate_by` for one trace over new tokens (B, S) that follow a cached past.

    `past` are keys and values (B, KV, C, D) of each layer in turn; `present` collects what the graph returns
    for them, in the same order.
    """

    axis = "cache"
    """Name of the axis of `past` that tokens are on."""

    @staticmethod
    def head_dim(head_dim: int) -> int:
        """Features per head in the cache: the operator wants a multiple of 8, and zeros change nothing."""
        return -(-head_dim // 8) * 8

    def __init__(self, config: ModelConfig, cache_length: torch.Tensor, past: Sequence[torch.Tensor]) -> None:
        # The operator rotates features in groups of 16; others, and what is normed after it, are rotated before.
        last = not (config.query_key_norm and config.query_key_norm_rotated)
        self._rotates = config.position == "rotary" and config.rotary_dim % 16 == 0 and last
        self._cache_length = cache_length
        self._past = past_by_layer(config, past)
        self._tables: tuple[torch.Tensor, ...] = ()
        self._lengths: tuple[torch.Tensor, torch.Tensor] | None = None
        self.present: list[torch.Tensor] = []

    def positions(self, ids: torch.Tensor) -> torch.Tensor | None:
        length = ids.shape[1]
        last = (self._cache_length + (length - 1)).to(torch.int32)
        total = (self._cache_length.max() + length).to(torch.int32)
        self._lengths = (last, total)
        return None if self._rotates else self._cache_length[:, None] + torch.arange(length)

    def rotate_by(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor | None
    ) -> torch.Tensor:
        if not self._rotates:
            return rotate_by_table(x, cos, sin, positions)
        self._tables = (cos, sin)
        return x

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, spec: AttentionSpec
    ) -> torch.Tensor:
        assert self._lengths is not None
        past_key, past_value = self._past[spec.layer]
        head_dim = query.shape[-1]
        if lacking := self.head_dim(head_dim) - head_dim:
            query, key, value = (functional.pad(x, (0, lacking)) for x in (query, key, value))
        rows = as_rows(query)
        # What `rotate_by` has left for this layer; a layer that does not rotate is handed nothing.
        tables, self._tables = self._tables, ()
        attributes: dict[str, Any] = {
            "num_heads": query.shape[1], "kv_num_heads": key.shape[1], "scale": spec.scale,
            "do_rotary": int(bool(tables)), "local_window_size": spec.window or -1, "softcap": spec.softcap,
        }  # fmt: skip
        mixed, *present = torch.onnx.ops.symbolic_multi_out(
            "com.microsoft::GroupQueryAttention",
            [rows, as_rows(key), as_rows(value), past_key, past_value, *self._lengths, *tables],
            attributes,
            dtypes=[query.dtype] * 3,
            shapes=[rows.shape, past_key.shape, past_value.shape],
            version=1,
        )
        self.present += present
        return as_heads(mixed, query.shape[1])[..., :head_dim]
