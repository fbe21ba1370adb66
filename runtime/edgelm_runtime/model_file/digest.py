"""What a model file's bytes add up to, read without onnx and without holding the file in memory.

A model file is one protobuf message: graph and versions, then `metadata_props`. The digest is one SHA-256
for all that is not metadata, one for the sidecar where there is one, and one for each `edgelm.*` entry, so
that a difference can be named. Foreign metadata entries do not count. Only the outermost level of the
message is walked (https://protobuf.dev/programming-guides/encoding/, field numbers from onnx.proto).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from edgelm_runtime.errors import ModelFileError
from edgelm_runtime.model_file.interface import DIGEST, PREFIX, SIDECAR_SAMPLE
from edgelm_runtime.model_file.opened import COPY_AGAIN, OpenModel
from edgelm_runtime.model_file.protobuf import METADATA, Data, walk

DIGEST_KEY = PREFIX + DIGEST
GRAPH_PART, SIDECAR_PART = "graph", "sidecar"
SAMPLES, SAMPLE_BYTES = 32, 256


def file_digest(model: OpenModel) -> dict[str, str]:
    """SHA-256 (hex) of the parts of a model file: "graph", "sidecar", and each `edgelm.*` key.

    Raises ModelFileError where the file is cut off or no protobuf message.
    """
    try:
        parts = _parts(model.file.data)
    except ValueError as error:
        raise ModelFileError(f"{model.name} {error}", COPY_AGAIN) from error
    for sidecar in model.sidecars.values():
        parts[SIDECAR_PART] = hashlib.sha256(sidecar.data).hexdigest()
    return parts


def sidecar_sample(model: OpenModel) -> str | None:
    """A digest over a few places of the sidecar, which tells another export's from this one's without reading it all.

    None where there is none.
    """
    for sidecar in model.sidecars.values():
        digest = hashlib.sha256(str(sidecar.size).encode())
        for place in range(SAMPLES):
            start = (sidecar.size - SAMPLE_BYTES) * place // (SAMPLES - 1)
            digest.update(sidecar.data[max(0, start) : start + SAMPLE_BYTES])
        return digest.hexdigest()
    return None


def check_sidecar(model: OpenModel, graph: Mapping[str, Any]) -> None:
    """Raise ModelFileError where the sidecar is not the one that the `graph` entry of the metadata was written with."""
    expected = graph.get(SIDECAR_SAMPLE)
    if expected is not None and expected != sidecar_sample(model):
        raise ModelFileError(
            f"{', '.join(model.sidecars)} does not hold the weights of {model.name}",
            "put there the file that was exported with it, or export the model again",
        )


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
