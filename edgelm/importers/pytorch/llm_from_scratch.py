"""Checkpoints of FareedKhan-dev/train-llm-from-scratch (`.pt`): every size follows from the shapes.

Heads have matrices of their own, scaled by 1 / sqrt(head size); position embeddings are learned; the
MLP is 4 wide with ReLU; the head has a bias of its own. Early files have no `attn.proj`, which makes
the projection after the heads an identity. Text is r50k, unless the config carries another tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from edgelm.checkpoint import Checkpoint
from edgelm.config import ModelConfig
from edgelm.importers.files.torch_files import stored_tensors
from edgelm.importers.tokenizer_choice import TokenizerChoice, missing, named
from edgelm.importers.weight_names import LLM_FROM_SCRATCH
from edgelm.importers.weight_rules import Weights, take_weights, without_prefixes
from edgelm.model import Stored, StoredModel
from edgelm_runtime.errors import CheckpointError
from edgelm_runtime.model_file.interface import END_IDS
from edgelm_runtime.text.huggingface.byte_level import SYMBOL_OF
from edgelm_runtime.text.huggingface.convert import ImportedTokenizer, convert
from edgelm_runtime.text.huggingface.pretokenizers import byte_level, split


def state_of(saved: Any) -> Any:
    """The state dict in a saved value: under `model_state_dict`, or the value itself."""
    return saved.get("model_state_dict", saved) if isinstance(saved, dict) else saved


def is_llm_from_scratch(saved: Any) -> bool:
    """Whether a loaded file is a checkpoint of train-llm-from-scratch, whatever wrapped the model."""
    state = state_of(saved)
    return isinstance(state, dict) and any(str(name).endswith("token_embed.weight") for name in state)


def load_llm_from_scratch(saved: Mapping[str, Any], path: Path, choice: TokenizerChoice) -> Checkpoint:
    """The checkpoint in a loaded file. Raises CheckpointError or TokenizerError."""
    weights = without_prefixes(stored_tensors(state_of(saved), path, "model_state_dict"), str(path))
    config = _config(weights, str(path))
    found = choice.tokenizer(lambda: _tokenizer(saved, str(path)), config.vocab_size, str(path))
    _fill_projections(weights, config)
    model = StoredModel(config, take_weights(LLM_FROM_SCRATCH, config, weights, str(path)), str(path))
    end = found.tokenizer.end_of_text if found else None
    generation = {END_IDS: [end]} if end is not None else {}
    return Checkpoint(
        model, found.tokenizer if found else None, generation, {"source": "train-llm-from-scratch"}
    )


def _config(weights: Weights, source: str) -> ModelConfig:
    try:
        vocab_size, width = weights["token_embed.weight"].shape
        context = weights["position_embed.weight"].shape[0]
        head_dim = weights["attn_blocks.0.attn.heads.0.key.weight"].shape[0]
        mlp_width = weights["attn_blocks.0.mlp.hidden.weight"].shape[0]
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"the weights of {source} do not fit: missing {error}") from error
    heads = sum(
        name.startswith("attn_blocks.0.attn.heads.") and name.endswith(".key.weight") for name in weights
    )
    return ModelConfig(
        vocab_size=vocab_size, context_length=context, width=width, num_layers=LLM_FROM_SCRATCH.layers(weights),
        num_heads=heads, head_dim=head_dim, mlp_width=mlp_width, activation="relu", qkv_bias=False,
        head_bias="lm_head.bias" in weights, tied_head=LLM_FROM_SCRATCH.tied(weights, said=False), init="pytorch",
    )  # fmt: skip


def _fill_projections(weights: dict[str, Stored], config: ModelConfig) -> None:
    """Where no layer has `attn.proj`, the heads' outputs are what goes on: an identity, without bias."""
    if any(".attn.proj." in name for name in weights) or config.num_heads * config.head_dim != config.width:
        return
    width = config.width
    for layer in range(config.num_layers):
        name = f"attn_blocks.{layer}.attn.proj"
        weights[f"{name}.weight"] = Stored((width, width), lambda: torch.eye(width))
        weights[f"{name}.bias"] = Stored((width,), lambda: torch.zeros(width))


def _tokenizer(saved: Mapping[str, Any], source: str) -> ImportedTokenizer:
    settings = saved.get("cfg") or saved.get("config") or {}
    spec = settings.get("tokenizer") if isinstance(settings, Mapping) else None
    if isinstance(spec, Mapping) and spec.get("type") == "bpe":
        return trained_pairs(spec, source)
    if isinstance(spec, Mapping) and spec.get("type") != "tiktoken":
        raise missing(source, f"its tokenizer is of an unknown type, {spec.get('type')!r}")
    name = spec.get("name") if isinstance(spec, Mapping) else spec
    return named(name if isinstance(name, str) else "r50k_base", source)


def trained_pairs(spec: Mapping[str, Any], source: str) -> ImportedTokenizer:
    """train-llm-from-scratch's own BPE: `pattern`, and `merges` as pairs of ids over the 256 bytes."""
    try:
        merges = [(int(a), int(b)) for a, b in spec["merges"]]
        symbols = [SYMBOL_OF[byte] for byte in range(256)]
        for a, b in merges:
            symbols.append(symbols[a] + symbols[b])
        special = {str(name): len(symbols) + i for i, name in enumerate(spec["special_tokens"])}
        pattern = str(spec["pattern"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise missing(source, f"its BPE is incomplete ({error!r})") from error
    values = {
        "model": {
            "type": "BPE",
            "vocab": {symbol: token_id for token_id, symbol in enumerate(symbols)},
            "merges": [[symbols[a], symbols[b]] for a, b in merges],
        },
        "pre_tokenizer": split(pattern),
        "decoder": byte_level(),
        "added_tokens": [
            {"id": token_id, "content": name, "special": True, "normalized": False, "single_word": False,
             "lstrip": False, "rstrip": False}
            for name, token_id in special.items()
        ],
    }  # fmt: skip
    return convert(values, source)
