"""safetensors files, mapped into memory, one tensor read at a time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from edgelm.importers.files.torch_files import floats
from edgelm.importers.weight_rules import Stored
from edgelm_runtime.errors import CheckpointError
from edgelm_runtime.git_lfs import refuse_pointer


def safetensors_weights(path: Path) -> dict[str, Stored]:
    """The tensors of a safetensors file. Raises CheckpointError where it is damaged.

    The library holds sizes and offsets in the header against the file's size before anything is read.
    """
    try:
        refuse_pointer(path)
        file = safe_open(path, framework="pt")
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, MemoryError) as error:
        raise CheckpointError(f"{path} is damaged: {error}", "get the file again") from error
    return {name: Stored(shape, partial(_read, file, name, path)) for name, shape in shapes.items()}


def _read(file: Any, name: str, path: Path) -> torch.Tensor:
    try:
        return floats(file.get_tensor(name), name, path)
    except (SafetensorError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {name}: {error}", "get the file again") from error
