"""Steps that finish a traced graph. Each is an onnx_ir pass and says whether it changed anything."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import (
    ClearMetadataAndDocStringPass,
    IdentityEliminationPass,
    RemoveUnusedNodesPass,
)


class StoreTransposed(ir.passes.InPlacePass):
    """Matrices that are only read through a `Transpose` are stored transposed.

    The new tensor is computed when it is read, so that a large model is never held twice.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for node in list(model.graph):
            if node.op_type != "Transpose":
                continue
            weight, result = node.inputs[0], node.outputs[0]
            if weight is None or not weight.is_initializer() or len(weight.uses()) > 1:
                continue
            if weight.shape is None or len(weight.shape) != 2:
                continue
            name = weight.name
            assert name is not None and weight.const_value is not None
            del model.graph.initializers[name]
            ir.convenience.replace_all_uses_with(result, stored := _transposed(weight.const_value, name))
            model.graph.remove(node, safe=True)
            model.graph.register_initializer(stored)
            modified = True
        return ir.passes.PassResult(model, modified)


def _transposed(tensor: ir.TensorProtocol, name: str) -> ir.Value:
    shape = ir.Shape(tuple(tensor.shape.numpy())[::-1])
    lazy = ir.LazyTensor(
        lambda: ir.tensor(np.ascontiguousarray(tensor.numpy().T), name=name),
        dtype=tensor.dtype, shape=shape, name=name,
    )  # fmt: skip
    return ir.Value(name=name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=lazy)


class NameWeights(ir.passes.InPlacePass):
    """Weights are called what the checkpoint calls them, without the prefix of the traced module."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        prefixed = [v for v in model.graph.initializers.values() if (v.name or "").startswith("model.")]
        for value in prefixed:
            value.name = (value.name or "").removeprefix("model.")
        return ir.passes.PassResult(model, bool(prefixed))


class NameAxes(ir.passes.InPlacePass):
    """Symbols that the tracer made up (s72, s70) become what the interface calls these axes."""

    def __init__(self, names: dict[str, str]) -> None:
        super().__init__()
        self._names = names
        self._symbols = re.compile("|".join(rf"\b{re.escape(symbol)}\b" for symbol in names))

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
        modified = False
        for value in values:
            if value.shape is not None and not value.shape.is_static():
                value.shape = ir.Shape([self._named(size) for size in value.shape])
                modified = True
        return ir.passes.PassResult(model, modified)

    def _named(self, size: int | ir.SymbolicDim) -> int | str:
        if isinstance(size, int):
            return size
        return self._symbols.sub(lambda found: self._names[found[0]], str(size.value))


class DropReshapes(ir.passes.InPlacePass):
    """A reshape of a reshape is one, and one that ends where it began is none.

    They are left between operators that take rows, where PyTorch's heads were laid out and flattened again.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for node in list(model.graph):
            if node.op_type != "Reshape":
                continue
            while (before := _producer(node.inputs[0])) is not None and before.op_type == "Reshape":
                node.replace_input_with(0, before.inputs[0])
                modified = True
            source, result = node.inputs[0], node.outputs[0]
            assert source is not None
            if source.shape is not None and source.shape == result.shape and not result.is_graph_output():
                ir.convenience.replace_all_uses_with(result, source)
                modified = True
        return ir.passes.PassResult(model, modified)


def _producer(value: ir.Value | None) -> ir.Node | None:
    return value.producer() if value is not None else None


class StripTraces(ir.passes.InPlacePass):
    """No paths, stack traces or tool versions of the machine that exported."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        result = ClearMetadataAndDocStringPass()(model)
        model.metadata_props.clear()
        model.graph.metadata_props.clear()
        for value in [*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()]:
            value.metadata_props.clear()
        model.graph.name = "edgelm"
        model.producer_name, model.producer_version, model.doc_string = "edgelm", None, None
        return ir.passes.PassResult(model, result.modified)


def finish(model: ir.Model, axes: dict[str, str]) -> None:
    """All steps in order; `axes` names the tracer's symbols."""
    for step in (
        StoreTransposed(),
        NameWeights(),
        NameAxes(axes),
        IdentityEliminationPass(),
        DropReshapes(),
        RemoveUnusedNodesPass(),
        StripTraces(),
    ):
        step(model)
