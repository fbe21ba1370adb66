"""Hugging Face folders: config.json, safetensors (one or several), tokenizer.json and what goes with it.

Weights stay memory-mapped. `pytorch_model.bin` is read too, through the safe loader of torch_files.py,
since some small models were never published otherwise.
"""

from __future__ import annotations

import re
from pathlib import Path

from edgelm.checkpoint import Checkpoint
from edgelm.importers.files.safe_files import has, inside, read_json
from edgelm.importers.files.torch_files import read_torch, stored_tensors
from edgelm.importers.huggingface.adapter import with_adapter
from edgelm.importers.huggingface.config import family_of, read_config
from edgelm.importers.huggingface.generation import generation_settings
from edgelm.importers.huggingface.tokenizer import folder_tokenizer
from edgelm.importers.tokenizer_choice import TokenizerChoice
from edgelm.importers.weight_rules import take_weights, without_prefixes
from edgelm.model import Stored, StoredModel
from edgelm.model.safetensors_files import safetensors_weights
from edgelm_runtime.errors import CheckpointError

# What a download asks for: no code, no weights of other frameworks.
WANTED = ("*.json", "*.safetensors", "chat_template.jinja", "merges.txt", "pytorch_model*.bin")


def load_huggingface(folder: Path, choice: TokenizerChoice, adapter: Path | None = None) -> Checkpoint:
    """The model in a folder, with a low-rank adapter merged where one is given.

    Raises CheckpointError, ConfigError or TokenizerError.
    """
    source = str(folder)
    settings = read_json(inside(folder, "config.json"))
    family = family_of(settings, source)
    plain = without_prefixes(_folder_weights(folder), source, ("gpt_neox.",))
    weights = family.renamed(plain if adapter is None else with_adapter(plain, adapter))
    config, family = read_config(settings, weights, source)
    found = choice.tokenizer(lambda: folder_tokenizer(folder, config.vocab_size), config.vocab_size, source)
    model = StoredModel(config, take_weights(family, config, weights, source), source)
    origin = {"source": "Hugging Face folder", "model_type": settings["model_type"]}
    return Checkpoint(
        model, found.tokenizer if found else None, generation_settings(folder, settings, found), origin
    )


def download(name: str) -> Path:
    """The folder of a model of the Hugging Face hub, `org/name` or `org/name@revision`. Raises CheckpointError."""
    model, _, revision = name.partition("@")
    try:
        import huggingface_hub
    except ModuleNotFoundError as error:
        raise CheckpointError(
            f"there is no {name} here, and downloading it needs the package huggingface_hub",
            "install it with: pip install huggingface_hub, or give a folder",
        ) from error
    try:
        return Path(
            huggingface_hub.snapshot_download(model, revision=revision or None, allow_patterns=list(WANTED))
        )
    except Exception as error:  # the hub's client lets through whatever its HTTP library raises
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"there is no {name} here, and it cannot be downloaded: {first}", "check the name and the network"
        ) from error


def _folder_weights(folder: Path) -> dict[str, Stored]:
    """Every tensor of the folder's weight files."""
    for single in ("model.safetensors", "pytorch_model.bin"):
        if has(folder, single):
            return _file_weights(inside(folder, single))
        if has(folder, f"{single}.index.json"):
            return _sharded_weights(folder, f"{single}.index.json")
    raise CheckpointError(
        f"{folder} has a config.json and no weights", "it needs model.safetensors or pytorch_model.bin"
    )


def _sharded_weights(folder: Path, index: str) -> dict[str, Stored]:
    """The tensors that an index lists, each in the file that it names: a plain name in the same folder.

    Raises CheckpointError where one is missing, or a file is.
    """
    places = read_json(inside(folder, index)).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{folder / index} has no weight_map", "get the file again")
    weights: dict[str, Stored] = {}
    for shard in sorted({str(shard) for shard in places.values()}):
        if re.search(r"[/\\]|^\.", shard):
            raise CheckpointError(f"{folder / index} names {shard!r}", "a shard must lie next to its index")
        if not has(folder, shard):
            raise CheckpointError(f"{folder} lacks {shard}, which {index} names", "get the file again")
        weights |= _file_weights(inside(folder, shard))
    if missing := sorted(str(name) for name in places.keys() - weights.keys()):
        raise CheckpointError(
            f"the files of {folder} lack {missing[0]} and {len(missing) - 1} more that {index} lists",
            "get them again",
        )
    return weights


def _file_weights(path: Path) -> dict[str, Stored]:
    if path.suffix == ".bin":
        return stored_tensors(read_torch(path), path, "the file")
    return safetensors_weights(path)
