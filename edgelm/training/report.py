"""What a run says while it goes on, and the figures that it leaves: loss.csv and loss.png."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol

from edgelm_runtime.atomic_files import new_file

FIGURES, PLOT = "loss.csv", "loss.png"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One line of loss.csv. Losses are in nats per token; validation figures exist where it was measured."""

    step: int
    tokens: int
    seconds: float
    learning_rate: float
    loss: float
    val_loss: float | None = None
    val_bits_per_byte: float | None = None


class Reporter(Protocol):
    """Receives what happens in a run; the command line shows it, a test records it."""

    def note(self, text: str) -> None:
        """Something worth one line."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """`done` of `total` bytes of `what` are ready."""

    def step(self, figures: Figures, progress: float, tokens_per_second: float, seconds_left: float) -> None:
        """A step is done; `progress` is the share of the budget that is used up."""


class Silent:
    """A reporter that keeps everything to itself."""

    def note(self, text: str) -> None:
        """Nothing."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Nothing."""

    def step(self, figures: Figures, progress: float, tokens_per_second: float, seconds_left: float) -> None:
        """Nothing."""


class FigureLog:
    """The figures of a run so far: loss.csv, a line per step."""

    def __init__(self, path: Path | None = None) -> None:
        """Go on from a saved file. A line that is none is left out."""
        self.rows = [] if path is None else read_figures(path)

    @property
    def last(self) -> Figures:
        """The latest line."""
        return self.rows[-1]

    def add(self, figures: Figures) -> None:
        """Append a line."""
        self.rows.append(figures)

    def at(self, step: int) -> Figures | None:
        """The line of a step, where there is one."""
        return next((row for row in reversed(self.rows) if row.step == step), None)

    def to_csv(self) -> str:
        """The whole file."""
        out = io.StringIO(newline="")
        rows = csv.DictWriter(out, [item.name for item in fields(Figures)], lineterminator="\n")
        rows.writeheader()
        rows.writerows(vars(row) for row in self.rows)
        return out.getvalue()


def read_figures(path: Path) -> list[Figures]:
    """The lines of a loss.csv, or of the one in a run's folder; none where there is none."""
    path = path / FIGURES if path.is_dir() else path
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return []
    rows = []
    for row in csv.DictReader(text.splitlines()):
        try:
            rows.append(
                Figures(
                    step=int(row["step"]),
                    tokens=int(row["tokens"]),
                    seconds=float(row["seconds"]),
                    learning_rate=float(row["learning_rate"]),
                    loss=float(row["loss"]),
                    val_loss=float(row["val_loss"]) if row["val_loss"] else None,
                    val_bits_per_byte=float(row["val_bits_per_byte"]) if row["val_bits_per_byte"] else None,
                )
            )
        except (TypeError, ValueError):
            continue
    return rows


def plot(folder: Path) -> None:
    """Draw loss.png from loss.csv: training loss, its running mean, and validation loss."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = read_figures(folder)
    measured = [(row.tokens, row.val_loss) for row in rows if row.val_loss is not None]
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    axes.plot(
        [row.tokens for row in rows], [row.loss for row in rows], color="0.8", label="training, each step"
    )
    smooth = _running_mean([row.loss for row in rows], span=max(len(rows) // 50, 1))
    axes.plot([row.tokens for row in rows], smooth, label="training, running mean")
    axes.plot(*zip(*measured, strict=True), "o-", label="held out")
    axes.set_xlabel("training tokens")
    axes.set_ylabel("loss, nats per token")
    axes.legend()
    figure.tight_layout()
    with new_file(folder / PLOT) as file:
        figure.savefig(file, format="png", dpi=120)
    pyplot.close(figure)


def _running_mean(values: list[float], span: int) -> list[float]:
    mean, means = values[0] if values else 0.0, []
    for value in values:
        mean += (value - mean) / span
        means.append(mean)
    return means
