"""Weights that are read from the model file where they lie, instead of being copied into memory.

onnxruntime reads a whole file into memory and then arranges most weights anew, so it holds them twice; weights that
lie in another file it maps, and lets go of one by one. So it is given the graph with the weights cut out and, in their
place, the model file itself as that other file. SmolLM2 in float32 then takes 0.4 s and 690 MB to load instead of
0.8 s and 870 MB (2 cores of an AMD EPYC, 2026-11-29), and processes that run the same model share what stays mapped.
"""

from __future__ import annotations

from pathlib import Path

from edgelm_runtime.model_file.protobuf import (
    DATA_LOCATION,
    EXTERNAL_DATA,
    GRAPH,
    INITIALIZER,
    RAW_DATA,
    Data,
    Field,
    delimited,
    mapped_file,
    walk,
)

ALIGNMENT = 64
"""Bytes. Weights that begin elsewhere are left in the graph: kernels may expect as much (files of edgelm do it)."""
SMALLEST = 4096
EXTERNAL = bytes([DATA_LOCATION << 3, 1])  # data_location = EXTERNAL


def without_weights(path: Path) -> bytes | None:
    """The model file `path` with its weights cut out and referred to; None where most of it cannot be cut out.

    A file that is damaged gives None too: onnxruntime says what is wrong with it.
    """
    try:
        with mapped_file(path) as data:
            fields = list(walk(data, 0, len(data)))
            parts = {field: _graph_parts(data, field) for field in fields if field.number == GRAPH}
            cut = sum(raw.end - raw.content for graph in parts.values() for _, raw in graph if raw)
            if 2 * cut < len(data):
                return None
            return b"".join(
                _graph(data, parts[field], path.name) if field in parts else data[field.start : field.end]
                for field in fields
            )
    except (OSError, ValueError):
        return None


def _graph_parts(data: Data, graph: Field) -> list[tuple[Field, Field | None]]:
    """The graph's fields, and beside those that are weights to be cut out their raw data."""
    fields = walk(data, graph.content, graph.end)
    return [(field, _raw_data(data, field) if field.number == INITIALIZER else None) for field in fields]


def _raw_data(data: Data, tensor: Field) -> Field | None:
    for field in walk(data, tensor.content, tensor.end):
        if field.number == RAW_DATA and field.end - field.content >= SMALLEST:
            return field if field.content % ALIGNMENT == 0 else None
    return None


def _graph(data: Data, parts: list[tuple[Field, Field | None]], name: str) -> bytes:
    return _message(
        GRAPH,
        b"".join(
            data[field.start : field.end] if raw is None else _tensor(data, field, raw, name)
            for field, raw in parts
        ),
    )


def _tensor(data: Data, tensor: Field, raw: Field, name: str) -> bytes:
    """A weight that refers to its `raw` data in the file `name`."""
    entries = {"location": name, "offset": str(raw.content), "length": str(raw.end - raw.content)}
    content = data[tensor.content : raw.start] + data[raw.end : tensor.end] + EXTERNAL
    content += b"".join(_message(EXTERNAL_DATA, _entry(*entry)) for entry in entries.items())
    return _message(INITIALIZER, content)


def _entry(key: str, value: str) -> bytes:
    """A StringStringEntryProto."""
    return _message(1, key.encode()) + _message(2, value.encode())


def _message(number: int, content: bytes) -> bytes:
    return delimited(number, len(content)) + content
