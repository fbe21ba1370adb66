"""Rotary settings of Hugging Face's config.json, in both spellings: `rope_theta` and `rope_scaling` side by
side, or all of it in `rope_parameters` (transformers 5)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from edgelm.config import RopeScaling
from edgelm.importers.settings import Settings
from edgelm_runtime.errors import CheckpointError


def rotary_fields(
    settings: Settings,
    head_dim: int,
    theta: str = "rope_theta",
    partial: str = "partial_rotary_factor",
    usual_theta: float = 10_000.0,
    usual_partial: float = 1.0,
) -> dict[str, Any]:
    """Rotary fields; transformers 5 keeps them in `rope_parameters`, earlier ones side by side."""
    inner = Settings(settings.values.get("rope_parameters") or {}, settings.source)
    base = inner.number("rope_theta", settings.number(theta, usual_theta))
    share = inner.number("partial_rotary_factor", settings.number(partial, usual_partial))
    scaling = settings.values.get("rope_scaling") or inner.values
    return {
        "position": "rotary",
        "rope_theta": base,
        "rotary_dim": int(head_dim * share),
        "rope_scaling": rope_scaling(scaling, settings),
    }


def rope_scaling(values: Mapping[str, Any], settings: Settings) -> RopeScaling | None:
    """A `rope_scaling` entry. Raises CheckpointError for kinds other than linear, llama3 and yarn."""
    kind = values.get("rope_type") or values.get("type") or "default"
    entry = Settings(values, settings.source)
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=entry.number("factor", 1.0))
    longest = settings.whole("max_position_embeddings")
    original = entry.whole("original_max_position_embeddings", longest)
    if kind == "llama3":
        return RopeScaling(
            kind="llama3", factor=entry.number("factor", 8.0), original_context=original,
            low_freq_factor=entry.number("low_freq_factor", 1.0),
            high_freq_factor=entry.number("high_freq_factor", 4.0),
        )  # fmt: skip
    if kind != "yarn":
        raise CheckpointError(f"{settings.source}: rope scaling {kind!r} cannot be imported")
    entry.require(truncate=True)
    factor = entry.number("factor", longest / original)
    return RopeScaling(
        kind="yarn", factor=factor, original_context=original,
        beta_fast=entry.number("beta_fast", 0.0) or 32.0, beta_slow=entry.number("beta_slow", 0.0) or 1.0,
        attention_factor=_yarn_magnitude(entry, factor),
    )  # fmt: skip


def _yarn_magnitude(entry: Settings, factor: float) -> float | None:
    """`attention_factor`, or what `mscale` and `mscale_all_dim` make of it; None for YaRN's own rule."""
    if entry.values.get("attention_factor") is not None:
        return entry.number("attention_factor", 1.0)
    scale, all_dim = entry.number("mscale", 0.0), entry.number("mscale_all_dim", 0.0)
    if not scale or not all_dim or factor <= 1:
        return None
    return (0.1 * scale * math.log(factor) + 1) / (0.1 * all_dim * math.log(factor) + 1)
