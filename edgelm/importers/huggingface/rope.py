"""Rotary settings of Hugging Face's config.json, in both spellings: `rope_theta` and `rope_scaling` side by
side, or all of it in `rope_parameters` (transformers 5)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from edgelm.config import RopeScaling
from edgelm.importers.notices import shortened
from edgelm.importers.settings import Settings
from edgelm_runtime.errors import CheckpointError


def rotary_fields(
    settings: Settings, head_dim: int, theta: str = "rope_theta", partial: str = "partial_rotary_factor"
) -> dict[str, Any]:
    """Rotary fields of a config whose layers all rotate alike.

    A rotary width that comes out odd is rounded up, as transformers' tables are; their frequencies still count in
    steps of 2 / width, which another base expresses exactly.
    """
    inner = settings.inner(settings.table("rope_parameters"))
    base = inner.positive("rope_theta", settings.positive(theta))
    share = inner.positive("partial_rotary_factor", settings.positive(partial, 1.0))
    scaling = settings.table("rope_scaling") or inner.values
    turned = int(head_dim * min(share, 1.0))
    if turned < 1:
        raise settings.wrong(partial, "it must leave at least one feature that rotates")
    even = turned + turned % 2
    return {
        "position": "rotary",
        "rope_theta": base ** (even / turned),
        "rotary_dim": even,
        "rope_scaling": rope_scaling(scaling, settings, even // 2),
    }


def layered_rotary_fields(settings: Settings, head_dim: int, local_theta: float) -> dict[str, Any]:
    """Rotary fields where local layers rotate by a base of their own, unscaled (Gemma 3, OLMo 3)."""
    nested = settings.table("rope_parameters")
    near: Mapping[str, Any] = {}
    if "full_attention" in nested or "sliding_attention" in nested:
        inner = settings.inner(nested)
        near = inner.table("sliding_attention")
        settings = settings.inner({**settings.values, "rope_parameters": inner.table("full_attention")})
    if near.get("rope_type", "default") != "default":
        raise settings.refused("rope_parameters")
    theta = settings.inner(near).positive("rope_theta", local_theta)
    return rotary_fields(settings, head_dim) | {"local_rope_theta": theta}


def rope_scaling(values: Mapping[str, Any], settings: Settings, pairs: int) -> RopeScaling | None:
    """A `rope_scaling` entry. Raises CheckpointError for kinds that cannot be expressed."""
    kind = values.get("rope_type") or values.get("type") or "default"
    entry = settings.inner(values)
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=entry.positive("factor", 1.0))
    longest = settings.whole("max_position_embeddings")
    usual = settings.whole("original_max_position_embeddings", longest)
    original = entry.whole("original_max_position_embeddings", usual)
    if kind == "llama3":
        return RopeScaling(
            kind="llama3", factor=entry.positive("factor", 8.0), original_context=original,
            low_freq_factor=entry.positive("low_freq_factor", 1.0),
            high_freq_factor=entry.positive("high_freq_factor", 4.0),
        )  # fmt: skip
    if kind in ("longrope", "su"):
        return _longrope(entry, pairs, original, longest)
    if kind != "yarn":
        raise CheckpointError(f"{settings.source}: rope scaling {kind!r} cannot be imported")
    entry.require(truncate=True)
    factor = entry.positive("factor", longest / original)
    return RopeScaling(
        kind="yarn", factor=factor, original_context=original,
        beta_fast=entry.number("beta_fast", 0.0) or 32.0, beta_slow=entry.number("beta_slow", 0.0) or 1.0,
        attention_factor=_yarn_magnitude(entry, factor),
    )  # fmt: skip


def _longrope(entry: Settings, pairs: int, original: int, longest: int) -> RopeScaling:
    """LongRoPE as far as the original context, where its short factors hold: one fixed table.

    https://arxiv.org/abs/2402.13753; the model's context ends there (`context_of`).
    """
    divisors = entry.values.get("short_factor")
    if not isinstance(divisors, list) or len(divisors) != pairs or not all(map(_is_positive, divisors)):
        raise entry.wrong("short_factor", f"it must be a list of {pairs} numbers above 0")
    factor = entry.positive("factor", longest / original)
    magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    return RopeScaling(
        kind="divisors", factor=1.0, divisors=tuple(map(float, divisors)),
        attention_factor=entry.positive("attention_factor", magnitude),
    )  # fmt: skip


def context_of(settings: Settings) -> int:
    """The context length: for LongRoPE the one before it was stretched, since its table changes there."""
    longest = settings.whole("max_position_embeddings")
    values = settings.table("rope_scaling") or settings.table("rope_parameters")
    if (values.get("rope_type") or values.get("type")) not in ("longrope", "su"):
        return longest
    usual = settings.whole("original_max_position_embeddings", longest)
    original = min(longest, settings.inner(values).whole("original_max_position_embeddings", usual))
    return shortened(longest, original, settings.source)


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e6


def _yarn_magnitude(entry: Settings, factor: float) -> float | None:
    """`attention_factor`, or what `mscale` and `mscale_all_dim` make of it; None for YaRN's own rule."""
    if entry.values.get("attention_factor") is not None:
        return entry.positive("attention_factor")
    scale, all_dim = entry.number("mscale", 0.0), entry.number("mscale_all_dim", 0.0)
    if not scale or not all_dim or factor <= 1:
        return None
    return (0.1 * scale * math.log(factor) + 1) / (0.1 * all_dim * math.log(factor) + 1)
