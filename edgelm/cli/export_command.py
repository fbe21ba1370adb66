"""`edgelm export SOURCE`: one .onnx file from a checkpoint or from a model from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command("export")
@click.argument("source")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path),
    help="The file to write; one that is there is replaced. [default: the source's name, .onnx]",
)  # fmt: skip
@click.option("--dtype", type=click.Choice(["fp32", "fp16", "int8"]), default="fp32", show_default=True)
@click.option("--outputs", default="", metavar="NAMES", help="Further outputs, of embeddings,hidden.")
@click.option("--opset", type=int, default=23, show_default=True, help="ONNX opset, 18 to 25.")
@click.option(
    "--atol", type=float, help="Largest difference to PyTorch's logits. [default: 1e-4 of the largest]"
)
@click.option("--tokenizer", metavar="PATH|NAME", help="A tokenizer in the place of the source's own.")
@click.option(
    "--text",
    type=click.Path(path_type=Path),
    help="Text to measure the loss on. [a sample that ships with edgelm]",
)
@click.option(
    "--max-ppl-increase", type=float, metavar="PCT",
    help="Percent of perplexity that may be lost. [fp16 0.5, int8 2]",
)  # fmt: skip
def command(
    source: str, output: Path | None, outputs: str, tokenizer: str | None, dtype: str, **options: Any
) -> None:
    """Write SOURCE, a checkpoint folder or a model from elsewhere, as one self-contained .onnx file.

    The file only appears when its results agree with PyTorch's.
    """
    from edgelm.importers import load_source
    from edgelm_export import export_checkpoint

    if dtype == "fp32" and (options["text"] or options["max_ppl_increase"] is not None):
        raise click.UsageError("--text and --max-ppl-increase belong to --dtype fp16 or int8")
    checkpoint = load_source(source, tokenizer)
    path = output or Path(Path(source.rstrip("/")).resolve().name + ".onnx")
    names = tuple(filter(None, (name.strip() for name in outputs.split(","))))
    export_checkpoint(checkpoint, path, dtype=dtype, outputs=names, report=click.echo, **options)
    click.echo(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")
