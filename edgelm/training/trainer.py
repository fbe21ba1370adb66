"""The training loop: batches in, checkpoints and figures out.

Choices, and why:
- Autocast to bfloat16 keeps weights and optimiser in float32; the loss is summed in float32.
- A batch is a function of the step, and dropout is seeded by the step, so nothing random needs storing
  and a resumed run is the same run.
- Stopping, the clock and the loss are agreed on by all processes in one small exchange per step.
"""

from __future__ import annotations

import math
import platform
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edgelm import __version__
from edgelm.checkpoint import (
    FIGURES,
    SETTINGS,
    STATE,
    Checkpoint,
    read_origin,
    save_checkpoint,
    save_tensors,
    surviving,
)
from edgelm.data.batches import Examples, HeldOut, mixed
from edgelm.model import Transformer
from edgelm.training.config import RunConfig
from edgelm.training.distributed import World
from edgelm.training.optimizer import learning_rate, make_optimizer
from edgelm.training.precision import precision_context
from edgelm.training.report import FigureLog, Figures, Reporter
from edgelm.training.run_folder import RunFolder
from edgelm.training.signals import StopRequest, stop_requests
from edgelm.training.validation import Measure, measure, token_bytes
from edgelm_runtime.atomic_files import write_file
from edgelm_runtime.errors import CheckpointError, ConfigError, TrainingError


@dataclass
class Position:
    """Where a run stands; saved with it."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best_loss: float = math.inf
    best_step: int = 0
    """The step that `best` was saved at; 0 where there is none yet."""


@dataclass(frozen=True)
class Material:
    """What a run learns from and is measured on."""

    train: Examples
    held_out: HeldOut
    fingerprint: str
    """Changes with the data."""
    about: dict[str, Any]
    """What a model card says of the data."""


class Trainer:
    """Trains `checkpoint.model` in place and writes the run's `best` and `last`.

    `objective` computes the loss from a batch's inputs and the count it is a mean over. Raises ConfigError where the
    batch cannot be divided among processes and accumulation parts.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        objective: nn.Module,
        material: Material,
        run: RunConfig,
        folder: RunFolder,
        world: World,
        reporter: Reporter,
        finished_model: Callable[[Checkpoint], Checkpoint] = lambda checkpoint: checkpoint,
    ) -> None:
        config = run.training
        self.checkpoint, self.material, self.run_config, self.config = checkpoint, material, run, config
        self.folder, self.world, self.reporter = folder, world, reporter
        self.finished_model = finished_model
        parts = world.size * config.accumulation
        if config.batch_size % parts:
            raise ConfigError(
                f"batch_size {config.batch_size} is not a multiple of {world.size} processes x "
                f"accumulation {config.accumulation}",
                f"choose a multiple of {parts}",
            )
        self.micro_batch = config.batch_size // parts
        self.model: Transformer = checkpoint.model.to(world.device)
        self.model.gradient_checkpointing = config.gradient_checkpointing
        if config.compile:
            objective.compile()
        self.objective = world.parallel(objective)
        self.optimizer = make_optimizer(self.model, config, world.device)
        self.token_bytes = token_bytes(checkpoint)
        self.position = Position()
        self.figures = FigureLog()
        self.latest: Measure | None = None
        self.autocast = precision_context(config.precision, world.device)
        self.is_first_save = True

    @property
    def progress(self) -> float:
        """Share of the budget that is used up, from 0 to 1."""
        config, position = self.config, self.position
        if config.steps:
            share = position.step / config.steps
        elif config.tokens:
            share = position.tokens / config.tokens
        elif config.epochs:
            share = position.step * config.batch_size / (config.epochs * self.material.train.per_epoch)
        else:
            share = position.seconds / (60 * config.minutes)
        return min(share, 1.0)

    def run(self) -> bool:
        """Train until the budget is used up (True) or a signal asks to stop (False). Both save `last`.

        Raises TrainingError for a loss that is not finite; `best` stays as it was.
        """
        earlier, tokens_before = self.position.seconds, self.position.tokens
        started = time.perf_counter()
        self.objective.train()
        try:
            with stop_requests() as asked:
                # Not `asked` itself, which differs between processes until they have agreed.
                stopping = False
                while self.progress < 1.0 and not stopping:
                    before = self.progress
                    row, stopping = self.advance(started - earlier, asked)
                    due = int(self.progress * self.config.validations) > int(before * self.config.validations)
                    if due or self.progress >= 1.0:
                        self._validate(row)
                    else:
                        self.figures.add(row)
                    spent = time.perf_counter() - started
                    self._report(self.figures.last, (self.position.tokens - tokens_before) / spent)
                finished = self.progress >= 1.0
                if not finished:
                    self._save_last()
        finally:
            self.objective.eval()
        return finished

    def advance(self, origin: float, asked: StopRequest) -> tuple[Figures, bool]:
        """One optimiser step; brings the position up to date. Also says whether any process wants to stop."""
        config, position = self.config, self.position
        rate = learning_rate(self.progress, config.learning_rate, config.warmup, config.final_fraction)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.checkpoint.config.dropout:
            # Every process and step has noise of its own, whether the run was resumed or not.
            torch.manual_seed(mixed(config.seed, position.step * self.world.size + self.world.rank))
        loss, count = self._gradients()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.clip or math.inf)
        mine = [loss, float(asked.stop)]
        mine.append(time.perf_counter() - origin if self.world.writes else 0.0)
        loss, stop, seconds = self.world.sums(mine)
        if not (math.isfinite(loss) and math.isfinite(float(norm))):
            raise TrainingError(
                f"the loss is {loss} and the gradient's norm {float(norm)} at step {position.step + 1}",
                self._remedy(),
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        position.step += 1
        position.tokens += count
        position.seconds = seconds
        row = Figures(
            step=position.step, tokens=position.tokens, seconds=seconds, learning_rate=rate, loss=loss
        )
        return row, stop > 0

    def _gradients(self) -> tuple[float, int]:
        """Accumulate this process's gradients of the loss over the whole batch.

        Returns the loss that its own rows add (nats per token), and the targets of all processes.
        """
        config, total = self.config, torch.zeros((), device=self.world.device)
        share = config.batch_size // self.world.size
        first = self.position.step * config.batch_size + self.world.rank * share
        parts = [
            self.material.train.batch(first + part * self.micro_batch, self.micro_batch)
            for part in range(config.accumulation)
        ]
        (count,) = self.world.sums([float(sum(part.count for part in parts))])
        for number, part in enumerate(parts, start=1):
            with self._exchange(last=number == len(parts)), self.autocast():
                loss = self.objective(*part.to(self.world.device), max(count, 1.0))
                # The exchange takes the mean over processes, and this loss is a part of a sum.
                (loss * self.world.size).backward()
            total += loss.detach()
        return float(total), int(count)

    def _exchange(self, last: bool) -> AbstractContextManager[None]:
        """Gradients cross between processes once per step, in the last part's backward pass."""
        if isinstance(self.objective, nn.parallel.DistributedDataParallel) and not last:
            return self.objective.no_sync()
        return nullcontext()

    def _remedy(self) -> str:
        kept = f"; {self.folder.best} keeps the best checkpoint so far" if self.position.best_step else ""
        return f"lower --learning-rate{kept}"

    def measure(self, most_tokens: int) -> Measure:
        """Loss on the held-out rows, in eval mode; the mode found is restored."""
        return measure(
            self.objective, self.material.held_out, self.token_bytes, most_tokens, self.micro_batch, self.world,
            self.autocast,
        )  # fmt: skip

    def _validate(self, row: Figures) -> None:
        """Measure, add the figures to `row`, and save the last and, where it is that, the best checkpoint."""
        result = self.measure(self.config.val_tokens)
        if not math.isfinite(result.loss):
            raise TrainingError(f"the validation loss is {result.loss} at step {row.step}", self._remedy())
        self.figures.add(
            Figures(**{**vars(row), "val_loss": result.loss, "val_bits_per_byte": result.bits_per_byte})
        )
        self.latest = result
        if better := result.loss < self.position.best_loss:
            self.position.best_loss, self.position.best_step = result.loss, row.step
        self._save_last()
        if better:
            self._save_best()

    def _history(self) -> dict[str, Any]:
        """What a model card says of this run. It travels with the model, so folders of this machine stay out."""
        config = self.config.to_dict()
        config |= {name: Path(config[name]).name for name in ("init_from", "chat_template")}
        config["data"] = [Path(name).name for name in config["data"]]
        return {
            **(self.latest.to_dict() if self.latest is not None else {}),
            "steps": self.position.step,
            "tokens": self.position.tokens,
            "minutes": round(self.position.seconds / 60, 2),
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

    def _save_best(self) -> None:
        if self.world.writes:
            self.checkpoint.origin["training"] = self._history()
            save_checkpoint(self.finished_model(self.checkpoint), self.folder.best)

    def _save_last(self) -> None:
        """Save all that a resumed run needs, in one step, then what is made of it."""
        if not self.world.writes:
            return
        self.checkpoint.origin["training"] = self._history()
        settings, figures = self.run_config.to_toml(), self.figures.to_csv()
        state = {
            **vars(self.position), "optimizer": self.optimizer.state_dict(),
            "data": self.material.fingerprint, "latest": self.latest and asdict(self.latest),
        }  # fmt: skip

        def write_more(new: Path) -> None:
            save_tensors(torch.save, state, new / STATE)
            (new / SETTINGS).write_text(settings, encoding="utf-8")
            (new / FIGURES).write_text(figures, encoding="utf-8")

        save_checkpoint(self.checkpoint, self.folder.last, write_more)
        if self.is_first_save:
            self._remove_former()
        write_file(self.folder.path / SETTINGS, settings)
        write_file(self.folder.path / FIGURES, figures)

    def _remove_former(self) -> None:
        """Remove what a replaced run has left, now that `last` is this run's."""
        self.is_first_save = False
        if not self._owns_best():
            shutil.rmtree(self.folder.best, ignore_errors=True)
        self.folder.remove_former(self.material.fingerprint)

    def _owns_best(self) -> bool:
        """Whether `best` was saved by this run where the position says so."""
        try:
            about = read_origin(self.folder.best)["training"]
        except (CheckpointError, KeyError, TypeError):
            return False
        step, minutes = about.get("steps"), about.get("minutes")
        row = self.figures.at(self.position.best_step)
        return row is not None and (step, minutes) == (row.step, round(row.seconds / 60, 2))

    def resume(self) -> None:
        """Take optimiser and position from `last`, whose weights the model already has.

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
            latest = state.pop("latest")
            self.latest = Measure(**latest) if latest else None
            self.position = Position(**state)
        except CheckpointError:
            raise
        except Exception as error:  # whatever unpickling and loading damaged values raise
            raise CheckpointError(
                f"cannot resume from {path}: {error}", "start anew with --overwrite"
            ) from error
        self.figures = FigureLog(last / FIGURES)
        self._restore_best()

    def _restore_best(self) -> None:
        """After a kill between `last` and `best`: `best` is what `last` says, or there is none yet."""
        position = self.position
        if not position.best_step or self._owns_best():
            return
        if position.best_step == position.step:
            self._save_best()
        else:
            position.best_loss, position.best_step = math.inf, 0

    def _report(self, row: Figures, tokens_per_second: float) -> None:
        progress = self.progress
        left = self.position.seconds * (1 - progress) / progress if progress else math.inf
        self.reporter.step(row, progress, tokens_per_second, left)
