"""GGUF files as checkpoints: architecture from the metadata, weights dequantised, tokenizer and template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgelm.checkpoint import Checkpoint
from edgelm.importers.gguf.architectures import gguf_config
from edgelm.importers.gguf.parts import GgufModel, read_gguf
from edgelm.importers.gguf.tokenizer import END_NAMES, END_ROLES, gguf_tokenizer
from edgelm.importers.tokenizer_choice import TokenizerChoice
from edgelm.importers.weight_rules import take_weights
from edgelm.model import StoredModel
from edgelm_runtime.model_file.interface import ADD_BOS, ADD_EOS, BOS_ID, CHAT_TEMPLATE, END_IDS, EOS_ID
from edgelm_runtime.text.huggingface.convert import ImportedTokenizer


def load_gguf(path: Path, choice: TokenizerChoice) -> Checkpoint:
    """The model in a GGUF file, or in the parts that it is one of.

    Raises CheckpointError, ConfigError or TokenizerError.
    """
    file, source = read_gguf(path), str(path)
    config, family = gguf_config(file)
    found = choice.tokenizer(lambda: gguf_tokenizer(file, config.vocab_size), config.vocab_size, source)
    model = StoredModel(config, take_weights(family, config, file.weights, source), source)
    origin = {"source": "GGUF", "architecture": file.metadata["general.architecture"], "path": source}
    return Checkpoint(model, found.tokenizer if found else None, _generation(file, found), origin)


def _generation(file: GgufModel, found: ImportedTokenizer | None) -> dict[str, Any]:
    meta = file.metadata
    ends = [meta.get(f"tokenizer.ggml.{name}_token_id") for name in END_ROLES]
    special = found.tokenizer.special if found else {}
    ends += [special.get(name) for name in END_NAMES]
    generation: dict[str, Any] = {END_IDS: list(dict.fromkeys(end for end in ends if isinstance(end, int)))}
    if isinstance(bos := meta.get("tokenizer.ggml.bos_token_id"), int):
        generation |= {BOS_ID: bos, ADD_BOS: found is not None and found.bos_id == bos}
    if found and found.eos_id is not None:
        generation |= {EOS_ID: found.eos_id, ADD_EOS: True}
    if isinstance(template := meta.get("tokenizer.chat_template"), str):
        generation[CHAT_TEMPLATE] = template
    return generation
