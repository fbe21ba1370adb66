"""The training loop: batches in, checkpoints and figures out.

Choices, and why:
- Autocast to bfloat16 keeps weights and optimiser in float32; the loss is summed in float32.
- A batch is a function of the step, and dropout is seeded by the step, so nothing random needs storing
  and a resumed run is the same run.
- Stopping, the clock and the loss are agreed on by all processes in one small exchange per step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from edgelm.checkpoint import Checkpoint
from edgelm.data.batches import mixed
from edgelm.model import Transformer
from edgelm.training.config import RunConfig
from edgelm.training.distributed import World
from edgelm.training.material import Material
from edgelm.training.optimizer import Optimizer, rate_share
from edgelm.training.precision import precision_context
from edgelm.training.report import Figures, Reporter
from edgelm.training.run_folder import RunFolder
from edgelm.training.saves import Position, Saves
from edgelm.training.signals import StopRequest, stop_requests
from edgelm.training.validation import Measure, measure, token_bytes
from edgelm_runtime.errors import ConfigError, TrainingError


class Trainer:
    """Trains `checkpoint.model` in place and writes the run's `best` and `last`.

    `make_objective` gives the loss of a model, computed from a batch's inputs and the count it is a mean over;
    `reference` is what such a loss keeps of the model at the start. Raises ConfigError where the batch cannot be
    divided among processes and accumulation parts.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        make_objective: Callable[[Transformer], nn.Module],
        material: Material,
        run: RunConfig,
        folder: RunFolder,
        world: World,
        reporter: Reporter,
        reference: torch.Tensor | None = None,
    ) -> None:
        config = run.training
        self.checkpoint, self.material, self.config = checkpoint, material, config
        self.folder, self.world, self.reporter = folder, world, reporter
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
        self.make_objective = make_objective
        objective = make_objective(self.model)
        if config.compile:
            objective.compile()
        self.objective = world.parallel(objective)
        self.optimizer = Optimizer(self.model, config, world.device)
        self.token_bytes = token_bytes(checkpoint)
        self.position = Position()
        self.autocast = precision_context(config.precision, world.device)
        self.saves = Saves(checkpoint, self.optimizer, material, run, folder, world, reference)

    def resume(self) -> None:
        """Go on from `last`, whose weights the model already has. Raises CheckpointError."""
        self.position = self.saves.resume()

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
                        self.position.figures.add(row)
                    spent = time.perf_counter() - started
                    self._report(self.position.figures.last, (self.position.tokens - tokens_before) / spent)
                finished = self.progress >= 1.0
                if not finished:
                    self.saves.save_last(self.position)
        finally:
            self.objective.eval()
        return finished

    def advance(self, origin: float, asked: StopRequest) -> tuple[Figures, bool]:
        """One optimiser step; brings the position up to date. Also says whether any process wants to stop."""
        config, position = self.config, self.position
        share = rate_share(self.progress, config)
        self.optimizer.set_rates(share)
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
        self.optimizer.zero_grad()
        position.step += 1
        position.tokens += count
        position.seconds = seconds
        row = Figures(
            step=position.step, tokens=position.tokens, seconds=seconds,
            learning_rate=share * config.learning_rate, loss=loss,
        )  # fmt: skip
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

    def measure(self, most_tokens: int, best: Checkpoint | None = None) -> Measure:
        """Loss on the held-out rows, in eval mode, of the model in training or of `best`."""
        objective = self.objective if best is None else self.make_objective(best.model.to(self.world.device))
        return measure(
            objective, self.material.held_out, self.token_bytes, most_tokens, self.micro_batch, self.world,
            self.autocast,
        )  # fmt: skip

    def _validate(self, row: Figures) -> None:
        """Measure, add the figures to `row`, and save the last and, where it is that, the best checkpoint."""
        result = self.measure(self.config.val_tokens)
        if not math.isfinite(result.loss):
            raise TrainingError(f"the validation loss is {result.loss} at step {row.step}", self._remedy())
        position = self.position
        position.figures.add(
            Figures(**{**vars(row), "val_loss": result.loss, "val_bits_per_byte": result.bits_per_byte})
        )
        position.latest = result
        if better := result.loss < position.best_loss:
            position.best_loss, position.best_step = result.loss, row.step
        self.saves.save_last(position)
        if better:
            self.saves.save_best(position)

    def _report(self, row: Figures, tokens_per_second: float) -> None:
        progress = self.progress
        left = self.position.seconds * (1 - progress) / progress if progress else math.inf
        self.reporter.step(row, progress, tokens_per_second, left)
