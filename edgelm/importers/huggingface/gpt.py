"""Readers of the GPT families, whose config.json has names of its own."""

from __future__ import annotations

from typing import Any

from edgelm.importers.huggingface.rope import rotary_fields
from edgelm.importers.huggingface.windows import window
from edgelm.importers.settings import Settings
from edgelm.importers.weight_rules import Weights

Fields = dict[str, Any]


def gpt2(settings: Settings, weights: Weights, layers: int) -> Fields:
    settings.require(scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    width = settings.whole("n_embd")
    return {
        "context_length": settings.whole("n_positions"),
        "width": width,
        "num_heads": settings.whole("n_head"),
        "mlp_width": settings.whole("n_inner", 4 * width),
        "activation": settings.activation("activation_function"),
        "norm_eps": settings.positive("layer_norm_epsilon"),
        "attention_scale": 0.0 if settings.flag("scale_attn_weights") else 1.0,
    }


def gpt_neo(settings: Settings, weights: Weights, layers: int) -> Fields:
    width = settings.whole("hidden_size")
    kinds = _attention_kinds(settings, layers)
    return {
        "context_length": settings.whole("max_position_embeddings"),
        "width": width,
        "num_heads": settings.whole("num_heads"),
        "mlp_width": settings.whole("intermediate_size", 4 * width),
        "activation": settings.activation("activation_function"),
        "norm_eps": settings.positive("layer_norm_epsilon"),
        "qkv_bias": False,
        "attention_scale": 1.0,  # GPT-Neo does not divide by sqrt(head_dim)
        **window(settings, "window_size", [kind == "local" for kind in kinds]),
    }


def _attention_kinds(settings: Settings, layers: int) -> list[str]:
    """GPT-Neo's `attention_types`, pairs of a pattern and how often it comes, one kind per layer."""
    kinds: list[str] = []
    try:
        for pattern, times in settings.values["attention_types"]:
            kinds += list(pattern)[:layers] * min(int(times), layers)
    except (TypeError, ValueError):
        raise settings.refused("attention_types") from None
    if len(kinds) != layers or not all(kind in ("global", "local") for kind in kinds):
        raise settings.refused("attention_types")
    return kinds


def gpt_neox(settings: Settings, weights: Weights, layers: int) -> Fields:
    heads, width = settings.whole("num_attention_heads"), settings.whole("hidden_size")
    bias = "layers.0.attention.dense.bias" in weights
    return {
        "context_length": settings.whole("max_position_embeddings"),
        "width": width,
        "num_heads": heads,
        "mlp_width": settings.whole("intermediate_size", 4 * width),
        "activation": settings.activation("hidden_act"),
        "norm_eps": settings.positive("layer_norm_eps"),
        "qkv_bias": bias,
        "attention_bias": bias,
        "parallel_residual": settings.flag("use_parallel_residual"),
        **rotary_fields(settings, width // heads, theta="rotary_emb_base", partial="rotary_pct"),
    }
