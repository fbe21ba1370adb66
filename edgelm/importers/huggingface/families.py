"""One reader for each `model_type`: its config.json as fields of a `ModelConfig`.

Most families are Llama with a few values of their own. Two entries are no fields: `factors` are multipliers that are
folded into weights, by target name; `names` are other weight names than the family's usual ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from edgelm.importers import weight_names as names
from edgelm.importers.huggingface.experts import (
    granite,
    granite_experts,
    granite_shared,
    olmoe,
    qwen3_experts,
)
from edgelm.importers.huggingface.gpt import gpt2, gpt_neo, gpt_neox
from edgelm.importers.huggingface.lfm2 import lfm2
from edgelm.importers.huggingface.llama import Fields, Reader, llama, sizes
from edgelm.importers.huggingface.rope import layered_rotary_fields, rotary_fields
from edgelm.importers.huggingface.windows import layer_types, window
from edgelm.importers.settings import Settings
from edgelm.importers.weight_rules import Family, Weights

# How the families call the number of layers.
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")


def _windowed(settings: Settings, weights: Weights, layers: int) -> Fields:
    """Llama with a window in every layer (Mistral, Phi 3), where one is given."""
    return llama(settings, weights, layers) | window(settings, "sliding_window", [True])


def _qwen(settings: Settings, weights: Weights, layers: int) -> Fields:
    fields = llama(settings, weights, layers)
    if settings.flag("use_sliding_window"):
        first = settings.number("max_window_layers")
        local = layer_types(settings, layers) or [layer >= first for layer in range(layers)]
        fields |= window(settings, "sliding_window", local)
    return fields


def _qwen2(settings: Settings, weights: Weights, layers: int) -> Fields:
    return _qwen(settings, weights, layers) | {"qkv_bias": True}


def _qwen3(settings: Settings, weights: Weights, layers: int) -> Fields:
    return _qwen(settings, weights, layers) | {"query_key_norm": True}


def _smollm3(settings: Settings, weights: Weights, layers: int) -> Fields:
    fields = llama(settings, weights, layers)
    every = settings.whole("no_rope_layer_interval")
    rotates = settings.values.get("no_rope_layers")  # 1 where a layer does rotate
    if rotates is None:
        rotates = [int((layer + 1) % every != 0) for layer in range(layers)]
    if not isinstance(rotates, list) or len(rotates) != layers or not all(flag in (0, 1) for flag in rotates):
        raise settings.refused("no_rope_layers")
    if settings.flag("use_sliding_window"):
        local = layer_types(settings, layers) or [not turns for turns in rotates]
        fields |= window(settings, "sliding_window", local)
    return fields | {"rotary_layers": tuple(map(bool, rotates))}


def _gemma(settings: Settings, weights: Weights, layers: int) -> Fields:
    settings.require(use_bidirectional_attention=False)
    fields = llama(settings, weights, layers)
    said = settings.values.get("hidden_activation") or settings.values.get("hidden_act")
    # Early files say gelu and mean its approximation.
    plain = settings.inner({"activation": "gelu_pytorch_tanh" if said == "gelu" else said})
    return fields | {
        "activation": plain.activation("activation"),
        "embedding_scale": math.sqrt(fields["width"]),
    }


def _gemma2(settings: Settings, weights: Weights, layers: int) -> Fields:
    local = layer_types(settings, layers) or [layer % 2 == 0 for layer in range(layers)]
    return _gemma(settings, weights, layers) | {
        "post_norm": True,
        "attention_scale": settings.positive("query_pre_attn_scalar") ** -0.5,
        "logit_softcap": settings.number("final_logit_softcapping", 0.0),
        "attention_softcap": settings.number("attn_logit_softcapping", 0.0),
        **window(settings, "sliding_window", local),
    }


def _gemma3(settings: Settings, weights: Weights, layers: int) -> Fields:
    pattern = settings.whole("sliding_window_pattern")
    local = layer_types(settings, layers) or [(layer + 1) % pattern != 0 for layer in range(layers)]
    if settings.values.get("attn_logit_softcapping") is not None:
        raise settings.refused("attn_logit_softcapping")
    flat = settings.inner({**settings.values, "rope_parameters": None, "rope_scaling": None})
    fields = _gemma2(flat, weights, layers) | {
        "query_key_norm": True,
        **window(settings, "sliding_window", local),
    }
    return fields | layered_rotary_fields(
        settings, fields["head_dim"], settings.positive("rope_local_base_freq")
    )


def _hunyuan(settings: Settings, weights: Weights, layers: int) -> Fields:
    """Norms of queries and keys after the rotation; a scaling called dynamic that is a fixed larger base."""
    name = "rope_scaling" if settings.values.get("rope_scaling") else "rope_parameters"
    entry = settings.inner(settings.table(name))
    stretch = 1.0
    if (entry.values.get("rope_type") or entry.values.get("type")) == "dynamic" and entry.values.get("alpha"):
        head_dim = settings.whole(
            "head_dim", max(1, settings.whole("hidden_size") // settings.whole("num_attention_heads"))
        )
        stretch = entry.positive("alpha") ** (head_dim / (head_dim - 2))
        plain = {**entry.values, "rope_type": "default", "type": "default"}
        settings = settings.inner({**settings.values, name: plain})
    fields = llama(settings, weights, layers)
    return fields | {
        "rope_theta": fields["rope_theta"] * stretch, "query_key_norm": True, "query_key_norm_rotated": True,
    }  # fmt: skip


def _minicpm(settings: Settings, weights: Weights, layers: int) -> Fields:
    residual = settings.positive("scale_depth") / math.sqrt(layers)
    divisor = settings.whole("hidden_size") / settings.whole("dim_model_base")
    return llama(settings, weights, layers) | {
        "embedding_scale": settings.positive("scale_emb"),
        "factors": {
            "blocks.{i}.attention.out": residual, "blocks.{i}.mlp.down": residual, "final_norm": 1 / divisor,
        },
    }  # fmt: skip


def _olmo2(settings: Settings, weights: Weights, layers: int) -> Fields:
    after = {"pre_norm": False, "post_norm": True}
    return llama(settings, weights, layers) | {**after, "query_key_norm": True, "query_key_norm_joint": True}


def _olmo3(settings: Settings, weights: Weights, layers: int) -> Fields:
    flat = settings.inner({**settings.values, "rope_parameters": None, "rope_scaling": None})
    fields = _olmo2(flat, weights, layers)
    local = layer_types(settings, layers) or [(layer + 1) % 4 != 0 for layer in range(layers)]
    return fields | {
        **layered_rotary_fields(settings, fields["head_dim"], settings.positive("rope_theta")),
        **window(settings, "sliding_window", local),
    }


def _exaone4(settings: Settings, weights: Weights, layers: int) -> Fields:
    fields = llama(settings, weights, layers) | {
        "pre_norm": False,
        "post_norm": True,
        "query_key_norm": True,
    }
    if settings.values.get("sliding_window") is None:
        return fields
    every = settings.whole("sliding_window_pattern")
    local = layer_types(settings, layers) or [(layer + 1) % every != 0 for layer in range(layers)]
    # With windows, layers that see everything do not rotate.
    return fields | {"rotary_layers": tuple(local), **window(settings, "sliding_window", local)}


def _stablelm(settings: Settings, weights: Weights, layers: int) -> Fields:
    settings.require(qk_layernorm=False)  # it has gains of its own for each head
    named_alike = settings.inner({**settings.values, "rms_norm_eps": settings.positive("layer_norm_eps")})
    fields = llama(named_alike, weights, layers) | {"norm": "layernorm"}
    if settings.flag("use_parallel_residual"):
        fields |= {"parallel_residual": True, "names": names.STABLELM_PARALLEL}
    return fields


def _phi(settings: Settings, weights: Weights, layers: int) -> Fields:
    fields = sizes(settings)
    return fields | {
        "norm_eps": settings.positive("layer_norm_eps"),
        "activation": settings.activation("hidden_act"),
        "head_bias": True,
        "parallel_residual": True,
        "query_key_norm": settings.flag("qk_layernorm"),
        **rotary_fields(settings, fields["head_dim"]),
    }


def _starcoder2(settings: Settings, weights: Weights, layers: int) -> Fields:
    fields, bias = sizes(settings), settings.flag("use_bias")
    return fields | {
        "norm_eps": settings.positive("norm_epsilon"),
        "activation": settings.activation("hidden_act"),
        "qkv_bias": bias,
        "attention_bias": bias,
        "mlp_bias": bias,
        **rotary_fields(settings, fields["head_dim"]),
        **window(settings, "sliding_window", [True]),
    }


FAMILIES: Mapping[str, tuple[Family, Reader]] = {
    "gpt2": (names.GPT2, gpt2),
    "gpt_neo": (names.GPT_NEO, gpt_neo),
    "gpt_neox": (names.GPT_NEOX, gpt_neox),
    "llama": (names.LLAMA, llama),
    "mistral": (names.LLAMA, _windowed),
    "qwen2": (names.LLAMA, _qwen2),
    "qwen3": (names.LLAMA, _qwen3),
    "gemma": (names.GEMMA, _gemma),
    "gemma2": (names.GEMMA2, _gemma2),
    "gemma3_text": (names.GEMMA2, _gemma3),
    "phi3": (names.PHI3, _windowed),
    "smollm3": (names.LLAMA, _smollm3),
    "granite": (names.LLAMA, granite),
    "lfm2": (names.LFM2, lfm2),
    "hunyuan_v1_dense": (names.HUNYUAN, _hunyuan),
    "qwen3_moe": (names.LLAMA_EXPERTS, qwen3_experts),
    "olmoe": (names.LLAMA_EXPERTS, olmoe),
    "granitemoe": (names.GRANITE_EXPERTS, granite_experts),
    "granitemoeshared": (names.GRANITE_EXPERTS, granite_shared),
    "minicpm": (names.LLAMA, _minicpm),
    "olmo2": (names.NORMS_AFTER, _olmo2),
    "olmo3": (names.NORMS_AFTER, _olmo3),
    "exaone4": (names.NORMS_AFTER, _exaone4),
    "stablelm": (names.LLAMA, _stablelm),
    "phi": (names.PHI, _phi),
    "starcoder2": (names.STARCODER2, _starcoder2),
    "helium": (names.LLAMA_NEIGHBOURS, llama),
    "ernie4_5": (names.LLAMA_NEIGHBOURS, llama),
    "seed_oss": (names.LLAMA, llama),
    "internlm3": (names.LLAMA, llama),
}
