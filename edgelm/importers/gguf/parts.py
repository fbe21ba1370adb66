"""A model in one GGUF file, or in the numbered parts that llama.cpp's gguf-split makes.

The first part holds the metadata; `split.count` says how many there are, `split.tensors.count` how many tensors all of
them hold. A part alone never passes for a model: what it lacks would be taken to be absent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgelm.importers.gguf.file import GgufFile
from edgelm.model import Stored
from edgelm_runtime.errors import CheckpointError

PART_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True)
class GgufModel:
    """Metadata and tensors of a whole model."""

    path: Path
    metadata: Mapping[str, Any]
    weights: Mapping[str, Stored]


def read_gguf(path: Path) -> GgufModel:
    """The model that the file, or the parts that it is one of, hold. Raises CheckpointError where parts are missing."""
    file = GgufFile(path)
    count = file.metadata.get("split.count", 1)
    if count in (0, 1):
        return GgufModel(path, file.metadata, file.weights())
    match = PART_NAME.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        raise CheckpointError(
            f"{path} is one of {count} parts of a model, and its name does not say which",
            f"give it the name NAME-00001-of-{count:05d}.gguf that it had, next to the others"
            if isinstance(count, int)
            else "get the file again",
        )
    parts = [path.with_name(f"{match[1]}-{number:05d}-of-{match[3]}.gguf") for number in range(1, count + 1)]
    return _joined(parts)


def _joined(parts: list[Path]) -> GgufModel:
    if missing := [part.name for part in parts if not part.is_file()]:
        raise CheckpointError(
            f"the model comes in {len(parts)} parts, and {missing[0]} is missing",
            "put all of them into one folder",
        )
    weights: dict[str, Stored] = {}
    first: Mapping[str, Any] = {}
    for number, part in enumerate(parts):
        file = GgufFile(part)
        place = (file.metadata.get("split.no"), file.metadata.get("split.count"))
        if place != (number, len(parts)):
            raise CheckpointError(
                f"{part} says that it is part {place[0]} of {place[1]}", "the parts are of different models"
            )
        if twice := sorted(weights.keys() & file.tensors.keys()):
            raise CheckpointError(
                f"{part} holds {twice[0]}, which another part holds too", "get the parts again"
            )
        weights |= file.weights()
        first = first or file.metadata
    total = first.get("split.tensors.count", len(weights))
    if total != len(weights):
        raise CheckpointError(
            f"{parts[0]} speaks of {total} tensors, the parts hold {len(weights)}", "get the parts again"
        )
    return GgufModel(parts[0], first, weights)
