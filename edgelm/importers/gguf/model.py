"""GGUF files as checkpoints: architecture from the metadata, weights dequantised, tokenizer and template.

llama.cpp keeps some numbers outside the metadata, in its code: Gemma 3 has a global layer every sixth
and a local rotary base of 10000, and scales attention by head_dim except in its largest size. Llama 3's
rotary scaling comes as a tensor of divisors, `rope_freqs`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgelm.checkpoint import Checkpoint, build_model
from edgelm.config import ModelConfig, RopeScaling
from edgelm.importers.gguf.file import GgufFile
from edgelm.importers.gguf.tokenizer import gguf_tokenizer
from edgelm.importers.settings import Settings
from edgelm.importers.tokenizer_choice import TokenizerChoice
from edgelm.importers.weight_names import GGUF_GPT2, GGUF_LLAMA, GGUF_QWEN
from edgelm.importers.weight_rules import Family, Weights, take_weights
from edgelm_runtime.errors import CheckpointError
from edgelm_runtime.model_file.interface import ADD_BOS, BOS_ID, CHAT_TEMPLATE, END_IDS
from edgelm_runtime.text.huggingface.convert import ImportedTokenizer

FAMILIES: Mapping[str, Family] = {
    "llama": GGUF_LLAMA, "qwen2": GGUF_QWEN, "qwen3": GGUF_QWEN, "gemma3": GGUF_QWEN, "gpt2": GGUF_GPT2,
}  # fmt: skip
GEMMA3_LARGEST_LAYERS = 62
# Control tokens that end an answer, beside the ids that the metadata names.
END_NAMES = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "</s>",
)


def load_gguf(path: Path, choice: TokenizerChoice) -> Checkpoint:
    """The model in a GGUF file. Raises CheckpointError, ConfigError or TokenizerError."""
    file = GgufFile(path)
    config, family = gguf_config(file)
    source = str(path)
    found = choice.tokenizer(lambda: gguf_tokenizer(file, config.vocab_size), config.vocab_size, source)
    model = build_model(config, take_weights(family, config, file.weights(), source), source).eval()
    origin = {"source": "GGUF", "architecture": file.metadata["general.architecture"], "path": source}
    return Checkpoint(model, found.tokenizer if found else None, _generation(file, found), origin)


def gguf_config(file: GgufFile) -> tuple[ModelConfig, Family]:
    """The architecture that a file describes, and the family of its weight names."""
    kind, source = file.metadata.get("general.architecture"), str(file.path)
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise CheckpointError(
            f"{source}: architecture {kind!r} cannot be imported", f"known are {', '.join(sorted(FAMILIES))}"
        )
    family, weights = FAMILIES[kind], file.weights()
    prefix = f"{kind}."
    own = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    settings = Settings(own, source)
    embedding = weights.get(family.embedding)
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"the weights of {source} do not fit: missing {family.embedding}")
    layers = settings.whole("block_count")
    if layers != family.layers(weights):
        raise CheckpointError(
            f"{source} speaks of {layers} layers and holds {family.layers(weights)}", "get the file again"
        )
    fields = _gpt2(settings) if kind == "gpt2" else _llama(settings, weights, kind)
    if kind == "gemma3":
        fields |= _gemma3(settings, layers, fields)
    config = ModelConfig(
        vocab_size=embedding.shape[0], tied_head=family.tied(weights, said=True), num_layers=layers,
        context_length=settings.whole("context_length"), width=settings.whole("embedding_length"),
        mlp_width=settings.whole("feed_forward_length"), **fields,
    )  # fmt: skip
    return config, family


def _gpt2(settings: Settings) -> dict[str, Any]:
    return {
        "num_heads": settings.whole("attention.head_count"),
        "activation": "gelu_tanh",
        "norm_eps": settings.number("attention.layer_norm_epsilon", 1e-5),
    }


def _llama(settings: Settings, weights: Weights, kind: str) -> dict[str, Any]:
    settings.require(expert_count=0)
    heads, width = settings.whole("attention.head_count"), settings.whole("embedding_length")
    head_dim = settings.whole("attention.key_length", width // heads)
    if settings.whole("attention.value_length", head_dim) != head_dim:
        raise settings.refused("attention.value_length")
    return {
        "num_heads": heads,
        "num_kv_heads": settings.whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "norm": "rmsnorm",
        "norm_eps": settings.number("attention.layer_norm_rms_epsilon", 1e-5),
        "activation": "silu",
        "gated_mlp": True,
        "qkv_bias": "blk.0.attn_q.bias" in weights,
        "attention_bias": "blk.0.attn_output.bias" in weights,
        "mlp_bias": "blk.0.ffn_up.bias" in weights,
        "query_key_norm": "blk.0.attn_q_norm.weight" in weights,
        "position": "rotary",
        "rotary_dim": settings.whole("rope.dimension_count", head_dim),
        "rope_theta": settings.number("rope.freq_base", 10_000.0),
        "rope_scaling": _rope_scaling(settings, weights),
    }


def _gemma3(settings: Settings, layers: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    pattern = settings.whole("attention.sliding_window_pattern", 6)
    width, heads = settings.whole("embedding_length"), fields["num_heads"]
    per_head = width / heads if layers == GEMMA3_LARGEST_LAYERS else fields["head_dim"]
    return {
        "activation": "gelu_tanh",
        "post_norm": True,
        "embedding_scale": math.sqrt(width),
        "attention_scale": 1 / math.sqrt(per_head),
        "logit_softcap": settings.number("final_logit_softcapping", 0.0),
        "sliding_window": settings.whole("attention.sliding_window"),
        "local_layers": tuple((layer + 1) % pattern != 0 for layer in range(layers)),
        "local_rope_theta": settings.number("rope.freq_base_swa", 10_000.0),
    }


def _rope_scaling(settings: Settings, weights: Weights) -> RopeScaling | None:
    """Scaling by name, or by the tensor of divisors. Raises CheckpointError for kinds that are not known."""
    if "rope_freqs.weight" in weights:
        divisors = weights["rope_freqs.weight"].read().float().tolist()
        return RopeScaling(kind="divisors", factor=1.0, divisors=tuple(divisors))
    kind = settings.values.get("rope.scaling.type", "none")
    factor = settings.number("rope.scaling.factor", settings.number("rope.scale_linear", 1.0))
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=factor)
    if kind != "yarn":
        raise settings.refused("rope.scaling.type")
    settings.require(**{"rope.scaling.attn_factor": 1.0, "rope.scaling.yarn_log_multiplier": 0.0})
    return RopeScaling(
        kind="yarn", factor=factor, original_context=settings.whole("rope.scaling.original_context_length"),
        beta_fast=settings.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=settings.number("rope.scaling.yarn_beta_slow", 1.0),
    )  # fmt: skip


def _generation(file: GgufFile, found: ImportedTokenizer | None) -> dict[str, Any]:
    meta = file.metadata
    ends = [meta.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    special = found.tokenizer.special if found else {}
    ends += [special.get(name) for name in END_NAMES]
    generation: dict[str, Any] = {END_IDS: list(dict.fromkeys(end for end in ends if isinstance(end, int)))}
    if isinstance(bos := meta.get("tokenizer.ggml.bos_token_id"), int):
        generation |= {BOS_ID: bos, ADD_BOS: found is not None and found.bos_id == bos}
    if isinstance(template := meta.get("tokenizer.chat_template"), str):
        generation[CHAT_TEMPLATE] = template
    return generation
