"""From files to documents, in pieces of bounded size.

A document is a file, or the text in one line of JSON lines or one row of parquet. Plain files are cut into pieces of
about a megabyte at line ends, so that neither memory nor the longest regular-expression run grows with a file, and
pieces can be read in parallel in any order. What can only be read from its beginning on (compressed, parquet, an
encoding other than UTF-8) is one piece, read as a stream.

A byte-order mark is dropped, and line ends of two characters (CR LF) become one.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import json
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from dataclasses import field as made
from pathlib import Path
from typing import Any, BinaryIO

from edgelm.data.formats import BOM, format_of, opened, rows
from edgelm_runtime.errors import DataError

PIECE_BYTES = 1 << 20
_KEY_BYTES = 1 << 16
_SHOWN = 40


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
    begins_document: bool = True
    ends_document: bool = True


@dataclass
class Reading:
    """How files are read, and what was left out. Safe to share between threads.

    `replace` puts U+FFFD where bytes are not text; else such a piece is left out. `most_bad` records that are not
    what they should be are left out; one more raises DataError.
    """

    field: str = "text"
    encoding: str = "utf-8"
    replace: bool = False
    most_bad: int = 0
    bad: list[str] = made(default_factory=list)
    skipped: list[str] = made(default_factory=list)
    _lock: threading.Lock = made(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        try:
            self.encoding = codecs.lookup(self.encoding).name
        except (LookupError, ValueError) as error:
            raise DataError(
                f"there is no encoding {self.encoding!r}", "name one that Python knows, such as cp1252"
            ) from error

    @property
    def errors(self) -> str:
        """Python's name for what is done with bytes that are not text."""
        return "replace" if self.replace else "strict"

    def leave_out_record(self, problem: DataError) -> None:
        """Note a bad record. Raises `problem` where there have been too many."""
        with self._lock:
            if len(self.bad) >= self.most_bad:
                raise problem
            self.bad.append(problem.problem)

    def leave_out_text(self, what: str) -> None:
        """Note a file, or a piece of one, that is not text."""
        with self._lock:
            self.skipped.append(what)


def cut(
    paths: Iterable[Path], reading: Reading | None = None, piece_bytes: int = PIECE_BYTES
) -> Iterator[Piece]:
    """Pieces of all files, in order, without reading them. Raises DataError for an unreadable file."""
    encoding = reading.encoding if reading is not None else "utf-8"
    for path in paths:
        with opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            if _streamed(path, encoding) and size:
                yield Piece(path, 0, size, size)
                continue
            whole_lines = format_of(path).layout == "lines"
            start = 0
            while start < size:
                stop = min(start + piece_bytes, size)
                if stop < size:
                    stop = _line_end(file, stop, whole_lines)
                yield Piece(path, start, stop, size)
                start = stop


def _streamed(path: Path, encoding: str) -> bool:
    form = format_of(path)
    return bool(form.compression) or form.layout == "rows" or encoding != "utf-8"


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


def read_piece(piece: Piece, reading: Reading) -> Iterator[Passage]:
    """Documents, or the part of one, in `piece`.

    Raises DataError where the file cannot be read, or more records than `reading` allows are not what they
    should be. A piece that is not text is left out and noted in `reading`.
    """
    if format_of(piece.path).layout == "text":
        yield from _text(piece, reading)
        return
    for where, record in read_records(piece, reading):
        try:
            text = _text_of(record, reading.field, where)
        except DataError as problem:
            reading.leave_out_record(problem)
            continue
        encoded = text.encode(errors="replace")  # a lone surrogate, which JSON can spell and text cannot hold
        yield Passage(encoded.decode(), document_key(encoded, len(encoded)))


def read_records(piece: Piece, reading: Reading) -> Iterator[tuple[str, Any]]:
    """The JSON values of a piece's lines, or the rows of a table, each with the place where it stands.

    A comma after a line, and brackets on lines of their own around all of them, are passed over. A line that is no
    JSON is left out or raises DataError, as `reading` says.
    """
    if format_of(piece.path).layout == "rows":
        for number, row in enumerate(rows(piece.path), start=1):
            yield f"{piece.path}, row {number}", row
        return
    for number, line in _lines(piece, reading):
        stripped = line.strip().removesuffix(",")
        if stripped in ("", "[", "]"):
            continue
        where = f"{piece.path}, line {number + _lines_before(piece)}"
        try:
            yield where, json.loads(stripped)
        except (ValueError, RecursionError) as error:
            reason = "is nested too deeply" if isinstance(error, RecursionError) else f"is no JSON: {error}"
            reading.leave_out_record(
                DataError(f"{where}, {reason}", "mend it, or allow it with --skip-bad 1")
            )


def _lines(piece: Piece, reading: Reading) -> Iterator[tuple[int, str]]:
    """The lines of a piece, numbered from 1. A line that is not text is left out or raises DataError."""
    remedy = "name its --encoding, or replace such bytes with --decode-errors replace"
    with opened(piece.path, format_of(piece.path).compression) as file:
        if reading.encoding != "utf-8":
            try:
                yield from enumerate(io.TextIOWrapper(file, reading.encoding, reading.errors), start=1)
            except UnicodeDecodeError as error:
                raise DataError(f"{piece.path}: {_bad_byte(error)}", remedy) from error
            return
        if _streamed(piece.path, reading.encoding):
            lines: Iterable[bytes] = file
        else:
            file.seek(piece.start)
            lines = file.read(piece.stop - piece.start).split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                text = line.removeprefix(BOM if number == 1 and not piece.start else b"")
                yield number, text.decode("utf-8", reading.errors)
            except UnicodeDecodeError as error:
                where = f"{piece.path}, line {number + _lines_before(piece)}"
                reading.leave_out_record(DataError(f"{where}: {_bad_byte(error)}", remedy))


def _lines_before(piece: Piece) -> int:
    if not piece.start:
        return 0
    count, left = 0, piece.start
    with opened(piece.path) as file:
        while left and (block := file.read(min(left, PIECE_BYTES))):
            count += block.count(b"\n")
            left -= len(block)
    return count


def _text_of(record: object, name: str, where: str) -> str:
    """The text of a record. Raises DataError that says what stands there instead."""
    remedy = "name the field with --field"
    if not isinstance(record, dict):
        shown = json.dumps(record, default=str)[:_SHOWN]
        raise DataError(f"{where}, is {shown} and has no text in {name!r}", remedy)
    value = record.get(name)
    if isinstance(value, str):
        return value
    if name in record:
        raise DataError(
            f"{where}, has no text in {name!r} but {json.dumps(value, default=str)[:_SHOWN]}", remedy
        )
    raise DataError(f"{where}, has no text in {name!r}, only {', '.join(map(str, record))[:_SHOWN]}", remedy)


def _text(piece: Piece, reading: Reading) -> Iterator[Passage]:
    with opened(piece.path) as file:
        beginning = file.read(_KEY_BYTES)
    key = document_key(beginning, piece.size)
    try:
        if _streamed(piece.path, reading.encoding):
            yield from _streamed_text(piece, reading, key)
        else:
            yield Passage(_plain_text(piece, reading), key, not piece.start, piece.ends_file)
    except UnicodeDecodeError as error:
        whole = piece.start == 0 and piece.ends_file
        name = str(piece.path) if whole else f"{piece.path} ({piece.start}-{piece.stop})"
        before = None if _streamed(piece.path, reading.encoding) else piece.start
        reading.leave_out_text(f"{name}: {_bad_byte(error, before)}")


def _plain_text(piece: Piece, reading: Reading) -> str:
    with opened(piece.path) as file:
        file.seek(piece.start)
        content = file.read(piece.stop - piece.start)
    _refuse_binary(content)
    text = content.decode("utf-8", reading.errors)
    return text.removeprefix("" if piece.start else "\ufeff").replace("\r\n", "\n")


def _streamed_text(piece: Piece, reading: Reading, key: int) -> Iterator[Passage]:
    """The text of a file that can only be read from its beginning on, cut at line ends."""
    with opened(piece.path, format_of(piece.path).compression) as file:
        encoding = "utf-8-sig" if reading.encoding == "utf-8" else reading.encoding
        text = io.TextIOWrapper(file, encoding, reading.errors, newline="")
        ahead = _some(text)
        _refuse_binary(ahead[:8192].encode(errors="replace"))
        first = True
        while ahead:
            now, ahead = ahead, _some(text)
            yield Passage(now.replace("\r\n", "\n"), key, first, not ahead)
            first = False


def _some(text: io.TextIOWrapper) -> str:
    """About a megabyte, up to the next line end."""
    return text.read(PIECE_BYTES) + text.readline(PIECE_BYTES)


def _refuse_binary(content: bytes) -> None:
    if b"\0" in content[:8192]:
        raise UnicodeDecodeError("utf-8", content, content.index(b"\0"), content.index(b"\0") + 1, "binary")


def _bad_byte(error: UnicodeDecodeError, before: int | None = None) -> str:
    """What is wrong with the bytes of a text; `before` counts those in front of what was decoded."""
    if error.reason == "binary":
        return "a binary file"
    where = "" if before is None else f" at {before + error.start}"
    return f"byte {error.object[error.start]:#04x}{where} is not {error.encoding}"


def document_key(beginning: bytes, size: int) -> int:
    """Decides on which side of the held-out split a document is. Its first 64 KiB and size are enough to
    tell documents apart, and every piece of a large one can find them out by itself."""
    digest = hashlib.blake2b(beginning[:_KEY_BYTES] + str(size).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
