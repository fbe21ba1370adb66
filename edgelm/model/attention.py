"""Causal self-attention: one fused query-key-value matrix, grouped heads, optional rotation and window.

What happens between the projections is a function, `attend`, handed in from outside: PyTorch's
`scaled_dot_product_attention` for training and KV-free running, operators with an in-place cache when
the exporter builds a cached graph. No mask is ever stored; layers with a window make theirs on the fly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from edgelm.config import ModelConfig
from edgelm.model.norm import make_norm


@dataclass(frozen=True)
class AttentionSpec:
    """What one layer's attention is, apart from its tensors."""

    layer: int
    scale: float
    window: int = 0
    """Tokens each query sees, itself included; 0 for all before it."""
    softcap: float = 0.0
    dropout: float = 0.0


Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, AttentionSpec], torch.Tensor]
"""(query (B, H, T, D), key and value (B, KV, T, D), spec) -> (B, H, T, D)."""

Rotate = Callable[[torch.Tensor], torch.Tensor]
"""Turns queries or keys (B, H, T, D) by their positions."""


def causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, spec: AttentionSpec
) -> torch.Tensor:
    """Each position attends to itself and to those before it, within the layer's window."""
    grouped = key.shape[1] != query.shape[1]
    if spec.softcap:
        return _capped_attention(query, key, value, spec)
    mask = _window_mask(query, spec.window) if spec.window else None
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=spec.dropout, is_causal=mask is None,
        scale=spec.scale, enable_gqa=grouped,
    )  # fmt: skip


def _window_mask(query: torch.Tensor, window: int) -> torch.Tensor:
    """True where a query may look: (T, T)."""
    position = torch.arange(query.shape[2], device=query.device)
    return visible(position[:, None] - position, window)


def visible(distance: torch.Tensor, window: int) -> torch.Tensor:
    """True where a query may look: at itself (`distance` 0) and the tokens before it, within the window."""
    seen = distance >= 0
    return seen & (distance < window) if window else seen


def _capped_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, spec: AttentionSpec
) -> torch.Tensor:
    """Attention whose scores pass through `softcap * tanh(score / softcap)` (Gemma 2)."""
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    scores = spec.softcap * torch.tanh(query @ key.transpose(-1, -2) * (spec.scale / spec.softcap))
    scores = scores.masked_fill(~_window_mask(query, spec.window), float("-inf"))
    return F.dropout(scores.softmax(dim=-1), spec.dropout) @ value


class Attention(nn.Module):
    """Projections and norms around `attend`. Rows of `qkv` are all queries, then keys, then values."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = config.head_dim
        self.counts = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self.dropout = config.dropout
        self.spec = AttentionSpec(
            layer=layer,
            scale=config.attention_scale,
            window=config.sliding_window if config.is_local(layer) else 0,
            softcap=config.attention_softcap,
        )
        rows = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        self.qkv = nn.Linear(config.width, rows, bias=config.qkv_bias)
        self.out = nn.Linear(config.num_heads * config.head_dim, config.width, bias=config.attention_bias)
        self.joint_norm, self.norm_rotated = config.query_key_norm_joint, config.query_key_norm_rotated
        sizes = [count * config.head_dim if self.joint_norm else config.head_dim for count in self.counts[:2]]
        normed = [make_norm(config, size) if config.query_key_norm else nn.Identity() for size in sizes]
        self.query_norm, self.key_norm = normed

    def forward(self, x: torch.Tensor, rotate: Rotate | None, attend: Attend) -> torch.Tensor:
        batch, length, _ = x.shape  # (B, T, width)
        # Cut before heads and length change places: an exporter's operators take rows as they leave `qkv`.
        query, key, value = self.qkv(x).split([count * self.head_dim for count in self.counts], dim=-1)
        if self.joint_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key, value = (
            part.view(batch, length, count, self.head_dim).transpose(1, 2)
            for part, count in zip((query, key, value), self.counts, strict=True)
        )
        if not self.joint_norm and not self.norm_rotated:
            query, key = self.query_norm(query), self.key_norm(key)
        if rotate is not None:
            query, key = rotate(query), rotate(key)
        if self.norm_rotated:
            query, key = self.query_norm(query), self.key_norm(key)
        spec = self.spec
        if self.training and self.dropout:
            spec = AttentionSpec(spec.layer, spec.scale, spec.window, spec.softcap, self.dropout)
        mixed = attend(query, key, value, spec)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, self.num_heads * self.head_dim))
