"""A checkpoint as a folder that transformers loads: config.json, weights, tokenizer, chat template.

What is written is read again by the importer, and has to be the same architecture and the same weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from edgelm.checkpoint import Checkpoint, replaced_folder
from edgelm.config import ModelConfig, RopeScaling
from edgelm.exporters.tokenizer_json import tokenizer_json
from edgelm.exporters.weights import difference, named_weights, refuse_experts
from edgelm.importers import load_source
from edgelm.importers.huggingface.config import family_of
from edgelm_runtime.errors import EdgelmError, ExportError, OutputError
from edgelm_runtime.model_file.interface import ADD_BOS, BOS_ID, CHAT_TEMPLATE, END_IDS

CLASSES = {
    "gpt2": "GPT2LMHeadModel", "gpt_neox": "GPTNeoXForCausalLM", "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}  # fmt: skip
# Where transformers keeps the decoder inside the model.
_INSIDE = {"gpt2": "transformer.", "gpt_neox": "gpt_neox."}
_ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh"}
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")


def write_huggingface(checkpoint: Checkpoint, folder: Path) -> str:
    """Write `checkpoint` as a new folder that transformers loads. Returns the family's name, its `model_type`.

    Raises ExportError for an architecture or a tokenizer that has no name there, OutputError.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder} is there already", "choose a new folder")
    refuse_experts(checkpoint.config)
    kind, files = _family(checkpoint.config), _text_files(checkpoint)
    with replaced_folder(folder) as new:
        try:
            _write(checkpoint, _config(checkpoint, kind), files, new)
            again = load_source(new, "none" if checkpoint.tokenizer is None else None)
            reason = difference(checkpoint, again)
        except EdgelmError as error:
            reason = error.problem.replace(str(new), str(folder))
        if reason:
            raise ExportError(f"no family of transformers is this architecture: {kind} has no {reason}")
    return kind


def _write(checkpoint: Checkpoint, values: Mapping[str, Any], files: Mapping[str, Any], new: Path) -> None:
    kind = values["model_type"]
    family = family_of(values, str(new))
    inside = _INSIDE.get(kind, "model.")
    weights = {
        name if name in (family.head, family.head.replace("weight", "bias")) else inside + name: weight
        for name, weight in named_weights(checkpoint, family).items()
    }
    save_file(weights, new / "model.safetensors", metadata={"format": "pt"})
    for name, content in {"config.json": values, **files}.items():
        text = content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False)
        (new / name).write_text(text + ("" if name.endswith(".jinja") else "\n"), encoding="utf-8")


def _config(checkpoint: Checkpoint, kind: str) -> dict[str, Any]:
    """The values of config.json."""
    config, generation = checkpoint.config, checkpoint.generation
    shared = {
        "vocab_size": config.vocab_size, "tie_word_embeddings": config.tied_head, "torch_dtype": "float32",
        "bos_token_id": generation.get(BOS_ID), "eos_token_id": generation.get(END_IDS) or None,
        "pad_token_id": None,
    }  # fmt: skip
    own = {"gpt2": _gpt2, "gpt_neox": _gpt_neox}.get(kind, _llama)(config)
    if kind == "gemma3_text":
        own |= _gemma3(config)
    if kind in ("qwen2", "qwen3"):
        own |= {"use_sliding_window": bool(config.sliding_window), "max_window_layers": 0}
    return {"model_type": kind, "architectures": [CLASSES[kind]], **shared, **own}


def _family(config: ModelConfig) -> str:
    """The family whose parts are those of the architecture."""
    if config.norm == "layernorm":
        return "gpt2" if config.position == "learned" else "gpt_neox"
    if config.post_norm:
        return "gemma3_text"
    if config.query_key_norm:
        return "qwen3"
    # transformers' llama has biases on all four projections or on none.
    if config.qkv_bias != config.attention_bias:
        return "qwen2"
    return "mistral" if config.sliding_window else "llama"


def _activation(config: ModelConfig) -> str:
    return _ACTIVATIONS.get(config.activation, config.activation)


def _gpt2(config: ModelConfig) -> dict[str, Any]:
    return {
        "n_embd": config.width, "n_layer": config.num_layers, "n_head": config.num_heads,
        "n_positions": config.context_length, "n_inner": config.mlp_width,
        "activation_function": _activation(config), "layer_norm_epsilon": config.norm_eps,
    }  # fmt: skip


def _gpt_neox(config: ModelConfig) -> dict[str, Any]:
    return {
        "hidden_size": config.width, "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads, "intermediate_size": config.mlp_width,
        "max_position_embeddings": config.context_length, "hidden_act": _activation(config),
        "layer_norm_eps": config.norm_eps, "use_parallel_residual": config.parallel_residual,
        "rotary_pct": config.rotary_dim / config.head_dim, "rotary_emb_base": config.rope_theta,
        "attention_bias": config.attention_bias,
    }  # fmt: skip


def _llama(config: ModelConfig) -> dict[str, Any]:
    rotary: dict[str, Any] = {"rope_theta": config.rope_theta}
    if config.rope_scaling is not None:
        rotary["rope_scaling"] = _scaling(config.rope_scaling)
    return {
        "hidden_size": config.width, "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads, "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim, "intermediate_size": config.mlp_width,
        "max_position_embeddings": config.context_length, "hidden_act": _activation(config),
        "rms_norm_eps": config.norm_eps, "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias, "sliding_window": config.sliding_window or None, **rotary,
    }  # fmt: skip


def _scaling(scaling: RopeScaling) -> dict[str, Any]:
    if scaling.kind == "divisors":
        raise ExportError("rotary scaling by a table of divisors has no name in transformers")
    values: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind != "linear":
        values["original_max_position_embeddings"] = scaling.original_context
    if scaling.kind == "llama3":
        values |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    if scaling.kind == "yarn":
        values |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
        if scaling.attention_factor is not None:
            values["attention_factor"] = scaling.attention_factor
    return values


def _gemma3(config: ModelConfig) -> dict[str, Any]:
    scalar = config.attention_scale**-2
    return {
        "hidden_activation": _activation(config),
        "query_pre_attn_scalar": round(scalar) if abs(scalar - round(scalar)) < 1e-6 * scalar else scalar,
        "layer_types": [
            "sliding_attention" if config.is_local(layer) else "full_attention" for layer in range(config.num_layers)
        ],
        "rope_local_base_freq": config.local_rope_theta or config.rope_theta,
        "final_logit_softcapping": config.logit_softcap or None, "attn_logit_softcapping": None,
    }  # fmt: skip


def _text_files(checkpoint: Checkpoint) -> dict[str, Any]:
    """Tokenizer, chat template and generation defaults, by file name."""
    generation, tokenizer = checkpoint.generation, checkpoint.tokenizer
    ends, bos = generation.get(END_IDS, []), generation.get(BOS_ID)
    defaults: dict[str, Any] = {"bos_token_id": bos, "eos_token_id": ends or None}
    sampling = {name: generation[name] for name in _SAMPLING if name in generation}
    defaults |= {**sampling, "do_sample": True} if sampling else {}
    if "repeat_penalty" in generation:
        defaults["repetition_penalty"] = generation["repeat_penalty"]
    files: dict[str, Any] = {"generation_config.json": defaults}
    if tokenizer is None:
        return files
    texts = {token_id: text for text, token_id in tokenizer.special.items()}
    about: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": checkpoint.config.context_length,
        "clean_up_tokenization_spaces": False, "bos_token": None if bos is None else texts.get(bos), "eos_token": None,
    }  # fmt: skip
    if ends:
        about["eos_token"] = texts.get(ends[0])
    if template := generation.get(CHAT_TEMPLATE):
        files["chat_template.jinja"] = template
    begin = bos if generation.get(ADD_BOS) else None
    if begin is not None and begin not in texts:
        raise ExportError(f"the begin token {begin} has no text", "give a tokenizer that names it")
    return files | {"tokenizer.json": tokenizer_json(tokenizer, begin), "tokenizer_config.json": about}
