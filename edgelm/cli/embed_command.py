"""`edgelm embed`: texts to vectors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from edgelm.cli.options import load_model, loading_options, read_text
from edgelm_runtime.atomic_files import new_file
from edgelm_runtime.errors import OptionError


@click.command("embed")
@click.argument("model")
@click.argument("texts", metavar="[TEXT|FILE|-]...", nargs=-1)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write an array (.npy) or else JSON lines to a file.",
)
@click.option(
    "--layer", default="hidden", show_default=True, help="hidden (after the last block) or embeddings."
)
@click.option(
    "--pooling", default="mean", show_default=True, help="mean or last token; none: a vector per token."
)
@click.option("--normalize/--no-normalize", default=True, show_default=True, help="Make vectors of length 1.")
@click.option("--batch-size", type=int, default=8, show_default=True, help="Texts per pass.")
@loading_options
def command(model: str, texts: tuple[str, ...], output: Path | None, **options: Any) -> None:
    """Turn texts into vectors with MODEL, a file that was exported with --outputs.

    An argument that names a file stands for the file's lines, and - for those of standard input; any other
    argument is a text itself. Without --output a JSON object per text is printed.
    """
    import numpy as np

    as_array = output is not None and output.suffix == ".npy"
    if as_array and options["pooling"] == "none":
        raise OptionError("pooling none gives arrays of unequal length", "write JSON lines instead of .npy")
    lines = [line for text in texts or ("-",) for line in _lines(text)]
    with load_model(model, options) as lm:
        vectors = lm.embed(lines, **options)
    if output is None:
        for record in _records(lines, vectors):
            click.echo(record)
        return
    with new_file(output) as file:
        if as_array:
            np.save(file, vectors)
        else:
            file.writelines(f"{record}\n".encode() for record in _records(lines, vectors))


def _lines(argument: str) -> list[str]:
    """The texts that an argument stands for; of a file, the lines that are not blank."""
    if argument != "-" and not Path(argument).is_file():
        return [argument]
    return [line for line in read_text(argument).splitlines() if line.strip()]


def _records(lines: Sequence[str], vectors: Iterable[Any]) -> Iterator[str]:
    for line, vector in zip(lines, vectors, strict=True):
        yield json.dumps({"text": line, "embedding": _numbers(vector)}, ensure_ascii=False)


def _numbers(values: Any) -> Any:
    """Nested lists of the shortest decimals that stand for the same float32."""
    return [_numbers(value) for value in values] if values.ndim else float(str(values))
