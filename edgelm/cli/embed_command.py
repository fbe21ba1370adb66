"""`edgelm embed`: texts to vectors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from edgelm.cli.arguments import STANDARD_INPUT, is_file, read_once, read_text, reading_options
from edgelm.cli.options import load_model, loading_options
from edgelm.cli.streams import print_json
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
@click.option(
    "--prefix", default="", metavar="TEXT", help="Put this in front of every text (an instruction)."
)
@click.option("--batch-size", type=int, default=8, show_default=True, help="Texts per pass.")
@reading_options
@loading_options
def command(model: str, texts: tuple[str, ...], output: Path | None, **options: Any) -> None:
    """Turn texts into vectors with MODEL, a file that was exported with --outputs hidden.

    An argument that names a file stands for the file's lines, and - for those of standard input; any other
    argument is a text itself. Without --output a JSON object per text is printed.
    """
    import numpy as np

    as_array = output is not None and output.suffix == ".npy"
    if as_array and options["pooling"] == "none":
        raise OptionError("pooling none gives arrays of unequal length", "write JSON lines instead of .npy")
    read_once(texts)
    reading = {name: options.pop(name) for name in ("encoding", "decode_errors")}
    lines = [line for text in texts or (STANDARD_INPUT,) for line in _lines(text, reading)]
    with load_model(model, options) as lm:
        vectors = lm.embed(lines, **options)
    if output is None:
        for record in _records(lines, vectors):
            print_json(record)
        return
    with new_file(output) as file:
        if as_array:
            np.save(file, vectors)
        else:
            for record in _records(lines, vectors):
                text = json.dumps(record, ensure_ascii=False)
                file.write(f"{text}\n".encode(errors="replace"))


def _lines(argument: str, reading: dict[str, Any]) -> list[str]:
    """The texts that an argument stands for; of a file, the lines that are not blank."""
    if argument != STANDARD_INPUT and not is_file(argument):
        return [argument]
    return [line for line in read_text(argument, **reading).split("\n") if line.strip()]


def _records(lines: Sequence[str], vectors: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for line, vector in zip(lines, vectors, strict=True):
        yield {"text": line, "embedding": _numbers(vector)}


def _numbers(values: Any) -> Any:
    """Nested lists of the shortest decimals that stand for the same float32."""
    return [_numbers(value) for value in values] if values.ndim else float(str(values))
