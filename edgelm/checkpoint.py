"""Checkpoints on disk: a folder that holds all that a model is.

    config.json           architecture, generation defaults, where the weights came from
    model.safetensors     weights; a tied head is stored once
    tokenizer.json        the tokenizer, in the runtime's own format (absent for ids-only models)
    held_out.jsonl        chats that the model was not taught, for measuring it (absent where it learned from text)

A training run keeps two of them in its folder, `best` and `last`; `last` also holds what resuming needs.

A folder is written under a temporary name next to its place, reaches the disk, and is moved there whole. Two renames
do that, so a kill can leave `.NAME.old` with nothing in its place: readers take it for `NAME`, and the next writer
moves it back.
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
from safetensors.torch import save_file

from edgelm.config import ModelConfig
from edgelm.model import Stored, StoredModel, Transformer
from edgelm.model.safetensors_files import safetensors_weights
from edgelm.model.stored import stored_weights
from edgelm_runtime.atomic_files import place, sync
from edgelm_runtime.errors import CheckpointError, EdgelmError, OutputError
from edgelm_runtime.text.tokenizer import Tokenizer
from edgelm_runtime.text.tokenizer_loading import load_tokenizer

CONFIG, WEIGHTS, TOKENIZER, HELD_OUT = "config.json", "model.safetensors", "tokenizer.json", "held_out.jsonl"
STATE, SETTINGS, FIGURES = "training_state.pt", "config.toml", "loss.csv"
"""What `last` also holds: optimiser and position, the settings, the figures of each step."""
BEST, LAST = "best", "last"
"""The checkpoints of a training run, in its folder."""
_OWN = {CONFIG, WEIGHTS, TOKENIZER, HELD_OUT, STATE, SETTINGS, FIGURES}


@dataclass
class Checkpoint:
    """A model with what belongs to it.

    `held` is the model in memory, or as it is stored; `model` has it in memory from its first use on. `generation`
    holds defaults for the runtime (`end_ids`, `temperature`, `chat_template`, ...), `origin` what is worth knowing
    about where the weights came from, `held_out` chats (`messages`, and `tools` where there are some) that the model
    was not taught. All are plain JSON values.
    """

    held: Transformer | StoredModel
    tokenizer: Tokenizer | None
    generation: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)
    held_out: list[dict[str, Any]] = field(default_factory=list)

    @property
    def config(self) -> ModelConfig:
        return self.held.config

    @property
    def model(self) -> Transformer:
        """The model with all its weights in memory."""
        if isinstance(self.held, StoredModel):
            self.held = self.held.load()
        return self.held

    @property
    def stored(self) -> StoredModel:
        """The model with its weights where they are."""
        return self.held if isinstance(self.held, StoredModel) else StoredModel.of(self.held)


def save_checkpoint(
    checkpoint: Checkpoint,
    folder: Path,
    write_more: Callable[[Path], None] = lambda new: None,
) -> None:
    """Write `checkpoint` as `folder`, replacing an earlier checkpoint there in one step.

    `write_more` is given the new folder before it is moved there. Raises OutputError where it cannot be written,
    and where `folder` holds something else than a checkpoint.
    """
    _refuse_other(folder)
    with replaced_folder(folder) as new:
        about: dict[str, Any] = {
            "model": checkpoint.config.to_dict(),
            "generation": checkpoint.generation,
            "origin": checkpoint.origin,
        }
        if checkpoint.tokenizer is not None:
            about["tokenizer_sha256"] = checkpoint.tokenizer.digest
        (new / CONFIG).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        save_tensors(save_file, stored_weights(checkpoint.model), new / WEIGHTS)
        # safetensors makes its file for the owner alone; whoever may read the rest may read the weights.
        (new / WEIGHTS).chmod((new / CONFIG).stat().st_mode)
        if checkpoint.tokenizer is not None:
            (new / TOKENIZER).write_text(json.dumps(checkpoint.tokenizer.to_dict()), encoding="utf-8")
        if checkpoint.held_out:
            lines = "".join(json.dumps(chat, ensure_ascii=False) + "\n" for chat in checkpoint.held_out)
            (new / HELD_OUT).write_text(lines, encoding="utf-8")
        write_more(new)


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint folder, or the best checkpoint of a training run's folder; weights on the CPU.

    Raises CheckpointError where `folder` is not a checkpoint or its weights do not fit its config.
    """
    folder = checkpoint_folder(folder)
    try:
        about = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        config = ModelConfig.from_dict(about["model"])
        tokenizer = _own_tokenizer(folder, about.get("tokenizer_sha256"))
        weights = safetensors_weights(folder / WEIGHTS)
        held_out = _held_out(folder / HELD_OUT)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        if isinstance(error, EdgelmError):
            raise
        raise CheckpointError(f"{folder} is not a readable checkpoint: {error}") from error
    model = StoredModel(config, weights, str(folder))
    return Checkpoint(model, tokenizer, about.get("generation", {}), about.get("origin", {}), held_out)


def _own_tokenizer(folder: Path, digest: str | None) -> Tokenizer | None:
    """The tokenizer of a checkpoint, None for a model of ids only.

    Raises CheckpointError where it is not the one that the model was saved with: every id would mean something else.
    Checkpoints of before the digest have none.
    """
    if not (folder / TOKENIZER).exists():
        if digest is not None:
            raise CheckpointError(f"{folder} lacks its {TOKENIZER}", "get the whole folder again")
        return None
    tokenizer = load_tokenizer(folder / TOKENIZER)
    if digest is not None and tokenizer.digest != digest:
        raise CheckpointError(
            f"{folder / TOKENIZER} is not the tokenizer that the model was saved with",
            "put that one back",
        )
    return tokenizer


def read_origin(folder: Path) -> dict[str, Any]:
    """What a checkpoint says of where its weights came from. Raises CheckpointError."""
    try:
        origin = json.loads((surviving(folder) / CONFIG).read_text(encoding="utf-8"))["origin"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder} is not a readable checkpoint: {error}") from error
    if not isinstance(origin, dict):
        raise CheckpointError(f"{folder} is not a readable checkpoint: its origin is {origin!r}")
    return origin


def _held_out(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def build_model(config: ModelConfig, weights: dict[str, torch.Tensor], source: str) -> Transformer:
    """A Transformer that holds `weights`, taken over without a copy where their dtype is float32.

    Raises CheckpointError that lists missing, unknown and ill-shaped weights; `source` names their origin.
    """
    stored = {name: Stored(tuple(weight.shape), weight.detach) for name, weight in weights.items()}
    return StoredModel(config, stored, source).load().train()


def checkpoint_folder(folder: Path) -> Path:
    """`folder` itself where it is a checkpoint, else the best checkpoint of a training run in it.

    Raises CheckpointError where there is neither: `last` is taken only by its own name.
    """
    for candidate in (surviving(folder), surviving(folder / BEST)):
        if is_checkpoint(candidate):
            return candidate
    if is_checkpoint(surviving(folder / LAST)):
        raise CheckpointError(
            f"the run in {folder} has no best checkpoint, since it has not been measured yet",
            f"go on with --resume, or give {folder / LAST}",
        )
    if not folder.exists():
        raise CheckpointError(f"there is no checkpoint {folder}", "give a folder that `edgelm train` wrote")
    raise CheckpointError(
        f"{folder} is not a checkpoint", f"a checkpoint is a folder with {CONFIG} and {WEIGHTS}"
    )


def is_checkpoint(folder: Path) -> bool:
    """Whether `folder` has the two files that no checkpoint lacks."""
    return (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file()


def save_tensors(save: Callable[[Any, Path], None], values: dict[str, Any], path: Path) -> None:
    """Save, where a full disk is an OSError as elsewhere and not an error of the library's own."""
    try:
        save(values, path)
    except (SafetensorError, RuntimeError) as error:
        raise OSError(f"cannot write {path.name}: {error}") from error


def _refuse_other(folder: Path) -> None:
    """Raise OutputError where saving a checkpoint as `folder` would remove something else."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise OutputError(f"{folder} is a file", "choose another folder")
    if not any(folder.iterdir()):
        return
    try:
        ours = "model" in json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        ours = False
    if not ours or not {path.name for path in folder.iterdir()} <= _OWN:
        raise OutputError(f"{folder} holds something else than a checkpoint", "choose another folder")


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """An empty folder to fill, which takes the place of `folder` when the block ends without an error.

    Raises OutputError; then `folder` is as before.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        restore(folder)
        new = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
        new.mkdir()  # with ordinary permissions, which mkdtemp's lacks
    except OSError as error:
        raise OutputError(
            f"cannot write to {folder.parent}: {error.strerror}", "choose another folder"
        ) from error
    try:
        yield new
        sync(new)  # before anything moves, since it takes its time
        _swap(new, folder)
    except OSError as error:
        raise OutputError(
            f"cannot write {folder}: {error}", "free some space or choose another folder"
        ) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _swap(new: Path, folder: Path) -> None:
    """Move `new` to `folder`, and what was there away."""
    old = _former(folder)
    if folder.exists():
        folder.replace(old)
    try:
        place(new, folder)
    finally:
        restore(folder)


def restore(folder: Path) -> None:
    """Undo a replacement of `folder` that was cut off between its two renames; remove what a complete one left."""
    old = _former(folder)
    if not old.exists():
        return
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.replace(folder)


def surviving(folder: Path) -> Path:
    """Where the content of `folder` is: under its own name, or under that of a replacement that was cut off."""
    return folder if folder.exists() or not _former(folder).exists() else _former(folder)


def _former(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")
