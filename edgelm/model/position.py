"""Rotary position embedding: tables of cosines and sines, and the rotation.

Features are paired as (i, i + rotary_dim / 2), the layout of the Hugging Face checkpoints and of ONNX's
`RotaryEmbedding` with `interleaved=0`; importers reorder what is stored otherwise. Su et al. 2021,
https://arxiv.org/abs/2104.09864. Scalings: linear (positions divided), Llama 3.1 and YaRN
(https://arxiv.org/abs/2309.00071, https://huggingface.co/docs/transformers rope utilities).
"""

from __future__ import annotations

import math

import torch

from edgelm.config import ModelConfig, RopeScaling


def rotary_table(config: ModelConfig, local: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines for every position of the context, float32 (context, rotary_dim / 2) each."""
    own_base = local and config.local_rope_theta > 0
    base = config.local_rope_theta if own_base else config.rope_theta
    exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.float64) / config.rotary_dim
    frequencies = base**-exponents
    magnitude = 1.0
    if config.rope_scaling is not None and not own_base:
        frequencies, magnitude = _scaled(frequencies, config.rope_scaling, base)
    angles = torch.arange(config.context_length, dtype=torch.float64)[:, None] * frequencies
    return (angles.cos() * magnitude).float(), (angles.sin() * magnitude).float()


def _scaled(frequencies: torch.Tensor, scaling: RopeScaling, base: float) -> tuple[torch.Tensor, float]:
    if scaling.kind == "linear":
        return frequencies / scaling.factor, 1.0
    if scaling.kind == "divisors":
        factor = 1.0 if scaling.attention_factor is None else scaling.attention_factor
        return frequencies / torch.tensor(scaling.divisors, dtype=torch.float64), factor
    if scaling.kind == "llama3":
        # Turns over the original context decide: few turns are slowed down, many are kept.
        turns = scaling.original_context * frequencies / (2 * math.pi)
        ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        keep = ramp.clamp(0, 1)
        return frequencies * (keep + (1 - keep) / scaling.factor), 1.0
    pairs = len(frequencies)

    def pair_of(turns: float) -> float:
        """The feature pair that makes `turns` full turns over the original context."""
        return pairs * math.log(scaling.original_context / (turns * 2 * math.pi)) / math.log(base)

    low = max(math.floor(pair_of(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_of(scaling.beta_slow)), 2 * pairs - 1)
    ramp = ((torch.arange(pairs, dtype=torch.float64) - low) / max(high - low, 1e-3)).clamp(0, 1)
    magnitude = scaling.attention_factor
    if magnitude is None:
        magnitude = 0.1 * math.log(scaling.factor) + 1 if scaling.factor > 1 else 1.0
    return frequencies * (1 - ramp) + frequencies / scaling.factor * ramp, magnitude


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the leading features of x (B, H, T, D) by cos and sin, each (T, R / 2) or (B, 1, T, R / 2)."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat(turned if rest.shape[-1] == 0 else (*turned, rest), dim=-1)
