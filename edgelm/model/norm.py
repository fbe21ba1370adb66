"""Normalisation layers, by the name that the config gives them."""

from __future__ import annotations

from torch import nn

from edgelm.config import ModelConfig


def make_norm(config: ModelConfig, width: int = 0) -> nn.Module:
    """The config's norm over the last axis, of `width` features (0: the model's width)."""
    size = width or config.width
    if config.norm == "rmsnorm":
        return nn.RMSNorm(size, eps=config.norm_eps)
    return nn.LayerNorm(size, eps=config.norm_eps, bias=config.norm_bias)
