"""`edgelm quantize MODEL`: the same model, smaller and faster."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("quantize")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file to write. [MODEL-DTYPE.onnx]")
@click.option("--dtype", type=click.Choice(["fp16", "int8"]), default="int8", show_default=True)
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
    model: Path, output: Path | None, dtype: str, text: Path | None, max_ppl_increase: float | None
) -> None:
    """Write the fp32 model file MODEL in another precision, with the loss measured and bounded."""
    from edgelm_export import quantize

    path = output or model.with_name(f"{model.stem}-{dtype}.onnx")
    quantize(model, path, dtype, text=text, max_ppl_increase=max_ppl_increase, report=click.echo)
    before, after = (file.stat().st_size / 1e6 for file in (model, path))
    click.echo(f"wrote {path} ({after:.1f} MB, from {before:.1f} MB)")
