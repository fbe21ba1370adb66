"""`edgelm export SOURCE`: one .onnx file from a checkpoint or from a model from elsewhere."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("export")
@click.argument("source")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path),
    help="The file to write; one that is there is replaced. [default: the source's name, .onnx]",
)  # fmt: skip
@click.option("--outputs", default="", metavar="NAMES", help="Further outputs, of embeddings,hidden.")
@click.option("--opset", type=int, default=23, show_default=True, help="ONNX opset, 18 to 25.")
@click.option(
    "--atol", type=float, help="Largest difference to PyTorch's logits. [default: 1e-4 of the largest]"
)
@click.option("--tokenizer", metavar="FILE", help="A tokenizer for a source that has none.")
def command(
    source: str, output: Path | None, outputs: str, opset: int, atol: float | None, tokenizer: str | None
) -> None:
    """Write SOURCE, a checkpoint folder or a model from elsewhere, as one self-contained .onnx file.

    The file only appears when its results agree with PyTorch's.
    """
    from edgelm.checkpoint import load_checkpoint
    from edgelm_export import export_checkpoint

    checkpoint = load_checkpoint(Path(source))
    path = output or Path(Path(source.rstrip("/")).resolve().name + ".onnx")
    names = tuple(filter(None, (name.strip() for name in outputs.split(","))))
    export_checkpoint(checkpoint, path, outputs=names, opset=opset, atol=atol, report=click.echo)
    click.echo(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")
