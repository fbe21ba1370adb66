"""The weights of a graph, where they lie, and the graph with them somewhere else.

onnxruntime reads a whole file into memory and then arranges most weights anew, so it holds them twice; weights that
lie in another file it maps, and lets go of one by one. So it is given the graph with the weights cut out and, in their
place, the model file itself as that other file. SmolLM2 in float32 then takes 0.4 s and 690 MB to load instead of
0.8 s and 870 MB (2 cores of an AMD EPYC, 2026-11-29), and processes that run the same model share what stays mapped.

Weights in sidecars are referred to by the names that the files really have, which differ from those in the graph where
links lead to them. Field numbers are those of onnx.proto (ModelProto, GraphProto, TensorProto).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from edgelm_runtime.model_file.protobuf import (
    DATA_LOCATION,
    EXTERNAL_DATA,
    GRAPH,
    INITIALIZER,
    RAW_DATA,
    Data,
    Field,
    delimited,
    read_varint,
    walk,
)

ALIGNMENT = 64
"""Bytes. Weights that begin elsewhere are left in the graph: kernels may expect as much (files of edgelm do it)."""
SMALLEST = 4096
EXTERNAL = bytes([DATA_LOCATION << 3, 1])  # data_location = EXTERNAL


class Reference(NamedTuple):
    """A weight that can be read where it lies: `length` bytes from `offset` on of the sidecar that the graph calls
    `location`, or (None) of the model file itself. `tensor` is its field in the graph."""

    tensor: Field
    location: str | None
    offset: int
    length: int


def references(data: Data) -> list[Reference]:
    """The weights of the model file `data` that lie in sidecars, and those in the file that can be cut out.

    Raises ValueError where `data` is cut off or no ONNX model.
    """
    return [
        found
        for graph in walk(data, 0, len(data))
        if graph.number == GRAPH
        for tensor in walk(data, graph.content, graph.end)
        if tensor.number == INITIALIZER and (found := _reference(data, tensor)) is not None
    ]


def rewritten(data: Data, weights: Sequence[Reference], own: str | None, names: Mapping[str, str]) -> bytes:
    """The model file `data` with its `weights` referred to: those of sidecars by `names`, by what the graph calls
    them, those of the file itself as lying in the file `own`, or left in the graph where that is None."""
    moved = {
        weight.tensor.start: weight for weight in weights if own is not None or weight.location is not None
    }
    parts = []
    for field in walk(data, 0, len(data)):
        if field.number != GRAPH:
            parts.append(data[field.start : field.end])
            continue
        content = []
        for part in walk(data, field.content, field.end):
            weight = moved.get(part.start) if part.number == INITIALIZER else None
            if weight is None:
                content.append(data[part.start : part.end])
            else:
                name = own if weight.location is None else names[weight.location]
                content.append(_referring(data, weight, str(name)))
        parts.append(_message(GRAPH, b"".join(content)))
    return b"".join(parts)


def _reference(data: Data, tensor: Field) -> Reference | None:
    entries: dict[str, str] = {}
    external = False
    raw: Field | None = None
    for field in walk(data, tensor.content, tensor.end):
        if field.number == RAW_DATA:
            raw = field
        elif field.number == EXTERNAL_DATA:
            key, value = _entry(data, field)
            entries[key] = value
        elif field.number == DATA_LOCATION:
            external = read_varint(data, field.content, field.end)[0] == 1
    if external:
        try:
            offset, length = int(entries.get("offset", "0")), int(entries.get("length", "0"))
        except ValueError:
            offset = length = -1
        if min(offset, length) < 0 or "location" not in entries:
            raise ValueError("has a damaged reference to its weights")
        return Reference(tensor, entries["location"], offset, length)
    if raw is None or raw.end - raw.content < SMALLEST or raw.content % ALIGNMENT:
        return None
    return Reference(tensor, None, raw.content, raw.end - raw.content)


def _entry(data: Data, entry: Field) -> tuple[str, str]:
    """Key and value of a StringStringEntryProto: fields 1 and 2."""
    found = {
        field.number: data[field.content : field.end].decode(errors="replace")
        for field in walk(data, entry.content, entry.end)
    }
    return found.get(1, ""), found.get(2, "")


def _referring(data: Data, weight: Reference, name: str) -> bytes:
    """The weight as a tensor that refers to its bytes in the file `name`."""
    entries = {"location": name, "offset": str(weight.offset)}
    if weight.length:  # without one it is all that follows
        entries["length"] = str(weight.length)
    kept = b"".join(
        data[field.start : field.end]
        for field in walk(data, weight.tensor.content, weight.tensor.end)
        if field.number not in (RAW_DATA, EXTERNAL_DATA, DATA_LOCATION)
    )
    external = b"".join(
        _message(EXTERNAL_DATA, _message(1, key.encode()) + _message(2, value.encode()))
        for key, value in entries.items()
    )
    return _message(INITIALIZER, kept + EXTERNAL + external)


def _message(number: int, content: bytes) -> bytes:
    return delimited(number, len(content)) + content
