"""Half-size files: float16 weights that the graph turns back into float32.

onnxruntime folds the casts when it loads the file, so it runs exactly as fast as in float32, with an error
of the weights of at most 2^-11. Arithmetic in float16 would not pay: on most processors onnxruntime has no
float16 kernels, and puts casts around every operator instead.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from edgelm_export.passes.builder import constant
from edgelm_runtime.errors import ExportError

LARGEST = 65504
FROM_SIZE = 512  # elements; below, a cast costs more than it saves


class Float16Weights(ir.passes.InPlacePass):
    """Store float32 weights as float16: all of some size, or those named in `only`.

    Raises ExportError that names a weight whose values do not fit.
    """

    def __init__(self, only: Collection[str] | None = None) -> None:
        super().__init__()
        self._only = only

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        graph = model.graph
        chosen = [value for value in graph.initializers.values() if self._wanted(value)]
        for value in chosen:
            _store_half(graph, value)
        return ir.passes.PassResult(model, bool(chosen))

    def _wanted(self, value: ir.Value) -> bool:
        tensor = value.const_value
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or tensor.size < FROM_SIZE:
            return False
        return self._only is None or value.name in self._only


def _store_half(graph: ir.Graph, value: ir.Value) -> None:
    assert value.const_value is not None and value.name is not None
    array = value.const_value.numpy()
    largest = float(np.abs(array).max())
    if largest > LARGEST:
        raise ExportError(
            f"the weight {value.name} holds {largest:.3g}, and float16 ends at {LARGEST}", "use --dtype fp32"
        )
    half = constant(f"{value.name}.fp16", array.astype(np.float16))
    graph.register_initializer(half)
    cast = ir.node("Cast", [half], {"to": ir.DataType.FLOAT}, name=f"{value.name}/Cast")
    cast.outputs[0].name = f"{value.name}/Cast:0"
    cast.outputs[0].shape, cast.outputs[0].type = value.shape, value.type
    graph.insert_before(graph[0], cast)
    ir.convenience.replace_all_uses_with(value, cast.outputs[0])
    del graph.initializers[value.name]
