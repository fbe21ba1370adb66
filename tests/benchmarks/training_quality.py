"""How much a model learns per minute, and per token: today's presets, those of before, and nanoGPT's recipe.

    python tests/benchmarks/training_quality.py OUT [--minutes 20 | --tokens 4000000] [--text python ...]

Every recipe trains a model of about the same size on the same text with the same held-out documents and a budget of
its own, one after the other, and is measured on the way. What counts is bits per byte, which does not depend on the
tokenizer. Printed are the last figures, and when each recipe first reached what `before` ends with; OUT/TEXT.png has
the curves. Without a budget, table and pictures are made of what OUT holds; a run that was stopped goes on.

Texts: `python` is the standard library, `prose` Perl's manual (7 MB of English; Debian's package perl-doc, or --prose
FOLDER), `mixed` numpy's files of code and text. Choose settings by the first two; the third is for the end.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgelm.training.config import RunConfig, resolve, resumed
from edgelm.training.report import Figures, read_figures
from edgelm.training.run import train

TEXTS: dict[str, dict[str, Any]] = {
    "python": {"data": ("@stdlib",), "include": ("*.py",), "exclude": ("encodings", "pydoc_data", "bad*.py")},
    "prose": {"data": ("/usr/share/perl",), "include": ("*.pod",)},
    "mixed": {"data": (str(Path(np.__file__).parent),), "include": ("*.py", "*.pyi", "*.h", "*.txt", "*.md")},
}  # fmt: skip
GPT2 = {"context_length": 256, "width": 256, "num_layers": 6, "num_heads": 4}
# The settings of `small` until 2026-12, and those of nanoGPT's train.py, which computes in float32 on a CPU.
BEFORE = {"vocab_size": 4096, "batch_size": 8, "learning_rate": 2e-3, "beta2": 0.99}
NANOGPT = {
    "vocab_size": 4096, "batch_size": 12, "learning_rate": 6e-4, "final_fraction": 0.1, "beta2": 0.95,
    "precision": "fp32",
}  # fmt: skip
RECIPES: dict[str, Callable[[dict[str, Any]], RunConfig]] = {
    "edgelm": lambda settings: resolve("small", settings),
    "before": lambda settings: resolve(None, {**BEFORE, **settings}, GPT2),
    "nanoGPT": lambda settings: resolve(None, {**NANOGPT, **settings}, {**GPT2, "activation": "gelu"}),
}


@dataclass(frozen=True)
class Curve:
    """The measured points of one run."""

    recipe: str
    points: list[Figures]

    @property
    def last(self) -> float:
        """Bits per byte at the end."""
        return self.points[-1].val_bits_per_byte or 0.0

    def reaches(self, bits: float) -> Figures | None:
        """The first point with at most so many bits per byte."""
        return next((point for point in self.points if (point.val_bits_per_byte or 9.0) <= bits), None)


def make(out: Path, text: str, recipe: str, budget: dict[str, Any]) -> None:
    """Train one recipe on one text, or go on where it was stopped."""
    folder = out / text / recipe
    if (folder / "sample.txt").exists():
        return
    resume = (folder / "last").exists()
    usual = {**TEXTS[text], **budget, "validations": 20, "val_tokens": 50_000}
    train(resumed(folder, {}, {}) if resume else RECIPES[recipe](usual), folder, resume=resume)


def curves(out: Path, text: str) -> list[Curve]:
    """What `out` holds on a text."""
    measured = ((name, [row for row in read_figures(out / text / name) if row.val_loss]) for name in RECIPES)
    return [Curve(name, points) for name, points in measured if points]


def table(text: str, found: list[Curve]) -> list[str]:
    """A line for each recipe."""
    before = next((curve for curve in found if curve.recipe == "before"), found[0])
    lines = []
    for curve in found:
        end, reached = curve.points[-1], curve.reaches(before.last)
        when = f"{reached.seconds / 60:.1f} min" if reached else "never"
        lines.append(
            f"| {text} | {curve.recipe} | {end.tokens / 1e6:.2f} | {end.seconds / 60:.1f} | {curve.last:.4f} | "
            f"{curve.last / before.last - 1:+.1%} | {when} |"
        )
    return lines


def draw(path: Path, text: str, found: list[Curve]) -> None:
    """Bits per byte over minutes and over tokens."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, sharey=True, figsize=(10, 4.5))
    for curve in found:
        bits = [point.val_bits_per_byte for point in curve.points]
        axes[0].plot([point.seconds / 60 for point in curve.points], bits, "o-", label=curve.recipe)
        axes[1].plot([point.tokens / 1e6 for point in curve.points], bits, "o-")
    axes[0].set_xlabel("minutes")
    axes[1].set_xlabel("million tokens")
    axes[0].set_ylabel(f"held-out bits per byte, {text}")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    """Train what is not there yet, then print the table and draw the curves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--text", choices=TEXTS, action="append")
    parser.add_argument("--recipe", choices=RECIPES, action="append")
    parser.add_argument("--prose", help="folder with the .pod files")
    given = parser.parse_args()
    if given.prose:
        TEXTS["prose"]["data"] = (given.prose,)
    budget = {name: value for name in ("minutes", "tokens") if (value := getattr(given, name))}
    texts = given.text or list(TEXTS)
    for text in texts if budget else ():
        for recipe in given.recipe or RECIPES:
            make(given.out, text, recipe, budget)
    print(
        "| text | recipe | million tokens | minutes | bits per byte | against before | reaches before's end after |"
    )
    print("|---|---|---|---|---|---|---|")
    for text in texts:
        if found := curves(given.out, text):
            print("\n".join(table(text, found)))
            draw(given.out / f"{text}.png", text, found)


if __name__ == "__main__":
    main()
