"""`edgelm export SOURCE`: one .onnx file from a checkpoint or from a model from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgelm.cli.quantize_command import precision_options


@click.command("export")
@click.argument("source")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path),
    help="The file to write; one that is there is replaced. [the source's name, .onnx]",
)  # fmt: skip
@click.option("--kv-cache", is_flag=True, help="Add a cache of keys and values, for decoding step by step.")
@click.option(
    "--target", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
    help="Where the file with a cache is to run.",
)  # fmt: skip
@click.option("--outputs", default="", metavar="NAMES", help="Further outputs, of embeddings,hidden.")
@click.option("--opset", type=int, help="ONNX opset, 18 to 25. [23; with --target cuda 24]")
@click.option("--atol", type=float, help="Largest difference to PyTorch's logits. [1e-4 of the largest]")
@click.option("--tokenizer", metavar="PATH|NAME", help="A tokenizer in the place of the source's own.")
@click.option(
    "--dtype", type=click.Choice(["fp32", "fp16", "int8", "int4"]), default="fp32", show_default=True,
    help="Precision of the weights; the options below are for those other than fp32.",
)  # fmt: skip
@precision_options
def command(source: str, output: Path | None, outputs: str, tokenizer: str | None, **options: Any) -> None:
    """Write SOURCE, a checkpoint folder or a model from elsewhere, as one self-contained .onnx file.

    The file only appears when its results agree with PyTorch's.
    """
    if options["dtype"] == "fp32":
        _refuse_precision_options(options)
    from edgelm.importers import load_source
    from edgelm_export import export_checkpoint

    checkpoint = load_source(source, tokenizer)
    path = output or Path(Path(source.rstrip("/")).resolve().name + ".onnx")
    names = tuple(filter(None, (name.strip() for name in outputs.split(","))))
    export_checkpoint(checkpoint, path, outputs=names, report=click.echo, **options)
    click.echo(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")


def _refuse_precision_options(options: dict[str, Any]) -> None:
    """Say so where an option was given that fp32 has no use for; take all of them out of `options`."""
    context = click.get_current_context()
    for name in ("text", "max_ppl_increase", "kernel", "block_size", "cache_dtype"):
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name.replace('_', '-')} belongs to --dtype fp16, int8 or int4")
        del options[name]
