"""What the name of a data file says of its content, and how it is opened.

.jsonl .ndjson .jsonlines    a document per line, as a JSON object
.parquet                     a document per row
anything else                one document, as text
.gz and .zst after any of them: compressed
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
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
                yield io.BufferedReader(_ZstandardFrames(file))
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


def taken_as_text(paths: Iterable[Path]) -> list[Path]:
    """Files that hold JSON lines by their content, and are read as text by their name."""
    plain = (path for path in paths if format_of(path).layout == "text" and not format_of(path).compression)
    return [path for path in plain if looks_like_json_lines(path)]


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


class _ZstandardFrames(io.RawIOBase):
    """The content of a .zst file. The package's own reader takes a file that is cut off for one that ends there."""

    def __init__(self, file: BinaryIO) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise MissingExtraError("zstandard", "data") from error
        self._file, self._new_frame = file, zstandard.ZstdDecompressor().decompressobj
        self._frame: Any = None
        self._content = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._content:
            chunk = self._file.read(_LOOK)
            if not chunk and self._frame is not None:
                raise EOFError("its last frame is not complete")
            if not chunk:
                return 0
            self._content = self._decompressed(chunk)
        count = min(len(buffer), len(self._content))
        buffer[:count], self._content = self._content[:count], self._content[count:]
        return count

    def _decompressed(self, chunk: bytes) -> bytes:
        parts = []
        while chunk:
            self._frame = self._frame or self._new_frame()
            parts.append(self._frame.decompress(chunk))
            if not self._frame.eof:
                break
            chunk, self._frame = self._frame.unused_data, None
        return b"".join(parts)
