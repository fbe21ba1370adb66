"""What a run tells while it goes on, and the figures that it leaves: loss.csv and loss.png."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Protocol

CSV, PLOT = "loss.csv", "loss.png"


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
    """loss.csv, a line per step. A resumed run drops the lines behind the step that it goes on from."""

    def __init__(self, folder: Path, resumed_step: int) -> None:
        self.path = folder / CSV
        kept = [row for row in read_figures(folder) if row.step <= resumed_step]
        self._file = self.path.open("w", encoding="utf-8", newline="")
        self._rows = csv.DictWriter(self._file, [item.name for item in fields(Figures)])
        self._rows.writeheader()
        for row in kept:
            self.add(row)

    def add(self, figures: Figures) -> None:
        """Append a line."""
        self._rows.writerow(asdict(figures))

    def flush(self) -> None:
        """Bring what was added to the disk."""
        self._file.flush()

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


def read_figures(folder: Path) -> list[Figures]:
    """The lines of a run's loss.csv; none where it has none. A line cut short by a crash is left out."""
    try:
        text = (folder / CSV).read_text(encoding="utf-8")
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
    figure.savefig(folder / PLOT, dpi=120)
    pyplot.close(figure)


def _running_mean(values: list[float], span: int) -> list[float]:
    mean, means = values[0] if values else 0.0, []
    for value in values:
        mean += (value - mean) / span
        means.append(mean)
    return means
