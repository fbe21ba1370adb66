"""Saving a run and going on with it: `last` in one step with all that this needs, `best`, and copies to read."""

from __future__ import annotations

import math
import platform
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from edgelm import __version__
from edgelm.checkpoint import (
    FIGURES,
    SETTINGS,
    STATE,
    Checkpoint,
    build_model,
    read_origin,
    save_checkpoint,
    save_tensors,
    surviving,
)
from edgelm.finetuning.lora import adapters, load_adapters, merged_weights
from edgelm.training.config import RunConfig
from edgelm.training.distributed import World
from edgelm.training.material import Material
from edgelm.training.optimizer import Optimizer
from edgelm.training.report import FigureLog
from edgelm.training.run_folder import RunFolder
from edgelm.training.validation import Measure
from edgelm_runtime.atomic_files import write_file
from edgelm_runtime.errors import CheckpointError


@dataclass
class Position:
    """Where a run stands."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best_loss: float = math.inf
    best_step: int = 0
    """The step that `best` was saved at; 0 where there is none yet."""
    latest: Measure | None = None
    figures: FigureLog = field(default_factory=FigureLog)


class Saves:
    """Writes the checkpoints of a run, and reads them. Of several processes only one writes."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        optimizer: Optimizer,
        material: Material,
        run: RunConfig,
        folder: RunFolder,
        world: World,
        reference: torch.Tensor | None,
    ) -> None:
        self.checkpoint, self.optimizer, self.material, self.run = checkpoint, optimizer, material, run
        self.folder, self.world, self.reference = folder, world, reference
        self.has_taken_over = False
        """Whether `last` is this run's, and not one that it replaces."""

    def save_best(self, position: Position) -> None:
        """Save the model as the best one so far."""
        if self.world.writes:
            save_checkpoint(self._finished(position), self.folder.best)

    def save_last(self, position: Position) -> None:
        """Save all that a resumed run needs, in one step, and then the copies for people to read."""
        if not self.world.writes:
            return
        state: dict[str, Any] = {
            **vars(position), "latest": position.latest and asdict(position.latest),
            "optimizer": self.optimizer.state_dict(), "data": self.material.fingerprint,
            "reference": self.reference,
        }  # fmt: skip
        del state["figures"]
        if self.run.training.lora:
            state["adapters"] = adapters(self.checkpoint.model)

        def write_more(new: Path) -> None:
            save_tensors(torch.save, state, new / STATE)
            (new / SETTINGS).write_text(self.run.to_toml(), encoding="utf-8")
            (new / FIGURES).write_text(position.figures.to_csv(), encoding="utf-8")

        save_checkpoint(self._finished(position), self.folder.last, write_more)
        if not self.has_taken_over:
            self.has_taken_over = True
            if not self._owns_best(position):
                shutil.rmtree(self.folder.best, ignore_errors=True)
            self.folder.remove_former(self.material.fingerprint)
        self._write_copies(position)

    def _write_copies(self, position: Position) -> None:
        write_file(self.folder.path / SETTINGS, self.run.to_toml())
        write_file(self.folder.path / FIGURES, position.figures.to_csv())

    def _finished(self, position: Position) -> Checkpoint:
        """The model as it is to be used: with adapters merged, and its history."""
        self.checkpoint.origin["training"] = self._history(position)
        if not self.run.training.lora:
            return self.checkpoint
        weights = merged_weights(self.checkpoint.model)
        if self.checkpoint.config.tied_head:
            del weights["head.weight"]
        model = build_model(self.checkpoint.config, weights, "the model")
        given = self.checkpoint
        return Checkpoint(model, given.tokenizer, given.generation, given.origin, given.held_out)

    def _history(self, position: Position) -> dict[str, Any]:
        """What a model card says of this run. It travels with the model, so folders of this machine stay out."""
        config = self.run.training.to_dict()
        config |= {name: Path(config[name]).name for name in ("init_from", "chat_template")}
        config["data"] = [Path(name).name for name in config["data"]]
        return {
            **(position.latest.to_dict() if position.latest is not None else {}),
            "steps": position.step,
            "tokens": position.tokens,
            "minutes": round(position.seconds / 60, 2),
            "corpus": self.material.about,
            "processes": self.world.size,
            "device": self.world.device.type,
            "config": config,
            "versions": {
                "edgelm": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
        }

    def resume(self) -> Position:
        """Bring optimiser and adapters to where `last` was saved; its weights the model already has.

        Raises CheckpointError where that is no saved run, or one on other data.
        """
        last = surviving(self.folder.last)
        path = last / STATE
        try:
            state: dict[str, Any] = torch.load(path, map_location=self.world.device, weights_only=True)
            if state.pop("data") != self.material.fingerprint:
                raise CheckpointError(
                    f"the data of {self.folder.path} has changed since the run was saved",
                    "restore it, or start anew with --overwrite or --init-from",
                )
            self.optimizer.load_state_dict(state.pop("optimizer"))
            if "adapters" in state:
                load_adapters(self.checkpoint.model, state.pop("adapters"))
            state.pop("reference")
            latest = state.pop("latest")
            position = Position(
                **state, latest=Measure(**latest) if latest else None, figures=FigureLog(last / FIGURES)
            )
        except CheckpointError:
            raise
        except Exception as error:  # whatever unpickling and loading damaged values raise
            raise CheckpointError(
                f"cannot resume from {path}: {error}", "start anew with --overwrite"
            ) from error
        if self.world.writes:
            self._write_copies(position)
        self._restore_best(position)
        return position

    def _restore_best(self, position: Position) -> None:
        """After a kill between `last` and `best`: `best` is what `last` says, or there is none yet."""
        if not position.best_step or self._owns_best(position):
            return
        if position.best_step == position.step:
            self.save_best(position)
        else:
            position.best_loss, position.best_step = math.inf, 0

    def _owns_best(self, position: Position) -> bool:
        """Whether `best` is what this run saved at the position's best step."""
        try:
            about = read_origin(self.folder.best)["training"]
            found = about["steps"], about["minutes"]
        except (CheckpointError, KeyError, TypeError):
            return False
        row = position.figures.at(position.best_step)
        return row is not None and found == (row.step, round(row.seconds / 60, 2))


def read_reference(folder: RunFolder) -> torch.Tensor:
    """The reference of a run that learns from pairs. Raises CheckpointError."""
    path = surviving(folder.last) / STATE
    try:
        reference = torch.load(path, weights_only=True)["reference"]
    except Exception as error:  # whatever unpickling raises
        raise CheckpointError(f"cannot resume from {path}: {error}", "start anew with --overwrite") from error
    if not isinstance(reference, torch.Tensor):
        raise CheckpointError(f"{path} is no run with --objective dpo", "leave the objective out")
    return reference
