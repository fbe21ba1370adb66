"""A checkpoint as a GGUF file that llama.cpp loads, through the `gguf` package.

Matrices are stored as asked; vectors stay in float32, as llama.cpp's own converter has it. llama.cpp cuts text by
rules that it knows by name, so a tokenizer with another rule is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import torch

from edgelm.checkpoint import Checkpoint
from edgelm.config import ModelConfig
from edgelm.exporters.tokenizer_json import byte_level_text, merges_of
from edgelm.exporters.weights import difference, named_weights, refuse_experts
from edgelm.importers import load_source
from edgelm.importers.gguf.architectures import ARCHITECTURES
from edgelm.importers.gguf.cuts import GGUF_CUTS
from edgelm.importers.gguf.tokenizer import CONTROL, NORMAL, UNUSED, USER_DEFINED
from edgelm.model import Transformer
from edgelm_runtime.atomic_files import new_files
from edgelm_runtime.errors import EdgelmError, ExportError
from edgelm_runtime.model_file.interface import ADD_BOS, BOS_ID, CHAT_TEMPLATE, END_IDS
from edgelm_runtime.text.huggingface.pretokenizers import pattern_of
from edgelm_runtime.text.tokenizer import Tokenizer

FileType = Literal["F32", "F16", "Q8_0"]
_KINDS = {
    "F32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32, 32),
    "F16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16, 11),
    "Q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0, 8),
}


def write_gguf(checkpoint: Checkpoint, path: Path, file_type: FileType = "F16") -> str:
    """Write `checkpoint` as the file `path`. Returns the name of the architecture.

    Raises ExportError for an architecture or a tokenizer that has no name there, OutputError.
    """
    refuse_experts(checkpoint.config)
    kind, tokenizer = _architecture(checkpoint.config), _tokenizer(checkpoint)
    with new_files(path) as new:
        try:
            _write(checkpoint, kind, tokenizer, file_type, new)
            again = load_source(new, "none" if checkpoint.tokenizer is None else None)
            reason = difference(checkpoint, again, _KINDS[file_type][2])
        except EdgelmError as error:
            reason = error.problem.replace(str(new), str(path))
        if reason:
            raise ExportError(f"no architecture of llama.cpp is this one: {kind} has no {reason}")
    return kind


def _architecture(config: ModelConfig) -> str:
    """The architecture whose parts are those of the model."""
    if config.norm == "layernorm":
        return "gpt2"
    if config.post_norm:
        return "gemma3"
    return "qwen3" if config.query_key_norm else "qwen2" if config.qkv_bias else "llama"


def _write(
    checkpoint: Checkpoint, kind: str, tokenizer: Mapping[str, Any], file_type: FileType, path: Path
) -> None:
    stored, general, _ = _KINDS[file_type]
    writer = gguf.GGUFWriter(path, kind)
    writer.add_file_type(general)
    for key, value in _settings(checkpoint.config, kind).items():
        _add(writer, f"{kind}.{key}", value)
    for key, value in {**tokenizer, **_generation(checkpoint)}.items():
        _add(writer, f"tokenizer.{key}", value)
    weights = named_weights(checkpoint, ARCHITECTURES[kind][0])
    if (divisors := _divisors(checkpoint.config)) is not None:
        weights["rope_freqs.weight"] = divisors
    for name, weight in weights.items():
        values = weight.float().numpy()
        # A vector is small, and llama.cpp wants norms, biases and learned positions in float32.
        plain = values.ndim < 2 or name == "position_embd.weight"
        if stored == gguf.GGMLQuantizationType.Q8_0 and values.shape[-1] % 32:
            plain = True
        if plain:
            writer.add_tensor(name, values.astype(np.float32))
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value:
        writer.add_array(key, value)


def _settings(config: ModelConfig, kind: str) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "context_length": config.context_length, "embedding_length": config.width,
        "block_count": config.num_layers, "feed_forward_length": config.mlp_width,
        "attention.head_count": config.num_heads,
    }  # fmt: skip
    if kind == "gpt2":
        return settings | {"attention.layer_norm_epsilon": config.norm_eps}
    settings |= {
        "attention.head_count_kv": config.num_kv_heads, "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim, "attention.layer_norm_rms_epsilon": config.norm_eps,
        "rope.dimension_count": config.rotary_dim, "rope.freq_base": config.rope_theta,
        "vocab_size": config.vocab_size,
    }  # fmt: skip
    if kind == "gemma3":
        # Otherwise one layer in six sees everything, and local layers rotate by 10000.
        settings |= {
            "attention.sliding_window": config.sliding_window,
            "attention.sliding_window_pattern": _window_period(config),
            "rope.freq_base_swa": config.local_rope_theta or config.rope_theta,
        }
        settings |= {"final_logit_softcapping": config.logit_softcap} if config.logit_softcap else {}
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind in ("linear", "yarn"):
        settings |= {"rope.scaling.type": scaling.kind, "rope.scaling.factor": scaling.factor}
        if scaling.kind == "yarn":
            settings["rope.scaling.original_context_length"] = scaling.original_context
            settings["rope.scaling.yarn_beta_fast"] = scaling.beta_fast
            settings["rope.scaling.yarn_beta_slow"] = scaling.beta_slow
    return settings


def _window_period(config: ModelConfig) -> int:
    """Every how many layers one sees everything."""
    local = [config.is_local(layer) for layer in range(config.num_layers)]
    return local.index(False) + 1 if False in local else config.num_layers + 1


def _divisors(config: ModelConfig) -> torch.Tensor | None:
    """What Llama 3's scaling divides each rotary frequency by."""
    scaling = config.rope_scaling
    if scaling is None or scaling.kind not in ("llama3", "divisors"):
        return None
    if scaling.kind == "divisors":
        return torch.tensor(scaling.divisors)
    # The angle of position 1 is the frequency itself.
    plain, scaled = (
        Transformer.rotations(ModelConfig.from_dict({**config.to_dict(), "context_length": 2, **changes}))
        for changes in ({"rope_scaling": None}, {})
    )
    angles = [torch.atan2(table["sin_full"][1], table["cos_full"][1]) for table in (plain, scaled)]
    return angles[0] / angles[1]


def _tokenizer(checkpoint: Checkpoint) -> dict[str, Any]:
    tokenizer, rows = checkpoint.tokenizer, checkpoint.config.vocab_size
    if tokenizer is None:
        return {"ggml.model": "none"}
    if (
        tokenizer.space_symbol
        or tokenizer.prefix_space != "never"
        or tokenizer.drop_unknown
        or tokenizer.strip
    ):
        raise ExportError(
            "a tokenizer with a space in front of words cannot be written yet", "give a byte-level one"
        )
    tokens, kinds = [f"[UNUSED{number}]" for number in range(rows)], [UNUSED] * rows
    ids = range(len(tokenizer.tokens)) if tokenizer.ids is None else tokenizer.ids
    for token_id, token in zip(ids, tokenizer.tokens, strict=True):
        if not isinstance(token_id, int):
            raise ExportError("a tokenizer whose tokens have several ids cannot be written")
        tokens[token_id], kinds[token_id] = byte_level_text(token), NORMAL
    for names, kind in ((tokenizer.added, USER_DEFINED), (tokenizer.special, CONTROL)):
        for text, token_id in names.items():
            tokens[token_id], kinds[token_id] = text, kind
    return {
        "ggml.model": "gpt2", "ggml.pre": _cut_name(tokenizer), "ggml.tokens": tokens, "ggml.token_type": kinds,
        "ggml.merges": [" ".join(map(byte_level_text, parts)) for parts in merges_of(tokenizer)],
    }  # fmt: skip


def _cut_name(tokenizer: Tokenizer) -> str:
    """llama.cpp's name for how the tokenizer cuts text."""
    for name, cut in GGUF_CUTS.items():
        normalization = cut.normalizer["type"] if cut.normalizer else ""
        if (pattern_of(cut.pre_tokenizer, name).pattern, normalization) == (
            tokenizer.pattern,
            tokenizer.normalization,
        ):
            return name
    raise ExportError(
        "llama.cpp has no name for the way in which this tokenizer cuts text",
        "models with GPT-2's, Llama 3's, Qwen 2's or SmolLM's tokenizer can be written",
    )


def _generation(checkpoint: Checkpoint) -> dict[str, Any]:
    generation = checkpoint.generation
    if checkpoint.tokenizer is None:
        return {}
    values: dict[str, Any] = {"ggml.add_bos_token": bool(generation.get(ADD_BOS))}
    ends = generation.get(END_IDS, [])
    names = dict(zip(("ggml.eos_token_id", "ggml.eot_token_id", "ggml.eom_token_id"), ends, strict=False))
    values |= names
    if isinstance(bos := generation.get(BOS_ID), int):
        values["ggml.bos_token_id"] = bos
    if template := generation.get(CHAT_TEMPLATE):
        values["chat_template"] = template
    return values
