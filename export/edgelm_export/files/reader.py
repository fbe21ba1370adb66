"""Reading a written model file, to make another of it or to try it."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import onnx_ir as ir

from edgelm_runtime.engine.session import Session
from edgelm_runtime.model_file.opened import OpenModel

LARGE = 1 << 30  # bytes of a file whose weights are too large to be held twice


def read_graph(path: Path) -> ir.Model:
    """The graph of the model file `path`, without metadata. Its large weights stay in the file, and are read (not
    mapped: those pages would stay in memory) when they are asked for.

    Links and sidecars are found as at loading. (`ir.load` holds the file in memory, and refuses sidecars with a
    second name.) Raises ModelFileError.
    """
    with OpenModel(path) as file:
        data, folder = file.graph_for_mapping() or (file.in_memory()[0], file.file.path.parent)
        model = ir.from_proto(onnx.load_from_string(data))
    opened: dict[str, BinaryIO] = {}
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            name = str(tensor.location)
            if name not in opened:
                opened[name] = (folder / name).open("rb")
            value.const_value = _stored(tensor, opened[name])
    model.metadata_props.clear()
    return model


def _stored(tensor: ir.ExternalTensor, file: BinaryIO) -> ir.LazyTensor:
    shape = tuple(tensor.shape.numpy())

    def read() -> ir.TensorProtocol:
        array = np.empty(shape, tensor.dtype.numpy())
        file.seek(tensor.offset or 0)
        file.readinto(array.reshape(-1).view(np.uint8))  # type: ignore[attr-defined]
        return ir.tensor(array, dtype=tensor.dtype, name=tensor.name)

    return ir.LazyTensor(read, dtype=tensor.dtype, shape=ir.Shape(shape), name=tensor.name)


def open_session(path: Path, optimize: bool = True) -> Session:
    """A session on the CPU, which for a LARGE file takes no memory beside what it maps: it is slower then."""
    with OpenModel(path) as file:
        large = file.size > LARGE
    return Session(path, "cpu", optimize=optimize, as_stored=large)
