"""Model files with other metadata, made without onnx."""

from __future__ import annotations

from pathlib import Path

from edgelm_runtime.model_file.interface import PREFIX
from edgelm_runtime.model_file.protobuf import METADATA, delimited, walk


def _message(number: int, content: bytes) -> bytes:
    return delimited(number, len(content)) + content


def with_entries(path: Path, entries: dict[str, str | bytes | None]) -> bytes:
    """The model file `path` with some of its `edgelm.*` entries, named without the prefix, set or (None) left out.

    The digest goes, which would find every change.
    """
    data = path.read_bytes()
    entries = {PREFIX + key: value for key, value in entries.items()}
    entries.setdefault(PREFIX + "digest", None)
    parts = []
    for field in walk(data, 0, len(data)):
        inside = list(walk(data, field.content, field.end)) if field.number == METADATA else []
        if not inside or data[inside[0].content : inside[0].end].decode() not in entries:
            parts.append(data[field.start : field.end])
    for key, value in entries.items():
        if value is not None:
            content = value if isinstance(value, bytes) else value.encode()
            parts.append(_message(METADATA, _message(1, key.encode()) + _message(2, content)))
    return b"".join(parts)
