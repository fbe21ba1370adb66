"""`edgelm quantize MODEL`: the same model, smaller and faster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def _switch(context: click.Context, option: click.Parameter, value: str | None) -> bool | None:
    return None if value is None else value == "on"


def quantize_options(command: Command) -> Command:
    """Add the options of `edgelm_export.quantize`, which `edgelm export` has too. A value not given is None or auto."""
    for option in reversed((
        click.option(
            "--max-ppl-increase", type=float, metavar="PERCENT",
            show_default="fp16: 0.5, int8: 2, int4: 8", help="Largest increase in perplexity.",
        ),
        click.option(
            "--min-agreement", type=float, metavar="PERCENT", show_default="fp16: 98, int8: 90, int4: 80",
            help="Smallest share of positions whose most likely token is the same as in fp32.",
        ),
        click.option(
            "--text", type=click.Path(path_type=Path),
            show_default="built-in texts, or a taught model's held-out chats",
            help="UTF-8 text for evaluation (its first 4096 tokens) and calibration (the rest), or chats (.jsonl).",
        ),
        click.option(
            "--block-size", type=int, show_default="32",
            help="Weights per block: 16 or 32; for int8 also 64.",
        ),
        click.option(
            "--kernel", type=click.Choice(["auto", "rows", "blocks"]), default="auto", show_default=True,
            help="int8 only: row-wise, for models without a KV cache, or block-wise, for those with one.",
        ),
        click.option(
            "--cache-dtype", type=click.Choice(["auto", "int8", "fp32"]), default="auto", show_default=True,
            help="Type of the KV cache. auto: int8 for int8 and int4, otherwise fp32.",
        ),
        click.option(
            "--fit", type=click.Choice(["on", "off"]), callback=_switch, show_default="on",
            help="Fit rounding to the calibration text. off is faster for large models and loses more: SmolLM2-135M "
            "loses 23% of perplexity instead of 7% in int4, 4% instead of 1% in int8.",
        ),
    )):  # fmt: skip
        command = option(command)
    return command


def file_size(path: Path) -> int:
    """Bytes of a model file, its sidecar included."""
    from edgelm_runtime.model_file.opened import OpenModel

    with OpenModel(path) as model:
        return model.size


@click.command("quantize")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), show_default="MODEL-DTYPE.onnx",
    help="File to write. An existing file is replaced.",
)  # fmt: skip
@click.option(
    "--dtype", type=click.Choice(["fp16", "int8", "int4"]), default="int8", show_default=True,
    help="Precision of the weights.",
)  # fmt: skip
@quantize_options
def command(model: Path, output: Path | None, dtype: str, **options: Any) -> None:
    """Write the fp32 model file MODEL in a lower precision.

    The loss is measured on a text, and nothing is written if it exceeds the bound.
    """
    from edgelm_export import quantize

    path = output or model.with_name(f"{model.stem}-{dtype}.onnx")
    before = file_size(model)
    quantize(model, path, dtype, report=click.echo, **options)
    click.echo(f"wrote {path} ({file_size(path) / 1e6:.1f} MB, was {before / 1e6:.1f} MB)")
