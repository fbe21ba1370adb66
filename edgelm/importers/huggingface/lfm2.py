"""LFM2: short convolutions in the place of attention in most layers."""

from __future__ import annotations

from edgelm.importers.huggingface.llama import Fields
from edgelm.importers.huggingface.rope import context_of, rotary_fields
from edgelm.importers.settings import Settings
from edgelm.importers.weight_rules import Weights


def lfm2(settings: Settings, weights: Weights, layers: int) -> Fields:
    heads, width = settings.whole("num_attention_heads"), settings.whole("hidden_size")
    head_dim = settings.whole("head_dim", max(1, width // heads))
    kinds = settings.values.get("layer_types")
    if kinds is None:
        attends = settings.values.get("full_attn_idxs")
        kinds = ["full_attention" if attends is None or i in attends else "conv" for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or not set(kinds) <= {"full_attention", "conv"}:
        raise settings.refused("layer_types")
    convolves = tuple(kind == "conv" for kind in kinds)
    convolutions = {
        "convolution_layers": convolves,
        "convolution_length": settings.whole("conv_L_cache"),
        "convolution_bias": settings.flag("conv_bias"),
    }
    return {
        "context_length": context_of(settings), "width": width, "num_heads": heads, "head_dim": head_dim,
        "num_kv_heads": settings.whole("num_key_value_heads", heads), "mlp_width": _lfm2_mlp_width(settings),
        "norm": "rmsnorm", "norm_eps": settings.positive("norm_eps"), "activation": "silu", "gated_mlp": True,
        "qkv_bias": False, "attention_bias": False, "mlp_bias": False, "query_key_norm": True,
        **(convolutions if any(convolves) else {}), **rotary_fields(settings, head_dim),
    }  # fmt: skip


def _lfm2_mlp_width(settings: Settings) -> int:
    width = settings.whole("block_ff_dim", settings.whole("intermediate_size"))
    if settings.flag("block_auto_adjust_ff_dim"):
        multiple = settings.whole("block_multiple_of")
        width = int(settings.positive("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
        width = -(-width // multiple) * multiple
    return width
