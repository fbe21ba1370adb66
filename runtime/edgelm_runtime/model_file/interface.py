"""The names that model files and their readers agree on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorInfo:
    """Name, onnxruntime type such as `tensor(float)`, and shape of an input or output; names for free axes."""

    name: str
    type: str
    shape: tuple[int | str | None, ...]


FORMAT = 1


PREFIX = "edgelm."


CACHE_LENGTH = "cache_length"
