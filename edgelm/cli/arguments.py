"""What a word on the command line stands for: a model, another file, standard input, or a text."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from edgelm_runtime.errors import ModelFileError, OptionError
from edgelm_runtime.text.text_files import DecodeErrors, as_text

# Names that models go by; those that are no .onnx files have to be exported first.
MODEL_SUFFIXES = (".onnx", ".gguf", ".safetensors", ".pt", ".pth", ".ckpt", ".bin")
STANDARD_INPUT = "-"
ONNX_START = b"\x08"
"""The first byte of an ONNX file: field 1, the version of the format."""

Command = TypeVar("Command", bound=Callable[..., Any])


class UserPath(click.Path):
    """A path in which `~` is the home folder: shells leave it as it is in `--output=~/x`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and "\0" in value:
            self.fail("a path cannot hold a NUL", param, ctx)
        return super().convert(expanded(value), param, ctx)


def expanded(path: Any) -> Any:
    """A path with its home folder written out, where there is one."""
    try:
        return os.path.expanduser(path)  # noqa: PTH111  (may be bytes, and keeps a trailing slash)
    except (TypeError, ValueError):
        return path


def exists(word: str) -> bool:
    """Whether a word names a file or a folder. A long text does not, and is no error."""
    try:
        return Path(expanded(word)).exists()
    except (OSError, ValueError):
        return False


def is_file(word: str) -> bool:
    """Whether a word names something that can be read, and not a folder."""
    try:
        path = Path(expanded(word))
        return path.exists() and not path.is_dir()
    except (OSError, ValueError):
        return False


def is_model(word: str) -> bool:
    """Whether a word alone is meant as a model: it names a file or a folder, or ends like a model."""
    return exists(word) or (len(word) < 4096 and "\n" not in word and word.lower().endswith(MODEL_SUFFIXES))


def model_path(word: str) -> Path:
    """The path of a model file. Raises ModelFileError for what cannot be one, with what to do about it."""
    if not word:
        raise ModelFileError("the name of the model is empty", "name an .onnx file")
    path = Path(expanded(word))
    export = f"make an .onnx file of it: edgelm export {word} -o model.onnx"
    try:
        if path.is_dir():
            raise ModelFileError(f"{word} is a folder", export)
        if path.is_file() and path.suffix.lower() != ".onnx":
            with path.open("rb") as file:
                start = file.read(4)
            if start == b"GGUF" or path.suffix.lower() in MODEL_SUFFIXES:
                raise ModelFileError(f"{word} is no .onnx file", export)
            if start[:1] != ONNX_START:
                raise ModelFileError(f"{word} is no model file", "a prompt is given by -p TEXT or -f FILE")
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot read {word[:200]!r}: {_reason(error)}", "check the path") from error
    return path


def read_text(
    source: str | Path, encoding: str | None = None, decode_errors: DecodeErrors | None = None
) -> str:
    """The text of a file, or of standard input where `source` is -. Raises OptionError where it is not readable."""
    try:
        if str(source) == STANDARD_INPUT:
            content, name = _standard_input(), "standard input"
        else:
            content, name = Path(expanded(source)).read_bytes(), str(source)
    except (OSError, ValueError) as error:
        raise OptionError(f"cannot read {str(source)[:200]}: {_reason(error)}", "check the path") from error
    return as_text(content, name, encoding or "utf-8", decode_errors or "error")


def _standard_input() -> bytes:
    buffer = getattr(sys.stdin, "buffer", None)
    return sys.stdin.read().encode() if buffer is None else buffer.read()


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())


def reading_options(command: Command) -> Command:
    """Add --encoding and --decode-errors, which `read_text` takes."""
    errors = click.Choice(get_args(DecodeErrors))
    command = click.option(
        "--decode-errors", type=errors, default="error", show_default=True,
        help="Bytes that are not text of the encoding: end with an error, or replace them.",
    )(command)  # fmt: skip
    return click.option(
        "--encoding", default="utf-8", show_default=True, help="Encoding of text files and standard input."
    )(command)


def folder_option(about: str, required: bool = True) -> Callable[[Command], Command]:
    """Add --output, for the folder that a command writes. (--out is its older name.)"""
    return click.option(
        "-o", "--output", "--out", "out", type=click.Path(path_type=Path), required=required, help=about
    )


def read_once(sources: Sequence[Any]) -> None:
    """Raise OptionError where standard input would be read more than once."""
    if sum(str(source) == STANDARD_INPUT for source in sources) > 1:
        raise OptionError("standard input (-) is given twice", "it can be read only once")
