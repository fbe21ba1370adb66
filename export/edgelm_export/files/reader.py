"""Reading the graph of a finished model file, to make another of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from edgelm_runtime.model_file.opened import OpenModel


def read_graph(path: Path) -> ir.Model:
    """The graph of the model file `path`, without metadata. Its large weights stay in the file, mapped.

    Links and sidecars are found as at loading. (`ir.load` holds the file in memory, and refuses sidecars with a
    second name.) Raises ModelFileError.
    """
    with OpenModel(path) as file:
        data, folder = file.graph_for_mapping() or (file.in_memory()[0], file.file.path.parent)
        model = ir.from_proto(onnx.load_from_string(data))
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            array = np.memmap(
                folder / tensor.location, tensor.dtype.numpy(), "r", tensor.offset or 0,
                tuple(tensor.shape.numpy()),
            )  # fmt: skip
            value.const_value = ir.tensor(array, dtype=tensor.dtype, name=value.name)
    model.metadata_props.clear()
    return model
