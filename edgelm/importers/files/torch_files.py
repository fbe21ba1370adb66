"""PyTorch files, read without running anything that they hold.

`weights_only=True` unpickles tensors and plain containers; besides them only the harmless classes are
allowed that the supported programs write (a version string, NumPy numbers). Tensors stay memory-mapped.
A tensor may claim any size over a storage of few bytes (strides of zero), so sizes are checked too.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from edgelm.importers.files.pickles import check_size, wanted_names
from edgelm.model import Stored
from edgelm_runtime.errors import CheckpointError
from edgelm_runtime.git_lfs import refuse_pointer

ZIP_MAGIC = b"PK\x03\x04"
# A pickle, protocol 2, of the number that files before PyTorch 1.6 begin with.
LEGACY_MAGIC = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def read_torch(path: Path) -> Any:
    """What `torch.save` put into the file. Raises CheckpointError that names what is refused or damaged."""
    mapped = _check_archive(path)
    try:
        for data in _pickles(path, mapped):
            check_size(data)
        with torch.serialization.safe_globals(_harmless()):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        wanted = [name for name in _wanted(path, mapped) if not name.startswith(("torch.", "collections."))]
        if wanted:
            raise CheckpointError(
                f"{path} wants to load {', '.join(wanted)}, which could run code",
                "get the weights as safetensors",
            ) from error
        raise _damaged(path, error) from error
    except (OSError, RuntimeError, ValueError, EOFError, LookupError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: {str(error).splitlines()[0]}", "get the file again")


def _harmless() -> list[Any]:
    """What may be unpickled besides tensors: versions and NumPy numbers, under NumPy 1's and 2's names."""
    scalar = np.float64(0).__reduce__()[0]
    dtypes = [type(np.dtype(kind)) for kind in (np.float64, np.float32, np.int64, np.int32, np.bool_)]
    old, new = "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"
    return [np.dtype, *dtypes, (scalar, old), (scalar, new), torch.torch_version.TorchVersion]


def _check_archive(path: Path) -> bool:
    """Whether the file is a zip archive, as since PyTorch 1.6; its figures are checked against its size."""
    try:
        refuse_pointer(path)
        with path.open("rb") as file:
            start = file.read(len(LEGACY_MAGIC))
        if not start.startswith(ZIP_MAGIC):
            if start == LEGACY_MAGIC:
                return False
            raise CheckpointError(f"{path} is no PyTorch file", "give a file that torch.save wrote")
        with zipfile.ZipFile(path) as archive:
            for record in archive.infolist():
                if record.compress_type != zipfile.ZIP_STORED:
                    raise CheckpointError(
                        f"{path}: {record.filename} is compressed", "save it again with torch.save"
                    )
            claimed = sum(record.file_size for record in archive.infolist())
    except zipfile.BadZipFile as error:
        raise CheckpointError(
            f"{path} is damaged: its table of contents, at the end, is missing or broken ({error})",
            "get the file again",
        ) from error
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}", "check the path") from error
    if claimed > path.stat().st_size:
        raise CheckpointError(
            f"{path} claims {claimed} bytes and has {path.stat().st_size}", "get the file again"
        )
    return True


def _wanted(path: Path, mapped: bool) -> list[str]:
    """What the file's pickles would import."""
    return [name for data in _pickles(path, mapped) for name in wanted_names(data)]


def _pickles(path: Path, archived: bool) -> Iterator[BinaryIO]:
    """The pickles of the file: records of the archive, or what an older file begins with."""
    if not archived:
        with path.open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".pkl"):
                yield BytesIO(archive.read(name))


def stored_tensors(values: Any, path: Path, what: str) -> dict[str, Stored]:
    """The tensors of a state dict. Raises CheckpointError where it is none, or a tensor claims too much."""
    if not isinstance(values, dict) or not values:
        raise CheckpointError(f"{path}: {what} is not a state dict", "save the model's state_dict()")
    weights = {}
    for name, tensor in values.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise CheckpointError(
                f"{path}: {what} holds {type(tensor).__name__} {name!r}", "a state dict holds tensors only"
            )
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise CheckpointError(f"{path}: {name} is not a plain dense tensor", "save it as one")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise CheckpointError(
                f"{path} is damaged: {name} claims shape {tuple(tensor.shape)} over "
                f"{tensor.untyped_storage().nbytes()} bytes",
                "get the file again",
            )
        weights[name] = Stored(tuple(tensor.shape), partial(floats, tensor, name, path))
    return weights


def floats(tensor: torch.Tensor, name: str, path: Path) -> torch.Tensor:
    """`tensor` itself. Raises CheckpointError where its numbers are not plain floating point."""
    if tensor.dtype not in FLOATS:
        raise CheckpointError(
            f"{path}: {name} is stored as {str(tensor.dtype).removeprefix('torch.')}",
            "give weights in float32, float16 or bfloat16",
        )
    return tensor.detach()
