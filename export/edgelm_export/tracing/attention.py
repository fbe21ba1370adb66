"""What stands for attention and rotation in an exported graph.

`Transformer.hidden` takes both as functions. From opset 23 on ONNX has operators for them, which
onnxruntime runs as one kernel each on CPU and GPU; below, the graph spells them out. Both families share
what is the same in every layer (masks, positions), which is why they are made for one trace and dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from edgelm.model import AttentionSpec, rotate_by_table, visible
from edgelm.model.operators import Operators as ModelOperators
from edgelm_export.opsets import FUSED_OPSET
from edgelm_export.tracing.convolution import Convolutions
from edgelm_export.tracing.experts import RoutedExperts


class Operators(ModelOperators, Protocol):
    """The functions that `Transformer.hidden` asks for, and the positions to hand in with them."""

    def positions(self, ids: torch.Tensor) -> torch.Tensor | None:
        """Positions (B, T) of `ids`, or None where the model counts from 0 by itself."""


class Masks:
    """Boolean masks (T, T), true where a query may look; one for each window size in a graph."""

    def __init__(self) -> None:
        self._made: dict[int, torch.Tensor] = {}

    def __call__(self, length: int, window: int, device: torch.device) -> torch.Tensor:
        if window not in self._made:
            position = torch.arange(length, device=device)
            self._made[window] = visible(position[:, None] - position, window)
        return self._made[window]


class FusedOperators(RoutedExperts, Convolutions):
    """ONNX's `Attention` and `RotaryEmbedding` (https://onnx.ai/onnx/operators/), opset 23 and later.

    They take rows (B, T, heads * D) as they leave the projections: no transposes, and onnxruntime is 10 to
    20% faster than with (B, heads, T, D).
    """

    def __init__(self, rotary: bool) -> None:
        self._rotary = rotary
        self._masks = Masks()

    def positions(self, ids: torch.Tensor) -> torch.Tensor | None:
        # Learned positions are a slice of their table; only the rotary operator wants to be told.
        return torch.arange(ids.shape[1])[None].expand(ids.shape) if self._rotary else None

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, spec: AttentionSpec
    ) -> torch.Tensor:
        if spec.softcap:
            # Opset 23's text caps scores after masking them, which lets masked tokens through; onnxruntime
            # 1.32 does it the other way round. Spelled out, every runtime agrees.
            mask = self._masks(query.shape[2], spec.window, query.device)
            return spelled_out(query, key, value, spec, mask)
        inputs = [as_rows(query), as_rows(key), as_rows(value)]
        if spec.window:
            inputs.append(self._masks(query.shape[2], spec.window, query.device))
        attributes = {
            "scale": spec.scale, "is_causal": int(not spec.window),
            "q_num_heads": query.shape[1], "kv_num_heads": key.shape[1],
        }  # fmt: skip
        return as_heads(one_node("Attention", inputs, attributes, like=inputs[0]), query.shape[1])

    def rotate_by(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor | None
    ) -> torch.Tensor:
        assert positions is not None
        heads, head_dim = x.shape[1], x.shape[-1]
        return as_heads(rotary_node(as_rows(x), heads, head_dim, cos, sin, positions), heads)


class PlainOperators(RoutedExperts, Convolutions):
    """Products, sums and softmax only, for opsets and runtimes without the fused operators."""

    def __init__(self) -> None:
        self._masks = Masks()

    def positions(self, ids: torch.Tensor) -> torch.Tensor | None:
        return None

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, spec: AttentionSpec
    ) -> torch.Tensor:
        mask = self._masks(query.shape[2], spec.window, query.device)
        return spelled_out(query, key, value, spec, mask)

    def rotate_by(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor | None
    ) -> torch.Tensor:
        return rotate_by_table(x, cos, sin, positions)


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """(B, heads, T, D) as (B, T, heads * D)."""
    return x.transpose(1, 2).flatten(2)


def as_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(B, T, heads * D) as (B, heads, T, D)."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def spelled_out(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, spec: AttentionSpec, mask: torch.Tensor
) -> torch.Tensor:
    """Attention of query (B, H, S, D) to key and value (B, KV, T, D) where `mask`, like
    (B, KV, H / KV, S, T), is true."""
    batch, heads, length, size = query.shape
    kv = key.shape[1]
    # Heads that share keys are adjacent: (B, KV, H / KV, S, D) against (B, KV, 1, T, D).
    grouped = query.view(batch, kv, heads // kv, length, size)
    scores = grouped * spec.scale @ key[:, :, None].transpose(-1, -2)
    if spec.softcap:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    weights = torch.where(mask, scores, torch.finfo(scores.dtype).min).softmax(dim=-1)
    return (weights @ value[:, :, None]).view(batch, heads, length, size)


def rotary_node(
    x: torch.Tensor, heads: int, head_dim: int, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """ONNX's `RotaryEmbedding` of x, (B, T, heads * head_dim) or (B, heads, T, head_dim), at positions (B, T)."""
    attributes: dict[str, Any] = {"num_heads": heads}
    if (turned := 2 * cos.shape[-1]) != head_dim:
        attributes["rotary_embedding_dim"] = turned
    return one_node("RotaryEmbedding", [x, cos, sin, positions], attributes, like=x)


def one_node(
    name: str, inputs: Sequence[torch.Tensor | None], attributes: dict[str, Any], like: torch.Tensor,
    version: int = FUSED_OPSET,
) -> torch.Tensor:  # fmt: skip
    """A node of ONNX's own operator `name`, whose one output is like `like`."""
    made: torch.Tensor = torch.onnx.ops.symbolic(
        name, inputs, attributes, dtype=like.dtype, shape=like.shape, version=version
    )
    return made
