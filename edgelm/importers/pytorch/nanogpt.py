"""nanoGPT's `ckpt.pt`: a GPT-2 with exact GELU, with or without biases, tied head.

Text is GPT-2's BPE, or characters: `meta.pkl` is looked for next to the file and where nanoGPT's scripts
put it, `data/<dataset>/` next to the output folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgelm.checkpoint import Checkpoint
from edgelm.config import ModelConfig
from edgelm.importers.files.pickles import plain_pickle
from edgelm.importers.files.safe_files import has, inside
from edgelm.importers.files.torch_files import stored_tensors
from edgelm.importers.tokenizer_choice import WAYS_ON, TokenizerChoice, missing, named
from edgelm.importers.weight_names import NANOGPT
from edgelm.importers.weight_rules import Weights, take_weights, without_prefixes
from edgelm.model import StoredModel
from edgelm_runtime.errors import CheckpointError, TokenizerError
from edgelm_runtime.model_file.interface import END_IDS
from edgelm_runtime.text.huggingface.convert import ImportedTokenizer
from edgelm_runtime.text.tokenizer import Tokenizer

ARGUMENTS = {"n_layer", "n_head", "n_embd", "block_size", "bias", "vocab_size", "dropout"}
GPT2_IDS = 50257


def is_nanogpt(saved: Any) -> bool:
    """Whether a loaded file has nanoGPT's layout."""
    return isinstance(saved, dict) and "model" in saved and "model_args" in saved


def load_nanogpt(saved: Mapping[str, Any], path: Path, choice: TokenizerChoice) -> Checkpoint:
    """The checkpoint in a loaded file. Raises CheckpointError or TokenizerError."""
    source = str(path)
    weights = without_prefixes(stored_tensors(saved["model"], path, "model"), source)
    config = _config(saved["model_args"], weights, source)
    found = choice.tokenizer(lambda: _tokenizer(saved, config, path), config.vocab_size, source)
    model = StoredModel(config, take_weights(NANOGPT, config, weights, source), source)
    end = found.tokenizer.end_of_text if found else None
    generation = {END_IDS: [end]} if end is not None else {}
    return Checkpoint(model, found.tokenizer if found else None, generation, {"source": "nanoGPT"})


def _config(arguments: Any, weights: Weights, source: str) -> ModelConfig:
    if not isinstance(arguments, Mapping):
        raise CheckpointError(f"{source}: model_args is no table", "the file is not nanoGPT's")
    if unknown := sorted(str(name) for name in arguments.keys() - ARGUMENTS if arguments[name]):
        raise CheckpointError(
            f"{source} has model_args that nanoGPT does not know: {', '.join(unknown)}",
            "this variant cannot be imported",
        )
    try:
        vocab_size, width = weights["wte.weight"].shape
        context = weights["wpe.weight"].shape[0]
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"the weights of {source} do not fit: missing {error}") from error
    bias = "h.0.attn.c_attn.bias" in weights
    return ModelConfig(
        vocab_size=vocab_size, context_length=context, width=width, num_layers=NANOGPT.layers(weights),
        num_heads=arguments.get("n_head", 0), activation="gelu", norm_bias=bias, qkv_bias=bias,
        attention_bias=bias, mlp_bias=bias, tied_head=NANOGPT.tied(weights, said=False),
        dropout=float(arguments.get("dropout", 0.0)),
    )  # fmt: skip


def _tokenizer(saved: Mapping[str, Any], config: ModelConfig, path: Path) -> ImportedTokenizer:
    settings = saved.get("config")
    dataset = settings.get("dataset") if isinstance(settings, Mapping) else None
    folders = [path.parent]
    if isinstance(dataset, str) and dataset == Path(dataset).name:
        folders.append(path.parent.parent / "data" / dataset)
    for folder in folders:
        if has(folder, "meta.pkl"):
            return ImportedTokenizer(character_tokenizer(inside(folder, "meta.pkl")))
    if config.vocab_size < GPT2_IDS:
        raise missing(
            str(path), f"a vocabulary of {config.vocab_size} is not GPT-2's, and there is no meta.pkl"
        )
    return named("gpt2", str(path))


def character_tokenizer(path: Path) -> Tokenizer:
    """nanoGPT's `meta.pkl`: one id per character, in `stoi`; other characters are an error when met.

    The file is read opcode by opcode first and never allowed to import or call anything.
    """
    try:
        meta = plain_pickle(path.read_bytes())
        table: Mapping[str, int] = meta["stoi"]
        characters = {str(character).encode(): int(token_id) for character, token_id in table.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TokenizerError(f"{path} is no character table: {error}", WAYS_ON) from error
    long = [form for form in characters if len(form) > 1]
    tokens = [bytes([byte]) for byte in range(256)] + long
    ids: list[int | list[int]] = [characters.get(token, []) for token in tokens]
    return Tokenizer(tokens, r"[\s\S]", ids=ids)
