"""`edgelm quantize MODEL`: the same model, smaller and faster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def precision_options(command: Command) -> Command:
    """Options of `edgelm_export.quantize` beside the precision itself, which `edgelm export` has too."""
    for option in (
        click.option(
            "--block-size", type=int, default=32, show_default=True,
            help="Weights in a block: 16 or 32, for int8 also 64.",
        ),
        click.option(
            "--kernel", type=click.Choice(["auto", "rows", "blocks"]), default="auto", show_default=True,
            help="int8 for whole windows (rows) or for steps with a cache (blocks).",
        ),
        click.option(
            "--cache-dtype", type=click.Choice(["auto", "int8", "fp32"]), default="auto", show_default=True,
            help="What a cache holds; auto is int8 for int8 and int4.",
        ),
        click.option(
            "--max-ppl-increase", type=float, metavar="PCT",
            help="Percent of perplexity that may be lost. [fp16 0.5, int8 2, int4 8]",
        ),
        click.option(
            "--text", type=click.Path(path_type=Path),
            help="Text to measure the loss on, its beginning, and to fit rounding on, the rest. "
            "[samples that ship with edgelm]",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command("quantize")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file to write. [MODEL-DTYPE.onnx]")
@click.option("--dtype", type=click.Choice(["fp16", "int8", "int4"]), default="int8", show_default=True)
@precision_options
def command(model: Path, output: Path | None, dtype: str, **options: Any) -> None:
    """Write the fp32 model file MODEL in another precision, with the loss measured and bounded."""
    from edgelm_export import quantize

    path = output or model.with_name(f"{model.stem}-{dtype}.onnx")
    quantize(model, path, dtype, report=click.echo, **options)
    before, after = (file.stat().st_size / 1e6 for file in (model, path))
    click.echo(f"wrote {path} ({after:.1f} MB, from {before:.1f} MB)")
