"""What a model file's bytes add up to, read without onnx and without holding the file in memory.

A model file is one protobuf message: graph and versions, then `metadata_props`. The digest is one SHA-256
for all that is not metadata, one for the sidecar where there is one, and one for each `edgelm.*` entry, so
that a difference can be named. Foreign metadata entries do not count. Only the outermost level of the
message is walked (https://protobuf.dev/programming-guides/encoding/, field numbers from onnx.proto).
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import BinaryIO

from edgelm_runtime.errors import ModelFileError

DIGEST_KEY = "edgelm.digest"
PREFIX = "edgelm."
GRAPH, SIDECAR = "graph", "sidecar"

METADATA_FIELD = 14
VARINT, EIGHT_BYTES, DELIMITED, FOUR_BYTES = 0, 1, 2, 5  # wire types
BLOCK = 1 << 20


def file_digest(path: Path, sidecar: str | None = None) -> dict[str, str]:
    """SHA-256 (hex) of the parts of the model file `path`: "graph", "sidecar", and each `edgelm.*` key.

    `sidecar` is the name of the file beside it that holds its weights, where there is one. Raises
    ModelFileError where a file is missing, cut off or no protobuf message.
    """
    graph = hashlib.sha256()
    parts: dict[str, str] = {}
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while file.tell() < size:
                start = file.tell()
                number, length = _field(file, size, path)
                if number == METADATA_FIELD:
                    key, value = _entry(file.read(length), path)
                    if key.startswith(PREFIX) and key != DIGEST_KEY:
                        parts[key] = hashlib.sha256(value).hexdigest()
                else:
                    end = file.tell() + length
                    file.seek(start)
                    _update(graph, file, end - start)
        parts[GRAPH] = graph.hexdigest()
        if sidecar is not None:
            parts[SIDECAR] = _whole(path.parent / Path(sidecar).name)
    except OSError as error:
        raise ModelFileError(
            f"cannot read {error.filename or path}: {error.strerror}", "check the path"
        ) from error
    return parts


def _field(file: BinaryIO, size: int, path: Path) -> tuple[int, int]:
    """Number and length in bytes of the field whose content starts where the file then stands."""
    tag = _varint(file, path)
    kind = tag & 7
    if kind == VARINT:
        start = file.tell()
        _varint(file, path)
        length = file.tell() - start
        file.seek(start)
    elif kind == DELIMITED:
        length = _varint(file, path)
    elif kind in (EIGHT_BYTES, FOUR_BYTES):
        length = 8 if kind == EIGHT_BYTES else 4
    else:
        raise ModelFileError(f"{path} is not an ONNX model", "copy or export it again")
    if length > size - file.tell():
        raise ModelFileError(f"{path} is cut off", "copy or export it again")
    return tag >> 3, length


def _varint(file: BinaryIO, path: Path) -> int:
    number = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise ModelFileError(f"{path} is cut off", "copy or export it again")
        number |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return number
    raise ModelFileError(f"{path} is not an ONNX model", "copy or export it again")


def _entry(content: bytes, path: Path) -> tuple[str, bytes]:
    """Key and value of a StringStringEntryProto: fields 1 and 2, both delimited."""
    found = {1: b"", 2: b""}
    stream = io.BytesIO(content)
    while stream.tell() < len(content):
        number, length = _field(stream, len(content), path)
        found[number] = stream.read(length)
    return found[1].decode(errors="replace"), found[2]


def _update(digest: hashlib._Hash, file: BinaryIO, length: int) -> None:
    while length and (block := file.read(min(length, BLOCK))):
        digest.update(block)
        length -= len(block)


def _whole(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        _update(digest, file, os.fstat(file.fileno()).st_size)
    return digest.hexdigest()
