"""Small tools for graph passes: find matrix products, put new nodes in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edgelm_runtime.errors import OptionError

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Product:
    """`x @ weight`, with the weight a matrix of the file: a `MatMul`, or the head's `Gemm` (transposed)."""

    node: ir.Node
    weight: ir.Value
    transposed: bool

    @property
    def name(self) -> str:
        """What the checkpoint calls the weight."""
        return self.weight.name or ""

    @property
    def tied(self) -> bool:
        """Whether something else reads the matrix too: the token embedding."""
        return len(self.weight.uses()) > 1

    @property
    def bias(self) -> ir.Value | None:
        """The bias of a `Gemm`."""
        return self.node.inputs[2] if len(self.node.inputs) > 2 else None

    @property
    def width(self) -> int:
        """Input features."""
        assert self.weight.const_value is not None
        return int(self.weight.const_value.shape.numpy()[1 if self.transposed else 0])

    def matrix(self) -> NDArray[np.float32]:
        """The weight as (out, in)."""
        assert self.weight.const_value is not None
        array = self.weight.const_value.numpy()
        return array if self.transposed else array.T


def products(graph: ir.Graph) -> list[Product]:
    """All products with a float matrix of the file, in order."""
    found = []
    for node in graph:
        if node.op_type not in ("MatMul", "Gemm") or node.domain:
            continue
        weight = node.inputs[1]
        if weight is None or weight.const_value is None or len(weight.const_value.shape) != 2:
            continue
        if weight.const_value.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
            found.append(Product(node, weight, node.op_type == "Gemm"))
    return found


class Builder:
    """Makes nodes that go in before `place`. Constants of the same name are made once."""

    def __init__(self, graph: ir.Graph, place: ir.Node, prefix: str) -> None:
        self._graph, self._place, self._prefix = graph, place, prefix
        self._count = 0

    def constant(self, name: str, array: NDArray[Any] | np.generic) -> ir.Value:
        """An initializer called `name`."""
        if name not in self._graph.initializers:
            self._graph.register_initializer(constant(name, array))
        return self._graph.initializers[name]

    def add(
        self, op_type: str, inputs: Sequence[ir.Value | None], domain: str = "", **attributes: Any
    ) -> ir.Value:
        """A node with one output."""
        return self.add_many(op_type, inputs, 1, domain, attributes)[0]

    def add_many(
        self, op_type: str, inputs: Sequence[ir.Value | None], count: int, domain: str,
        attributes: Mapping[str, Any],
    ) -> Sequence[ir.Value]:  # fmt: skip
        node = ir.node(op_type, inputs, attributes, domain=domain, num_outputs=count)
        self._count += 1
        node.name = f"{self._prefix}/{self._count}.{op_type}"
        for index, value in enumerate(node.outputs):
            value.name = f"{node.name}:{index}"
        self._graph.insert_before(self._place, node)
        return node.outputs

    def replace(self, result: ir.Value) -> None:
        """`result` takes the place of the output of the node that everything was put in front of."""
        old = self._place.outputs[0]
        result.shape, result.type = old.shape, old.type
        ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
        self._graph.remove(self._place, safe=True)


def constant(name: str, array: NDArray[Any] | np.generic) -> ir.Value:
    """A named value that holds `array`, to be registered as an initializer."""
    tensor = ir.tensor(np.asarray(array), name=name)
    return ir.Value(
        name=name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype), const_value=tensor
    )


def drop_unused(graph: ir.Graph) -> None:
    """Remove initializers that nothing reads any more, except those that are inputs."""
    for name, value in list(graph.initializers.items()):
        if not value.uses() and value not in graph.inputs:
            del graph.initializers[name]


def refuse_standard_cache(model: ir.Model) -> None:
    """Raise OptionError where `model` has these operators: what rounds activations is made for the other one."""
    if any(node.op_type == "TensorScatter" for node in model.graph):
        raise OptionError(
            "this file has a cache for cuda, which int8 and int4 files cannot have",
            "quantise one that was exported with --target cpu, or choose fp16",
        )
