"""DATA: from what a person names to documents, in pieces of bounded size.

A document is a file, or one line's field of a `.jsonl` file. Files are looked at in sorted order and cut
into pieces of about a megabyte at line ends, so that neither memory nor the longest regular-expression
run grows with a file, and pieces can be read in parallel in any order. Text means UTF-8 here: a file that
is something else is left out and named.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import BinaryIO

from edgelm_runtime.errors import DataError, OutputError

STDLIB = "@stdlib"
"""As DATA: the folder of the running Python's standard library, wherever that is."""

PIECE_BYTES = 1 << 20
_KEY_BYTES = 1 << 16
_ALWAYS_LEFT_OUT = ("__pycache__", "site-packages", "dist-packages")


@dataclass(frozen=True)
class Piece:
    """Bytes `start` up to `stop` of a file; the whole of a document unless that is large."""

    path: Path
    start: int
    stop: int
    size: int
    """Bytes of the whole file."""

    @property
    def ends_file(self) -> bool:
        return self.stop == self.size


@dataclass(frozen=True)
class Passage:
    """Text of one document, or of one part of it."""

    text: str
    key: int
    """The same 64-bit number for every part of a document: a hash of how it begins."""
    ends_document: bool


def find_files(data: Sequence[str], include: Sequence[str] = (), exclude: Sequence[str] = ()) -> list[Path]:
    """Files named by `data`: files, folders (searched to the bottom), globs and `@stdlib`, without repeats.

    Inside folders, hidden files and installed packages are left out, as is what matches a pattern of
    `exclude` or, where `include` is given, none of `include`. A pattern is compared with the path below
    the folder and with each name in it.

    Raises DataError where a name stands for nothing.
    """
    if not data:
        raise DataError("no data is given", "name files, folders, globs, or - for standard input")
    found: dict[Path, None] = {}
    for name in data:
        files = list(_files_of(name, include, exclude))
        if not files:
            raise DataError(f"{name} has no file to train on", "check the folder and the patterns")
        found.update(dict.fromkeys(files))
    return list(found)


def _files_of(name: str, include: Sequence[str], exclude: Sequence[str]) -> Iterator[Path]:
    path = Path(sysconfig.get_paths()["stdlib"]) if name == STDLIB else Path(name).expanduser()
    if path.is_dir():
        yield from _inside(path, include, exclude)
    elif path.is_file():
        yield path
    elif glob.has_magic(name):
        for match in sorted(glob.glob(str(path), recursive=True)):  # noqa: PTH207
            yield from _files_of(match, include, exclude)
    else:
        raise DataError(f"there is no data {name}", "name files, folders, globs, or - for standard input")


def _inside(folder: Path, include: Sequence[str], exclude: Sequence[str]) -> Iterator[Path]:
    def wanted(path: Path) -> bool:
        below = path.relative_to(folder)
        names = (below.as_posix(), *below.parts)

        def matches(patterns: Iterable[str]) -> bool:
            return any(fnmatch(name, pattern) for name in names for pattern in patterns)

        hidden = any(part.startswith(".") for part in below.parts)
        return not hidden and not matches((*_ALWAYS_LEFT_OUT, *exclude)) and (not include or matches(include))

    def refuse(error: OSError) -> None:
        raise DataError(f"cannot read {error.filename}: {error.strerror}", "check its permissions") from error

    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in _ALWAYS_LEFT_OUT
        )
        for name in sorted(names):
            path = Path(parent, name)
            if path.is_file() and wanted(path):
                yield path


def save_standard_input(path: Path) -> None:
    """Copy standard input to a file, since data is read more than once. Raises DataError, OutputError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}", "choose another folder") from error
    if not path.stat().st_size:
        raise DataError("standard input is empty", "pipe text into the command")


def cut(paths: Iterable[Path], piece_bytes: int = PIECE_BYTES) -> Iterator[Piece]:
    """Pieces of all files, in order, without reading them. Raises DataError for an unreadable file."""
    for path in paths:
        with _opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            start = 0
            while start < size:
                stop = min(start + piece_bytes, size)
                if stop < size:
                    stop = _line_end(file, stop, whole_lines=path.suffix == ".jsonl")
                yield Piece(path, start, stop, size)
                start = stop


def _line_end(file: BinaryIO, offset: int, whole_lines: bool) -> int:
    """The first place from `offset` on where text may be cut: a line end, else between two characters."""
    file.seek(offset)
    if whole_lines:
        file.readline()
        return file.tell()
    ahead = file.read(4096)
    line_end = ahead.find(b"\n") + 1
    if line_end:
        return offset + line_end
    # Bytes 10xxxxxx continue a UTF-8 character.
    inside = next((index for index, byte in enumerate(ahead) if byte & 0xC0 != 0x80), len(ahead))
    return offset + inside


def read_piece(piece: Piece, field: str) -> Iterator[Passage]:
    """Documents, or the part of one, in `piece`; `field` holds the text of a JSON line.

    Raises DataError where the file cannot be read or a JSON line is not what it should be, and
    UnicodeDecodeError where the piece is not UTF-8 text.
    """
    with _opened(piece.path) as file:
        beginning = file.read(_KEY_BYTES)
        file.seek(piece.start)
        content = file.read(piece.stop - piece.start)
    if b"\0" in content[:8192]:
        raise UnicodeDecodeError("utf-8", content[:1], 0, 1, "a binary file")
    if piece.path.suffix == ".jsonl":
        yield from _json_lines(piece, content, field)
    else:
        key = _key(beginning, piece.size)
        yield Passage(content.decode(), key, piece.ends_file)


def _json_lines(piece: Piece, content: bytes, field: str) -> Iterator[Passage]:
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)[field]
        except (ValueError, KeyError, TypeError, IndexError):
            text = None
        if not isinstance(text, str):
            where = f"line {number}" if not piece.start else f"line {number} after byte {piece.start}"
            raise DataError(f"{piece.path}, {where}, has no text in {field!r}", "name the field with --field")
        try:
            encoded = text.encode()
        except UnicodeEncodeError:  # a lone surrogate, which JSON can spell and text cannot hold
            text = text.encode(errors="replace").decode()
            encoded = text.encode()
        yield Passage(text, _key(encoded, len(encoded)), True)


def _key(beginning: bytes, size: int) -> int:
    """Decides on which side of the held-out split a document is. Its first 64 KiB and size are enough to
    tell documents apart, and every piece of a large one can find them out by itself."""
    digest = hashlib.blake2b(beginning[:_KEY_BYTES] + str(size).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", "check its permissions") from error
