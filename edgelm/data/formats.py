"""What the name of a data file says of its content, and how it is opened.

.jsonl .ndjson .jsonlines    a document per line, as a JSON object
.parquet                     a document per row
anything else                one document, as text
.gz and .zst behind any of them: compressed
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from edgelm_runtime.errors import DataError, MissingExtraError

Layout = Literal["text", "lines", "rows"]
_LINES = (".jsonl", ".ndjson", ".jsonlines")
_COMPRESSED = (".gz", ".zst")
BOM = b"\xef\xbb\xbf"
_LOOK = 1 << 16
_ROWS = 1024


@dataclass(frozen=True)
class Format:
    """`layout` of the content, and the suffix of its compression, empty for none."""

    layout: Layout
    compression: str = ""


def format_of(path: Path) -> Format:
    """The format that a file's name stands for, in small letters or capitals."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in _COMPRESSED else ""
    last = suffixes[-1] if suffixes else ""
    layout: Layout = "lines" if last in _LINES else "rows" if last == ".parquet" else "text"
    return Format(layout, compression)


@contextmanager
def opened(path: Path, compression: str = "") -> Iterator[BinaryIO]:
    """The content of a file, decompressed. Raises DataError where it is missing, unreadable or cut off."""
    try:
        with path.open("rb") as file:
            if compression == ".gz":
                with gzip.open(file) as content:
                    yield cast(BinaryIO, content)
            elif compression == ".zst":
                with _zstandard().ZstdDecompressor().stream_reader(file, read_across_frames=True) as content:
                    yield io.BufferedReader(content)
            else:
                yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged or cut off: {error}", "get the file again") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}", "check its permissions") from error
    except Exception as error:
        if type(error).__name__ != "ZstdError":
            raise
        raise DataError(f"{path} is damaged or cut off: {error}", "get the file again") from error


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a parquet file. Raises DataError, MissingExtraError."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "data") from error
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_ROWS):
                yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise DataError(f"{path} is no readable parquet file: {error}", "get the file again") from error


def looks_like_json_lines(path: Path) -> bool:
    """Whether the first lines of a plain file are JSON objects."""
    with opened(path) as file:
        lines = [line for line in file.read(_LOOK).removeprefix(BOM).splitlines()[:-1] if line.strip()][:3]
    return len(lines) > 1 and all(_is_object(line) for line in lines)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtraError("zstandard", "data") from error
    return zstandard
