"""safetensors files, one tensor read at a time.

They are read, not mapped: pages of a mapped file stay with the process that has looked at them, and a model would be
in memory once as it is stored and once as it is used. Format: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open

from edgelm.model.stored import Stored
from edgelm_runtime.errors import CheckpointError
from edgelm_runtime.git_lfs import refuse_pointer

FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def safetensors_weights(path: Path) -> dict[str, Stored]:
    """The tensors of a safetensors file, which stays open. Raises CheckpointError where it is damaged.

    The library holds sizes and offsets in the header against the file's size before anything is read.
    """
    try:
        refuse_pointer(path)
        file = path.open("rb", buffering=0)
        with safe_open(path, framework="pt"):
            header = json.loads(file.read(start := int.from_bytes(file.read(8), "little")))
    except (SafetensorError, OSError, ValueError, MemoryError) as error:
        raise CheckpointError(f"{path} is damaged: {error}", "get the file again") from error
    header.pop("__metadata__", None)
    return {
        name: Stored(tuple(about["shape"]), partial(_read, file, 8 + start, about, name, path))
        for name, about in header.items()
    }


def _read(file: BinaryIO, start: int, about: dict[str, Any], name: str, path: Path) -> torch.Tensor:
    dtype = FLOATS.get(about["dtype"])
    if dtype is None:
        raise CheckpointError(
            f"{path}: {name} is stored as {about['dtype']}", "give weights in float32, float16 or bfloat16"
        )
    tensor = torch.empty(prod(about["shape"]), dtype=dtype)
    content = tensor.view(torch.uint8).numpy().data
    file.seek(start + about["data_offsets"][0])
    while content:
        count = file.readinto(content)  # type: ignore[attr-defined]
        if not count:
            raise CheckpointError(f"{path} is damaged: it ends within {name}", "get the file again")
        content = content[count:]
    return tensor.view(about["shape"])
