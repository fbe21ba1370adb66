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
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edgelm import __version__
from edgelm.checkpoint import STATE, Checkpoint, save_checkpoint
from edgelm.model import Transformer, causal_attention
from edgelm.training.attention import blocked_attention
from edgelm.training.batches import Windows, mixed
from edgelm.training.config import TrainingConfig
from edgelm.training.distributed import World
from edgelm.training.loss import Objective
from edgelm.training.optimizer import learning_rate, make_optimizer
from edgelm.training.precision import precision_context
from edgelm.training.report import FigureLog, Figures, Reporter
from edgelm.training.shards import TokenData
from edgelm.training.signals import StopRequest, stop_requests
from edgelm.training.validation import Measure, measure, token_bytes
from edgelm_runtime.errors import CheckpointError, ConfigError, TrainingError

BEST, LAST = "best", "last"


@dataclass
class Position:
    """Where a run stands; saved with it."""

    step: int = 0
    seconds: float = 0.0
    best_loss: float = math.inf


class Trainer:
    """Trains `checkpoint.model` in place and writes `out/best` and `out/last`.

    Raises ConfigError where the batch cannot be divided among processes and accumulation parts.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        data: TokenData,
        config: TrainingConfig,
        out: Path,
        world: World,
        reporter: Reporter,
        mark: str,
    ) -> None:
        self.checkpoint, self.data, self.config, self.out = checkpoint, data, config, out
        self.world, self.reporter, self.mark = world, reporter, mark
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
        objective = Objective(
            self.model, blocked_attention if world.device.type == "cpu" else causal_attention
        )
        if config.compile:
            objective.compile()
        self.objective = world.parallel(objective)
        self.optimizer = make_optimizer(self.model, config, world.device)
        self.windows = Windows(data.train, self.context, config.seed)
        self.token_bytes = token_bytes(checkpoint)
        self.position = Position()
        self.latest: Measure | None = None
        self.autocast = precision_context(config.precision, world.device)

    @property
    def context(self) -> int:
        return self.checkpoint.config.context_length

    @property
    def tokens_seen(self) -> int:
        return self.position.step * self.config.batch_size * self.context

    @property
    def progress(self) -> float:
        """Share of the budget that is used up, from 0 to 1."""
        config = self.config
        if config.steps:
            share = self.position.step / config.steps
        elif config.tokens:
            share = self.tokens_seen / config.tokens
        else:
            share = self.position.seconds / (60 * config.minutes)
        return min(share, 1.0)

    def run(self) -> bool:
        """Train until the budget is used up (True) or a signal asks to stop (False). Both save `last`.

        Raises TrainingError for a loss that is not finite; `best` stays as it was.
        """
        figures = FigureLog(self.out, self.position.step) if self.world.writes else None
        earlier = self.position.seconds
        first_step, started = self.position.step, time.perf_counter()
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
                        row = self._validated(row)
                    if figures:
                        figures.add(row)
                        if due or stopping:
                            figures.flush()
                        spent = time.perf_counter() - started
                        steps = self.position.step - first_step
                        self._report(row, steps * self.config.batch_size * self.context / spent)
                finished = self.progress >= 1.0
                if not finished:
                    self._save_last()
        finally:
            if figures:
                figures.close()
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
        loss = self._gradients()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.clip or math.inf)
        mine = [loss / self.world.size, float(asked.stop)]
        mine.append(time.perf_counter() - origin if self.world.writes else 0.0)
        loss, stop, seconds = self.world.sums(mine)
        if not (math.isfinite(loss) and math.isfinite(float(norm))):
            raise TrainingError(
                f"the loss is {loss} and the gradient's norm {float(norm)} at step {position.step + 1}",
                f"lower --learning-rate; {self.out / BEST} keeps the best checkpoint so far",
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        position.step += 1
        position.seconds = seconds
        row = Figures(
            step=position.step, tokens=self.tokens_seen, seconds=seconds, learning_rate=rate, loss=loss
        )
        return row, stop > 0

    def _gradients(self) -> float:
        """Accumulate this process's gradients of the mean loss, which is returned (nats per token)."""
        config, total = self.config, torch.zeros((), device=self.world.device)
        share = config.batch_size // self.world.size
        first = self.position.step * config.batch_size + self.world.rank * share
        for part in range(config.accumulation):
            rows = torch.from_numpy(self.windows.batch(first + part * self.micro_batch, self.micro_batch))
            rows = rows.to(self.world.device, non_blocking=True)
            with self._exchange(last=part == config.accumulation - 1), self.autocast():
                loss = self.objective(rows[:, :-1], rows[:, 1:]) / config.accumulation
                loss.backward()
            total += loss.detach()
        return float(total)

    def _exchange(self, last: bool) -> AbstractContextManager[None]:
        """Gradients cross between processes once per step, in the last part's backward pass."""
        if isinstance(self.objective, nn.parallel.DistributedDataParallel) and not last:
            return self.objective.no_sync()
        return nullcontext()

    def measure(self, most_tokens: int) -> Measure:
        """Loss on the held-out tokens, in eval mode; the mode found is restored."""
        return measure(
            self.model, self.data.val, self.token_bytes, most_tokens, self.micro_batch, self.world, self.autocast
        )  # fmt: skip

    def _validated(self, row: Figures) -> Figures:
        """Measure, keep the best and the last checkpoint, and return `row` with the figures."""
        result = self.measure(self.config.val_tokens)
        if not math.isfinite(result.loss):
            raise TrainingError(
                f"the validation loss is {result.loss} at step {row.step}",
                f"lower --learning-rate; {self.out / BEST} keeps the best checkpoint so far",
            )
        better = result.loss < self.position.best_loss
        self.position.best_loss = min(result.loss, self.position.best_loss)
        self.latest = result
        if better and self.world.writes:
            self.checkpoint.origin["training"] = self._history()
            save_checkpoint(self.checkpoint, self.out / BEST)
        self._save_last()
        return Figures(**{**vars(row), "val_loss": result.loss, "val_bits_per_byte": result.bits_per_byte})

    def _history(self) -> dict[str, Any]:
        """What a model card says of this run. It travels with the model, so folders of this machine stay out."""
        config = self.config.to_dict()
        config |= {
            "data": [Path(name).name for name in config["data"]],
            "init_from": Path(config["init_from"]).name,
        }
        return {
            **(self.latest.to_dict() if self.latest is not None else {}),
            "steps": self.position.step,
            "tokens": self.tokens_seen,
            "minutes": round(self.position.seconds / 60, 2),
            "corpus": {
                "documents": self.data.documents,
                "train_tokens": len(self.data.train),
                "val_tokens": len(self.data.val),
                "split": self.data.split,
            },
            "processes": self.world.size,
            "device": self.world.device.type,
            "config": config,
            "versions": {
                "edgelm": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
        }

    def _save_last(self) -> None:
        if self.world.writes:
            self.checkpoint.origin["training"] = self._history()
            state = {**vars(self.position), "optimizer": self.optimizer.state_dict(), "data": self.mark}
            save_checkpoint(self.checkpoint, self.out / LAST, state)

    def resume(self) -> None:
        """Take optimiser and position from `out/last`, whose weights the model already has.

        Raises CheckpointError where that is no saved run, or one on other data.
        """
        path = self.out / LAST / STATE
        try:
            state: dict[str, Any] = torch.load(path, map_location=self.world.device, weights_only=True)
            if state["data"] != self.mark:
                raise CheckpointError(
                    f"the data of {self.out} has changed since the run was saved",
                    "restore it, or start anew with --overwrite or --init-from",
                )
            self.optimizer.load_state_dict(state["optimizer"])
            self.position = Position(state["step"], state["seconds"], state["best_loss"])
        except CheckpointError:
            raise
        except Exception as error:  # whatever unpickling and loading damaged values raise
            raise CheckpointError(
                f"cannot resume from {path}: {error}", "start anew with --overwrite"
            ) from error

    def _report(self, row: Figures, tokens_per_second: float) -> None:
        progress = self.progress
        left = self.position.seconds * (1 - progress) / progress if progress else math.inf
        self.reporter.step(row, progress, tokens_per_second, left)
