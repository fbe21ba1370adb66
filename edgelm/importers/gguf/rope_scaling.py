"""How a GGUF file says that rotary frequencies are stretched: by name, or by a tensor of divisors.

Llama 3's scaling comes as `rope_freqs`, and LongRoPE's as two tensors, of which the short one holds within the original
context.
"""

from __future__ import annotations

from typing import Any

from edgelm.config import RopeScaling
from edgelm.importers.notices import shortened
from edgelm.importers.settings import Settings
from edgelm.importers.weight_rules import Weights
from edgelm_runtime.errors import CheckpointError


def rope_scaling(settings: Settings, weights: Weights) -> dict[str, Any]:
    """Scaling by name, or by a tensor of divisors. Raises CheckpointError for kinds that are not known."""
    kind = settings.values.get("rope.scaling.type", "none")
    tensors = [name for name in ("rope_freqs.weight", "rope_factors_short.weight") if name in weights]
    if tensors and (len(tensors) > 1 or kind not in ("none", "linear", "longrope")):
        raise CheckpointError(
            f"{settings.source} scales its rotation by {' and '.join(tensors)} and by {kind}",
            "the file contradicts itself",
        )
    if "rope_factors_short.weight" in weights:
        return _longrope(settings, weights)
    if tensors:
        return {
            "rope_scaling": RopeScaling(kind="divisors", factor=1.0, divisors=_divisors(weights, tensors[0]))
        }
    factor = settings.positive("rope.scaling.factor", settings.positive("rope.scale_linear", 1.0))
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return {}
    if kind == "linear":
        return {"rope_scaling": RopeScaling(kind="linear", factor=factor)}
    if kind != "yarn":
        raise settings.refused("rope.scaling.type")
    settings.require(**{"rope.scaling.attn_factor": 1.0, "rope.scaling.yarn_log_multiplier": 0.0})
    original = settings.whole("rope.scaling.original_context_length")
    return {
        "rope_scaling": RopeScaling(
            kind="yarn", factor=factor, original_context=original,
            beta_fast=settings.positive("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=settings.positive("rope.scaling.yarn_beta_slow", 1.0),
        )
    }  # fmt: skip


def _longrope(settings: Settings, weights: Weights) -> dict[str, Any]:
    """LongRoPE within the original context, where its short factors hold; the context ends there."""
    longest = settings.whole("context_length")
    original = settings.whole("rope.scaling.original_context_length", longest)
    scaling = RopeScaling(
        kind="divisors", factor=1.0, divisors=_divisors(weights, "rope_factors_short.weight"),
        attention_factor=settings.positive("rope.scaling.attn_factor", 1.0),
    )  # fmt: skip
    return {
        "rope_scaling": scaling,
        "context_length": shortened(longest, min(longest, original), settings.source),
    }


def _divisors(weights: Weights, name: str) -> tuple[float, ...]:
    return tuple(weights[name].read().float().flatten().tolist())
