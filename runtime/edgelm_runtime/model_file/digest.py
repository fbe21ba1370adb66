"""What a model file's bytes add up to, read without onnx and without holding the file in memory.

A model file is one protobuf message: graph and versions, then `metadata_props`. The digest is one SHA-256
for all that is not metadata, one for the sidecar where there is one, and one for each `edgelm.*` entry, so
that a difference can be named. Foreign metadata entries do not count. Only the outermost level of the
message is walked (https://protobuf.dev/programming-guides/encoding/, field numbers from onnx.proto).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from edgelm_runtime.errors import ModelFileError
from edgelm_runtime.model_file.interface import DIGEST, PREFIX
from edgelm_runtime.model_file.protobuf import METADATA, Data, mapped_file, walk

DIGEST_KEY = PREFIX + DIGEST
GRAPH_PART, SIDECAR_PART = "graph", "sidecar"


def file_digest(path: Path, sidecar: str | None = None) -> dict[str, str]:
    """SHA-256 (hex) of the parts of the model file `path`: "graph", "sidecar", and each `edgelm.*` key.

    `sidecar` is the name of the file beside it that holds its weights, where there is one. Raises
    ModelFileError where a file is missing, cut off or no protobuf message.
    """
    try:
        with mapped_file(path) as data:
            parts = _parts(data)
        if sidecar is not None:
            with mapped_file(path.parent / Path(sidecar).name) as data:
                parts[SIDECAR_PART] = hashlib.sha256(data).hexdigest()
    except OSError as error:
        raise ModelFileError(
            f"cannot read {error.filename or path}: {error.strerror}", "check the path"
        ) from error
    except ValueError as error:
        raise ModelFileError(f"{path} {error}", "copy or export it again") from error
    return parts


def changed_entries(metadata: Mapping[str, str], digest: Mapping[str, str]) -> list[str]:
    """The metadata entries, by their names without prefix, that are not what `digest` says."""
    expected = {key: value for key, value in digest.items() if key.startswith(PREFIX)}
    found = {
        key: hashlib.sha256(value.encode()).hexdigest()
        for key, value in metadata.items()
        if key.startswith(PREFIX) and key != DIGEST_KEY
    }
    different = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
    return [key.removeprefix(PREFIX) for key in different]


def _parts(data: Data) -> dict[str, str]:
    graph = hashlib.sha256()
    parts: dict[str, str] = {}
    with memoryview(data) as view:
        for field in walk(data, 0, len(data)):
            if field.number != METADATA:
                with view[field.start : field.end] as content:
                    graph.update(content)
                continue
            key, value = _entry(data[field.content : field.end])
            if key.startswith(PREFIX) and key != DIGEST_KEY:
                parts[key] = hashlib.sha256(value).hexdigest()
    return parts | {GRAPH_PART: graph.hexdigest()}


def _entry(content: bytes) -> tuple[str, bytes]:
    """Key and value of a StringStringEntryProto: fields 1 and 2, both delimited."""
    found = {1: b"", 2: b""}
    for field in walk(content, 0, len(content)):
        found[field.number] = content[field.content : field.end]
    return found[1].decode(errors="replace"), found[2]
