"""What the readers of config.json begin with: the sizes that most families call alike, and Llama."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgelm.importers.huggingface.rope import context_of, rotary_fields
from edgelm.importers.settings import Settings
from edgelm.importers.weight_rules import Weights

Fields = dict[str, Any]
Reader = Callable[[Settings, Weights, int], Fields]
"""(config.json with defaults, tensors, how many layers the tensors make) -> fields of the config."""


def sizes(settings: Settings) -> Fields:
    """What all the families that are like Llama call by the same names."""
    heads, width = settings.whole("num_attention_heads"), settings.whole("hidden_size")
    return {
        "context_length": context_of(settings),
        "width": width,
        "num_heads": heads,
        "num_kv_heads": settings.whole("num_key_value_heads", heads),
        "head_dim": settings.whole("head_dim", max(1, width // heads)),
        "mlp_width": settings.whole("intermediate_size"),
    }


def llama(settings: Settings, weights: Weights, layers: int) -> Fields:
    fields = sizes(settings)
    return fields | {
        "norm": "rmsnorm",
        "norm_eps": settings.positive("rms_norm_eps"),
        "activation": settings.activation("hidden_act", "silu"),
        "gated_mlp": True,
        "qkv_bias": "layers.0.self_attn.q_proj.bias" in weights,
        "attention_bias": "layers.0.self_attn.o_proj.bias" in weights,
        "mlp_bias": "layers.0.mlp.up_proj.bias" in weights,
        **rotary_fields(settings, fields["head_dim"]),
    }
