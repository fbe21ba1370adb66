"""The architecture that a GGUF file's metadata describe, as a `ModelConfig` and weight names.

llama.cpp keeps some numbers outside the metadata, in its code: Gemma 3 has a global layer every sixth and a local
rotary base of 10000, Gemma 2 every second, and both scale attention by head_dim except in their largest sizes;
SmolLM3 does not rotate every fourth layer, EXAONE 4 none of its global ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from edgelm.config import ModelConfig
from edgelm.importers import weight_names as names
from edgelm.importers.gguf.parts import GgufModel
from edgelm.importers.gguf.rope_scaling import rope_scaling
from edgelm.importers.settings import Settings
from edgelm.importers.weight_rules import Family, Weights
from edgelm_runtime.errors import CheckpointError

# The sizes of Gemma 2 and 3 whose attention is scaled by the width of a head's share instead of head_dim.
LARGEST_LAYERS = {"gemma2": 46, "gemma3": 62}

Fields = dict[str, Any]
Reader = Callable[[Settings, Weights, int], Fields]
"""(the architecture's own metadata, tensors, number of layers) -> fields of the config."""


def gguf_config(file: GgufModel) -> tuple[ModelConfig, Family]:
    """The architecture that a file describes, and its weight names. Raises CheckpointError or ConfigError."""
    kind, source = file.metadata.get("general.architecture"), str(file.path)
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise CheckpointError(
            f"{source}: architecture {kind!r} cannot be imported",
            f"known are {', '.join(sorted(ARCHITECTURES))}",
        )
    family, reader = ARCHITECTURES[kind]
    prefix = f"{kind}."
    own = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    settings, weights = Settings(own, source), file.weights
    rows = family.rows(weights, source)
    layers = settings.whole("block_count")
    if layers != family.layers(weights):
        raise CheckpointError(
            f"{source} speaks of {layers} layers and holds {family.layers(weights)}", "get the file again"
        )
    fields = {"context_length": settings.whole("context_length"), **reader(settings, weights, layers)}
    family = fields.pop("names", family)
    for target, factor in fields.pop("factors", {}).items():
        family = family.scaled(target, factor)
    sizes = {"width": settings.whole("embedding_length"), "mlp_width": settings.whole("feed_forward_length")}
    tied = family.tied(weights, said=True)
    return ModelConfig(vocab_size=rows, tied_head=tied, num_layers=layers, **(sizes | fields)), family


def _gpt2(settings: Settings, weights: Weights, layers: int) -> Fields:
    return {
        "num_heads": settings.whole("attention.head_count"),
        "activation": "gelu_tanh",
        "norm_eps": settings.positive("attention.layer_norm_epsilon", 1e-5),
    }


def _heads(settings: Settings, weights: Weights) -> Fields:
    """Heads and rotation, which all but GPT-2 have."""
    settings.require(expert_count=0)
    heads, width = settings.whole("attention.head_count"), settings.whole("embedding_length")
    head_dim = settings.whole("attention.key_length", max(1, width // heads))
    if settings.whole("attention.value_length", head_dim) != head_dim:
        raise settings.refused("attention.value_length")
    return {
        "num_heads": heads,
        "num_kv_heads": settings.whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "qkv_bias": "blk.0.attn_q.bias" in weights or "blk.0.attn_qkv.bias" in weights,
        "attention_bias": "blk.0.attn_output.bias" in weights,
        "mlp_bias": "blk.0.ffn_up.bias" in weights,
        "position": "rotary",
        "rotary_dim": settings.whole("rope.dimension_count", head_dim),
        "rope_theta": settings.positive("rope.freq_base", 10_000.0),
        **rope_scaling(settings, weights),
    }


def _llama(settings: Settings, weights: Weights, layers: int) -> Fields:
    return _heads(settings, weights) | {
        "norm": "rmsnorm",
        "norm_eps": settings.positive("attention.layer_norm_rms_epsilon", 1e-5),
        "activation": "silu",
        "gated_mlp": True,
    }


def _qwen2(settings: Settings, weights: Weights, layers: int) -> Fields:
    return _llama(settings, weights, layers) | {"qkv_bias": True}


def _qwen3(settings: Settings, weights: Weights, layers: int) -> Fields:
    return _llama(settings, weights, layers) | {"query_key_norm": True}


def _smollm3(settings: Settings, weights: Weights, layers: int) -> Fields:
    return _llama(settings, weights, layers) | {"rotary_layers": (True, True, True, False)}


def _phi3(settings: Settings, weights: Weights, layers: int) -> Fields:
    window = settings.values.get("attention.sliding_window")
    local = {} if window in (None, 0) else _window(settings, [True])
    return _llama(settings, weights, layers) | local


def _gemma(settings: Settings, weights: Weights, layers: int) -> Fields:
    scale = math.sqrt(settings.whole("embedding_length"))
    return _llama(settings, weights, layers) | {"activation": "gelu_tanh", "embedding_scale": scale}


def _gemma2(settings: Settings, weights: Weights, layers: int) -> Fields:
    return _gemma_with_windows(settings, weights, layers, "gemma2", every=2) | {
        "attention_softcap": settings.number("attn_logit_softcapping", 50.0),
        "logit_softcap": settings.number("final_logit_softcapping", 30.0),
    }


def _gemma3(settings: Settings, weights: Weights, layers: int) -> Fields:
    every = settings.whole("attention.sliding_window_pattern", 6)
    return _gemma_with_windows(settings, weights, layers, "gemma3", every) | {
        "query_key_norm": True,
        "logit_softcap": settings.number("final_logit_softcapping", 0.0),
        "local_rope_theta": settings.positive("rope.freq_base_swa", 10_000.0),
    }


def _gemma_with_windows(settings: Settings, weights: Weights, layers: int, kind: str, every: int) -> Fields:
    fields = _gemma(settings, weights, layers)
    share = settings.whole("embedding_length") / fields["num_heads"]
    per_head = share if layers == LARGEST_LAYERS[kind] else fields["head_dim"]
    return fields | {
        "post_norm": True,
        "attention_scale": 1 / math.sqrt(per_head),
        **_window(settings, [(layer + 1) % every != 0 for layer in range(layers)]),
    }


def _granite(settings: Settings, weights: Weights, layers: int) -> Fields:
    """Granite and MiniCPM: Llama with factors."""
    residual, divisor = settings.number("residual_scale", 1.0), settings.positive("logit_scale", 1.0)
    return _llama(settings, weights, layers) | {
        "embedding_scale": settings.number("embedding_scale", 1.0),
        "attention_scale": settings.number("attention.scale", 0.0),
        "factors": {
            "blocks.{i}.attention.out": residual, "blocks.{i}.mlp.down": residual, "final_norm": 1 / divisor,
        },
    }  # fmt: skip


def _experts(settings: Settings, weights: Weights, normalize: bool) -> Fields:
    """Experts; whether their shares sum to 1 is in llama.cpp's code, by architecture."""
    width = settings.whole("feed_forward_length")
    fields = {
        "num_experts": settings.whole("expert_count"),
        "experts_per_token": settings.whole("expert_used_count"),
        "mlp_width": settings.whole("expert_feed_forward_length", width),
        "normalize_experts": normalize,
    }
    if "blk.0.ffn_up_shexp.weight" in weights:
        fields["shared_mlp_width"] = settings.whole("expert_shared_feed_forward_length")
    return fields


def _dense(settings: Settings) -> Settings:
    """The same without experts, which the readers of other architectures refuse."""
    return settings.inner({**settings.values, "expert_count": 0})


def _qwen3_experts(settings: Settings, weights: Weights, layers: int) -> Fields:
    return _qwen3(_dense(settings), weights, layers) | _experts(settings, weights, normalize=True)


def _olmoe(settings: Settings, weights: Weights, layers: int) -> Fields:
    return _llama(_dense(settings), weights, layers) | {
        **_experts(settings, weights, normalize=False), "query_key_norm": True, "query_key_norm_joint": True,
    }  # fmt: skip


def _granite_experts(settings: Settings, weights: Weights, layers: int) -> Fields:
    fields = _granite(_dense(settings), weights, layers) | _experts(settings, weights, normalize=True)
    fields["factors"]["blocks.{i}.mlp.shared.down"] = fields["factors"]["blocks.{i}.mlp.down"]
    return fields


def _lfm2(settings: Settings, weights: Weights, layers: int) -> Fields:
    heads = settings.values.get("attention.head_count_kv")  # of each layer, 0 where it convolves
    if not isinstance(heads, list) or len(heads) != layers or len(set(heads) - {0}) != 1:
        raise settings.wrong(
            "attention.head_count_kv", "it must be a list of one number, and 0, for each layer"
        )
    kv_heads = settings.inner({**settings.values, "attention.head_count_kv": max(heads)})
    convolves = tuple(count == 0 for count in heads)
    found = {"convolution_layers": convolves, "convolution_length": settings.whole("shortconv.l_cache")}
    return _qwen3(kv_heads, weights, layers) | {
        **(found if any(convolves) else {}),
        "qkv_bias": False, "attention_bias": False,
        "convolution_bias": "blk.0.shortconv.conv.bias" in weights,
    }  # fmt: skip


def _hunyuan(settings: Settings, weights: Weights, layers: int) -> Fields:
    return _qwen3(settings, weights, layers) | {"query_key_norm_rotated": True}


def _minicpm(settings: Settings, weights: Weights, layers: int) -> Fields:
    # Early files leave the factors to llama.cpp's code.
    for name in ("embedding_scale", "residual_scale", "logit_scale"):
        if name not in settings.values:
            raise settings.wrong(name, "convert the model again with a newer llama.cpp")
    return _granite(settings, weights, layers)


def _olmo2(settings: Settings, weights: Weights, layers: int) -> Fields:
    settings.require(**{"attention.sliding_window": 0})  # OLMo 3 under OLMo 2's name
    after = {"pre_norm": False, "post_norm": True}
    return _llama(settings, weights, layers) | {**after, "query_key_norm": True, "query_key_norm_joint": True}


def _exaone4(settings: Settings, weights: Weights, layers: int) -> Fields:
    fields = _llama(settings, weights, layers) | {
        "pre_norm": False,
        "post_norm": True,
        "query_key_norm": True,
    }
    if settings.values.get("attention.sliding_window") in (None, 0):
        return fields
    local = [(layer + 1) % 4 != 0 for layer in range(layers)]
    return fields | {"rotary_layers": tuple(local), **_window(settings, local)}


def _stablelm(settings: Settings, weights: Weights, layers: int) -> Fields:
    fields = _llama(settings, weights, layers) | {
        "norm": "layernorm", "norm_eps": settings.positive("attention.layer_norm_epsilon", 1e-5),
    }  # fmt: skip
    if settings.flag("use_parallel_residual"):
        fields |= {"parallel_residual": True, "names": names.GGUF_STABLELM_PARALLEL}
    return fields


def _phi2(settings: Settings, weights: Weights, layers: int) -> Fields:
    fused = {"names": names.GGUF_PHI2_FUSED} if "blk.0.attn_qkv.weight" in weights else {}
    return {**_starcoder2(settings, weights, layers), "head_bias": True, "parallel_residual": True, **fused}


def _starcoder2(settings: Settings, weights: Weights, layers: int) -> Fields:
    settings.require(**{"attention.sliding_window": 0})
    eps = settings.positive("attention.layer_norm_epsilon", 1e-5)
    return _heads(settings, weights) | {"activation": "gelu_tanh", "norm_eps": eps}


def _window(settings: Settings, local: list[bool]) -> Fields:
    return {"sliding_window": settings.whole("attention.sliding_window"), "local_layers": tuple(local)}


ARCHITECTURES: Mapping[str, tuple[Family, Reader]] = {
    "gpt2": (names.GGUF_GPT2, _gpt2),
    "llama": (names.GGUF_NEIGHBOURS, _llama),
    "qwen2": (names.GGUF_HALVES, _qwen2),
    "qwen3": (names.GGUF_HALVES, _qwen3),
    "gemma": (names.GGUF_HALVES, _gemma),
    "gemma2": (names.GGUF_HALVES, _gemma2),
    "gemma3": (names.GGUF_HALVES, _gemma3),
    "phi3": (names.GGUF_PHI3, _phi3),
    "smollm3": (names.GGUF_NEIGHBOURS, _smollm3),
    "granite": (names.GGUF_NEIGHBOURS, _granite),
    "qwen3moe": (names.GGUF_EXPERTS_HALVES, _qwen3_experts),
    "olmoe": (names.GGUF_EXPERTS_HALVES, _olmoe),
    "granitemoe": (names.GGUF_EXPERTS_NEIGHBOURS, _granite_experts),
    "lfm2": (names.GGUF_LFM2, _lfm2),
    "hunyuan-dense": (names.GGUF_HALVES, _hunyuan),
    "minicpm": (names.GGUF_NEIGHBOURS, _minicpm),
    "ernie4_5": (names.GGUF_NEIGHBOURS, _llama),
    "olmo2": (names.GGUF_HALVES, _olmo2),
    "exaone4": (names.GGUF_HALVES, _exaone4),
    "seed_oss": (names.GGUF_SEED_OSS, _llama),
    "stablelm": (names.GGUF_HALVES, _stablelm),
    "phi2": (names.GGUF_PHI2, _phi2),
    "starcoder2": (names.GGUF_STARCODER2, _starcoder2),
}
