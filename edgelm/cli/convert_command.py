"""`edgelm convert`: a model in another program's format."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("convert")
@click.argument("source")
@click.option("--to", "to", type=click.Choice(["hf", "gguf"]), required=True, help="Format to write.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder (hf) or file (gguf) to write.",
)
@click.option(
    "--type", "file_type", type=click.Choice(["F32", "F16", "Q8_0"]),
    help="Precision of the matrices in a GGUF file.  [default: F16]",
)  # fmt: skip
@click.option("--tokenizer", metavar="PATH|NAME|none", help="Tokenizer instead of the source's own.")
def command(source: str, to: str, output: Path, file_type: str | None, tokenizer: str | None) -> None:
    """Write SOURCE, a checkpoint or whatever `edgelm export` takes, for transformers or llama.cpp.

    What is written is read again before it takes its place, and has to be the same model.
    """
    if file_type is not None and to != "gguf":
        raise click.UsageError("--type belongs to --to gguf; a Hugging Face folder is written in float32")
    from edgelm.exporters.gguf import write_gguf
    from edgelm.exporters.huggingface import write_huggingface
    from edgelm.importers import load_source

    checkpoint, path = load_source(source, tokenizer), output.expanduser()
    # click has checked the type.
    kind = (
        write_huggingface(checkpoint, path)
        if to == "hf"
        else write_gguf(checkpoint, path, file_type or "F16")
    )  # type: ignore[arg-type]
    click.echo(f"wrote {path}, a model of the kind {kind}")
