"""`edgelm bench MODEL`: how fast a model file is here, alone or against another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgelm.cli.options import device_options

if TYPE_CHECKING:
    from edgelm_runtime.reports.benchmark import Figures


@click.command("bench")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--vs", type=click.Path(path_type=Path), metavar="MODEL2", help="Measure this file in turn with it."
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, in seconds and bytes.")
@click.option("--prefill", default="32,128,512", show_default=True, help="Lengths of prompts to time.")
@click.option(
    "--contexts",
    default="64,256,1000",
    show_default=True,
    help="Number of tokens in the context, one measurement for each.",
)
@click.option("--steps", default=16, show_default=True, help="Number of new tokens for each context.")
@click.option("--rounds", default=5, show_default=True, help="Each figure is the median of so many.")
@device_options
def command(model: Path, vs: Path | None, as_json: bool, prefill: str, contexts: str, **options: Any) -> None:
    """Measure load time, prefill, decoding and memory of the model file MODEL.

    Lengths beyond the model's context are left out. Nothing else should run meanwhile.
    """
    from edgelm_runtime.reports.benchmark import benchmark, parse_lengths

    figures = benchmark(
        [model] if vs is None else [model, vs],
        prefill=parse_lengths(prefill),
        contexts=parse_lengths(contexts),
        progress=lambda step: click.echo(f"{step} ...", err=True),
        **options,
    )
    if as_json:
        click.echo(json.dumps([asdict(one) for one in figures], indent=2))
        return
    rows = list(_rows(figures))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        padded = (f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        click.echo(f"{name:<{widths[0]}}  " + "  ".join(padded))


def _rows(figures: Sequence[Figures]) -> Iterator[list[str]]:
    """Name and cell for each file, and for two of them the second over the first."""
    compared = len(figures) == 2

    def row(name: str, values: Sequence[float | None], scale: float, unit: str) -> list[str]:
        cells = ["-" if value is None else f"{_number(value * scale)} {unit}" for value in values]
        known = [value for value in values if value]
        ratio = [f"{known[1] / known[0]:.2f} x" if len(known) == 2 else "-"] if compared else []
        return [name, *cells, *ratio]

    yield ["", *(Path(one.path).name for one in figures), *(["ratio"] if compared else [])]
    yield ["decoding", *(f"{one.decode}, {one.provider}" for one in figures), *([""] if compared else [])]
    yield row("file", [one.file_bytes for one in figures], 1e-6, "MB")
    yield row("load", [one.load for one in figures], 1e3, "ms")
    yield row("start to first token", [one.first_token for one in figures], 1e3, "ms")
    yield row("peak memory", [one.peak_bytes for one in figures], 1e-6, "MB")
    for length in _lengths(one.prefill for one in figures):
        yield row(f"prefill of {length}", [one.prefill.get(length) for one in figures], 1e3, "ms")
    for length in _lengths(one.step for one in figures):
        rates = [1 / one.step[length] if length in one.step else None for one in figures]
        yield row(f"decoding after {length}", rates, 1, "tokens/s")
        outside = [one.python.get(length) for one in figures]
        yield row("  outside onnxruntime, per token", outside, 1e3, "ms")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _lengths(measured: Iterator[dict[int, float]]) -> list[int]:
    return sorted({length for lengths in measured for length in lengths})
