"""Checkpoints on disk: a folder that holds all that a model is.

    config.json           architecture, generation defaults, where the weights came from
    model.safetensors     weights; a tied head is stored once
    tokenizer.json        the tokenizer, in the runtime's own format (absent for ids-only models)
    training_state.pt     optimiser, step and budget, only in a run that can be resumed

A folder is written under a temporary name beside its place and moved there whole, so a reader sees the
old checkpoint or the new one and never a part.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from edgelm.config import ModelConfig
from edgelm.model import Transformer
from edgelm_runtime.errors import CheckpointError, EdgelmError, OutputError
from edgelm_runtime.text.tokenizer import Tokenizer
from edgelm_runtime.text.tokenizer_loading import load_tokenizer

CONFIG, WEIGHTS, TOKENIZER, STATE = "config.json", "model.safetensors", "tokenizer.json", "training_state.pt"


@dataclass
class Checkpoint:
    """A model with what belongs to it.

    `generation` holds defaults for the runtime (`end_ids`, `temperature`, `chat_template`, ...), `origin`
    what is worth knowing about where the weights came from. Both are plain JSON values.
    """

    model: Transformer
    tokenizer: Tokenizer | None
    generation: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> ModelConfig:
        return self.model.config


def save_checkpoint(
    checkpoint: Checkpoint, folder: Path, training_state: dict[str, Any] | None = None
) -> None:
    """Write `checkpoint` as `folder`, replacing what is there in one step. Raises OutputError."""
    with replaced_folder(folder) as new:
        about = {
            "model": checkpoint.config.to_dict(),
            "generation": checkpoint.generation,
            "origin": checkpoint.origin,
        }
        (new / CONFIG).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        _save_tensors(save_file, _stored_weights(checkpoint.model), new / WEIGHTS)
        # safetensors makes its file for the owner alone; whoever may read the rest may read the weights.
        (new / WEIGHTS).chmod((new / CONFIG).stat().st_mode)
        if checkpoint.tokenizer is not None:
            (new / TOKENIZER).write_text(json.dumps(checkpoint.tokenizer.to_dict()), encoding="utf-8")
        if training_state is not None:
            _save_tensors(torch.save, training_state, new / STATE)


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint folder, or the best checkpoint of a training run's folder; weights on the CPU.

    Raises CheckpointError where `folder` is not a checkpoint or its weights do not fit its config.
    """
    folder = checkpoint_folder(folder)
    try:
        about = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        config = ModelConfig.from_dict(about["model"])
        tokenizer = load_tokenizer(folder / TOKENIZER) if (folder / TOKENIZER).exists() else None
        weights = load_file(folder / WEIGHTS)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        if isinstance(error, EdgelmError):
            raise
        raise CheckpointError(f"{folder} is not a readable checkpoint: {error}") from error
    model = build_model(config, weights, str(folder))
    return Checkpoint(model.eval(), tokenizer, about.get("generation", {}), about.get("origin", {}))


def build_model(config: ModelConfig, weights: dict[str, torch.Tensor], source: str) -> Transformer:
    """A Transformer that holds `weights`, taken over without a copy where their dtype is float32.

    Raises CheckpointError that lists missing, unknown and ill-shaped weights; `source` names their origin.
    """
    # A damaged figure must not build a million layers before the weights are looked at.
    if config.num_layers > len(weights):
        raise CheckpointError(
            f"{source} speaks of {config.num_layers} layers and holds {len(weights)} weights"
        )
    with torch.device("meta"):
        model = Transformer(config)
    expected = {name: tuple(weight.shape) for name, weight in _stored_weights(model).items()}
    problems = [f"missing {name}" for name in sorted(expected.keys() - weights.keys())]
    problems += [f"unknown {name}" for name in sorted(weights.keys() - expected.keys())]
    problems += [
        f"{name} has shape {tuple(weights[name].shape)} instead of {shape}"
        for name, shape in expected.items()
        if name in weights and tuple(weights[name].shape) != shape
    ]
    if problems:
        raise CheckpointError(f"the weights of {source} do not fit its configuration: {'; '.join(problems)}")
    given = {name: weight.float() for name, weight in weights.items()}
    if config.tied_head:
        given["head.weight"] = given["token_embedding.weight"]
    model.load_state_dict(given, assign=True)
    if config.tied_head:
        model.head.weight = model.token_embedding.weight
    for name, table in Transformer.rotations(config).items():
        model.register_buffer(name, table, persistent=False)
    return model


def checkpoint_folder(folder: Path) -> Path:
    """`folder` itself where it is a checkpoint, else the best or last one of a training run in it."""
    for candidate in (folder, folder / "best", folder / "last"):
        if (candidate / CONFIG).is_file() and (candidate / WEIGHTS).is_file():
            return candidate
    if not folder.exists():
        raise CheckpointError(f"there is no checkpoint {folder}", "give a folder that `edgelm train` wrote")
    raise CheckpointError(
        f"{folder} is not a checkpoint", f"a checkpoint is a folder with {CONFIG} and {WEIGHTS}"
    )


def _stored_weights(model: Transformer) -> dict[str, torch.Tensor]:
    weights = {name: weight.detach().contiguous() for name, weight in model.state_dict().items()}
    if model.config.tied_head:
        del weights["head.weight"]
    return weights


def _save_tensors(save: Callable[[Any, Path], None], values: dict[str, Any], path: Path) -> None:
    """Save, where a full disk is an OSError as elsewhere and not an error of the library's own."""
    try:
        save(values, path)
    except (SafetensorError, RuntimeError) as error:
        raise OSError(f"cannot write {path.name}: {error}") from error


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """An empty folder to fill, which takes the place of `folder` when the block ends without an error."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = _unused_name(folder)
        new.mkdir()
    except OSError as error:
        raise OutputError(
            f"cannot write to {folder.parent}: {error.strerror}", "choose another folder"
        ) from error
    try:
        yield new
        old = _unused_name(folder)
        if folder.exists():
            folder.replace(old)
        new.replace(folder)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise OutputError(
            f"cannot write {folder}: {error}", "free some space or choose another folder"
        ) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _unused_name(folder: Path) -> Path:
    """A hidden name beside `folder`. Made by `mkdir` it has ordinary permissions, which mkdtemp's lacks."""
    return folder.parent / f".{folder.name}-{secrets.token_hex(4)}"
