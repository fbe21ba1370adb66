"""Hugging Face's config.json as a `ModelConfig`, one function per `model_type`.

Which biases there are follows from the tensors, since flags differ between families and versions.
Settings that would change the numbers and that the `Transformer` does not have are refused by name.
Rotary settings are read by rope.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from edgelm.config import ModelConfig
from edgelm.importers.huggingface.rope import rotary_fields
from edgelm.importers.settings import Settings
from edgelm.importers.weight_names import GEMMA3, GPT2, GPT_NEO, GPT_NEOX, LLAMA
from edgelm.importers.weight_rules import Family, Weights
from edgelm_runtime.errors import CheckpointError

# How the families call the number of layers.
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")


Reader = Callable[[Settings, Weights, int], dict[str, Any]]
"""(config.json, tensors, how many layers the tensors make) -> fields of the config."""


def family_of(values: Mapping[str, Any], source: str) -> Family:
    """The weight names that config.json's `model_type` stands for. Raises CheckpointError for others."""
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise CheckpointError(
            f"{source}: model_type {kind!r} cannot be imported", f"known are {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[kind][0]


def read_config(values: Mapping[str, Any], weights: Weights, source: str) -> ModelConfig:
    """The architecture that config.json and the tensors describe. Raises CheckpointError or ConfigError."""
    family, reader = family_of(values, source), FAMILIES[values["model_type"]][1]
    if quantised := values.get("quantization_config"):
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise CheckpointError(f"{source} is quantised ({method})", "give the unquantised weights")
    settings = Settings(values, source)
    embedding = weights.get(family.embedding)
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"the weights of {source} do not fit: missing {family.embedding}")
    layers = family.layers(weights)
    said = settings.whole(next((name for name in LAYERS if name in values), LAYERS[0]))
    if said != layers:
        raise CheckpointError(
            f"{source}: config.json speaks of {said} layers, the weights of {layers}", "get the files again"
        )
    fields = reader(settings, weights, layers)
    if fields.get("sliding_window", 0) >= fields["context_length"] and "local_rope_theta" not in fields:
        del fields["sliding_window"], fields["local_layers"]  # a window over everything is none
    return ModelConfig(
        vocab_size=embedding.shape[0], num_layers=layers, tied_head=family.tied(weights), **fields
    )


def _gpt2(settings: Settings, weights: Weights, layers: int) -> dict[str, Any]:
    settings.require(scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    width = settings.whole("n_embd")
    unscaled = settings.values.get("scale_attn_weights") is False
    return {
        "context_length": settings.whole("n_positions"),
        "width": width,
        "num_heads": settings.whole("n_head"),
        "mlp_width": settings.whole("n_inner", 4 * width),
        "activation": settings.activation("activation_function", "gelu_new"),
        "norm_eps": settings.number("layer_norm_epsilon", 1e-5),
        "attention_scale": 1.0 if unscaled else 0.0,
    }


def _gpt_neo(settings: Settings, weights: Weights, layers: int) -> dict[str, Any]:
    width = settings.whole("hidden_size")
    kinds = _attention_kinds(settings, layers)
    return {
        "context_length": settings.whole("max_position_embeddings"),
        "width": width,
        "num_heads": settings.whole("num_heads"),
        "mlp_width": settings.whole("intermediate_size", 4 * width),
        "activation": settings.activation("activation_function", "gelu_new"),
        "norm_eps": settings.number("layer_norm_epsilon", 1e-5),
        "qkv_bias": False,
        "attention_scale": 1.0,  # GPT-Neo does not divide by sqrt(head_dim)
        **_window(settings, settings.whole("window_size", 256), [kind == "local" for kind in kinds]),
    }


def _attention_kinds(settings: Settings, layers: int) -> list[str]:
    """GPT-Neo's `attention_types`, pairs of a pattern and how often it comes, one kind per layer."""
    kinds: list[str] = []
    try:
        for pattern, times in settings.values.get("attention_types") or [[["global", "local"], 12]]:
            kinds += list(pattern) * min(int(times), layers)
    except (TypeError, ValueError):
        raise settings.refused("attention_types") from None
    if len(kinds) != layers or not set(kinds) <= {"global", "local"}:
        raise settings.refused("attention_types")
    return kinds


def _gpt_neox(settings: Settings, weights: Weights, layers: int) -> dict[str, Any]:
    heads, width = settings.whole("num_attention_heads"), settings.whole("hidden_size")
    bias = "layers.0.attention.dense.bias" in weights
    return {
        "context_length": settings.whole("max_position_embeddings"),
        "width": width,
        "num_heads": heads,
        "mlp_width": settings.whole("intermediate_size", 4 * width),
        "activation": settings.activation("hidden_act", "gelu"),
        "norm_eps": settings.number("layer_norm_eps", 1e-5),
        "qkv_bias": bias,
        "attention_bias": bias,
        "parallel_residual": settings.values.get("use_parallel_residual") is not False,
        **rotary_fields(
            settings, width // heads, theta="rotary_emb_base", partial="rotary_pct", usual_partial=0.25
        ),
    }


def _llama(settings: Settings, weights: Weights, layers: int) -> dict[str, Any]:
    heads, width = settings.whole("num_attention_heads"), settings.whole("hidden_size")
    head_dim = settings.whole("head_dim", width // heads)
    return {
        "context_length": settings.whole("max_position_embeddings"),
        "width": width,
        "num_heads": heads,
        "num_kv_heads": settings.whole("num_key_value_heads", heads),
        "head_dim": head_dim,
        "mlp_width": settings.whole("intermediate_size"),
        "norm": "rmsnorm",
        "norm_eps": settings.number("rms_norm_eps", 1e-6),
        "activation": settings.activation("hidden_act", "silu"),
        "gated_mlp": True,
        "qkv_bias": "layers.0.self_attn.q_proj.bias" in weights,
        "attention_bias": "layers.0.self_attn.o_proj.bias" in weights,
        "mlp_bias": "layers.0.mlp.up_proj.bias" in weights,
        "query_key_norm": "layers.0.self_attn.q_norm.weight" in weights,
        **rotary_fields(settings, head_dim),
    }


def _mistral(settings: Settings, weights: Weights, layers: int) -> dict[str, Any]:
    fields = _llama(settings, weights, layers)
    window = settings.values.get("sliding_window")
    if window is not None:
        fields |= _window(settings, settings.whole("sliding_window"), [True])
    return fields


def _qwen(settings: Settings, weights: Weights, layers: int) -> dict[str, Any]:
    fields = _llama(settings, weights, layers)
    if settings.values.get("use_sliding_window") and settings.values.get("sliding_window") is not None:
        first = settings.number("max_window_layers", 28)
        local = _layer_types(settings, layers) or [layer >= first for layer in range(layers)]
        fields |= _window(settings, settings.whole("sliding_window"), local)
    return fields


def _gemma3(settings: Settings, weights: Weights, layers: int) -> dict[str, Any]:
    settings.require(use_bidirectional_attention=False)
    if settings.values.get("attn_logit_softcapping") is not None:
        raise settings.refused("attn_logit_softcapping")
    fields = _llama(settings, weights, layers)
    pattern = settings.whole("sliding_window_pattern", 6)
    local = _layer_types(settings, layers) or [(layer + 1) % pattern != 0 for layer in range(layers)]
    head_dim = settings.whole("head_dim", 256)
    fields |= {
        "head_dim": head_dim,
        "activation": settings.activation("hidden_activation", "gelu_pytorch_tanh"),
        "post_norm": True,
        "embedding_scale": math.sqrt(fields["width"]),
        "attention_scale": settings.number("query_pre_attn_scalar", 256.0) ** -0.5,
        "logit_softcap": settings.number("final_logit_softcapping", 0.0),
        **_window(settings, settings.whole("sliding_window", 4096), local),
    }
    nested = settings.values.get("rope_parameters") or {}
    if "full_attention" in nested:
        full, near = nested["full_attention"], nested.get("sliding_attention") or {}
        if near.get("rope_type", "default") != "default":
            raise settings.refused("rope_parameters")
        outer = Settings({**settings.values, "rope_parameters": full}, settings.source)
        theta = Settings(near, settings.source).number("rope_theta", 10_000.0)
        return fields | rotary_fields(outer, head_dim, usual_theta=1e6) | {"local_rope_theta": theta}
    theta = settings.number("rope_local_base_freq", 10_000.0)
    return fields | rotary_fields(settings, head_dim, usual_theta=1e6) | {"local_rope_theta": theta}


def _layer_types(settings: Settings, layers: int) -> list[bool]:
    """Whether each layer is local, by `layer_types`; empty where the field is absent."""
    kinds = settings.values.get("layer_types")
    if kinds is None:
        return []
    known = {"full_attention": False, "sliding_attention": True}
    if not isinstance(kinds, list) or len(kinds) != layers or not set(map(str, kinds)) <= set(known):
        raise settings.refused("layer_types")
    return [known[kind] for kind in kinds]


def _window(settings: Settings, window: int, local: list[bool]) -> dict[str, Any]:
    """The fields of a sliding window, none where no layer has one."""
    return {"sliding_window": window, "local_layers": tuple(local)} if any(local) else {}


FAMILIES: Mapping[str, tuple[Family, Reader]] = {
    "gpt2": (GPT2, _gpt2),
    "gpt_neo": (GPT_NEO, _gpt_neo),
    "gpt_neox": (GPT_NEOX, _gpt_neox),
    "llama": (LLAMA, _llama),
    "mistral": (LLAMA, _mistral),
    "qwen2": (LLAMA, _qwen),
    "qwen3": (LLAMA, _qwen),
    "gemma3_text": (GEMMA3, _gemma3),
}
