"""`edgelm export SOURCE`: one .onnx file from a checkpoint or from a model from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgelm.cli.quantize_command import file_size, quantize_options


@click.command("export")
@click.argument("source")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), show_default="SOURCE.onnx in this folder",
    help="File to write. An existing file is replaced.",
)  # fmt: skip
@click.option("--kv-cache", is_flag=True, help="Add a KV cache, for decoding token by token.")
@click.option(
    "--target", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
    help="Device that a model with a KV cache is for.",
)  # fmt: skip
@click.option(
    "--outputs", default="", metavar="NAMES", show_default="none",
    help="Additional outputs, separated by commas: embeddings, hidden.",
)  # fmt: skip
@click.option(
    "--opset", type=int, show_default="23, or 24 with --target cuda", help="ONNX opset, from 18 to 25."
)
@click.option(
    "--atol", type=float, show_default="1e-4 of the largest logit",
    help="Largest absolute difference from PyTorch's logits.",
)  # fmt: skip
@click.option(
    "--tokenizer", metavar="PATH|NAME", show_default="the source's own", help="Tokenizer to export."
)
@click.option(
    "--dtype", type=click.Choice(["fp32", "fp16", "int8", "int4"]), default="fp32", show_default=True,
    help="Precision of the weights. The options below are for the others than fp32.",
)  # fmt: skip
@quantize_options
def command(source: str, output: Path | None, outputs: str, tokenizer: str | None, **options: Any) -> None:
    """Write SOURCE, a checkpoint folder or a model from elsewhere, as one .onnx file.

    The file appears only if its logits agree with PyTorch's.
    """
    from edgelm_export import check_options, export_checkpoint

    names = tuple(filter(None, (name.strip() for name in outputs.split(","))))
    check_options(outputs=names, **options)  # before the source is read, which may take a while
    from edgelm.cli.options import show_warnings_plainly
    from edgelm.importers import load_source

    show_warnings_plainly()
    checkpoint = load_source(source, tokenizer)
    path = output or Path(Path(source.rstrip("/")).resolve().name + ".onnx")
    export_checkpoint(checkpoint, path, outputs=names, report=click.echo, **options)
    click.echo(f"wrote {path} ({file_size(path) / 1e6:.1f} MB)")
