"""Products with block-quantised weights, `com.microsoft.MatMulNBits`, for decoding step by step.

One step is bound by the memory traffic of the weights, so small weights win. The kernel (`accuracy_level` 4)
rounds activations to int8 per row and block, so a token's result does not depend on its neighbours.

The tied embedding is stored once, in the 8-bit blocks of the head; its rows are unpacked as they are read.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from edgelm_export.passes.builder import MICROSOFT, Builder, Product, constant, drop_unused, products
from edgelm_export.quantization.block_layout import CENTRE, Blocks
from edgelm_export.quantization.rounding import Rounding

ACCURACY_LEVEL = 4  # int8 products


class BlockQuantized(ir.passes.InPlacePass):
    """Products whose weights have 4 or 8 `bits`, by name, become `MatMulNBits`; others are left."""

    def __init__(self, bits: Mapping[str, int], block_size: int, rounding: Rounding) -> None:
        super().__init__()
        self._bits, self._block_size, self._rounding = bits, block_size, rounding

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for product in products(model.graph):
            bits = self._bits[product.name]
            if bits <= 8:
                blocks = self._rounding.blocks(product.name, product.matrix(), bits, self._block_size)
                _rewrite(model.graph, product, blocks)
                modified = True
        if modified:
            model.opset_imports[MICROSOFT] = 1
            drop_unused(model.graph)
        return ir.passes.PassResult(model, modified)


def _rewrite(graph: ir.Graph, product: Product, blocks: Blocks) -> None:
    name = f"{product.name}.int{blocks.bits}"
    stored = [constant(name, blocks.packed), constant(f"{name}.scales", blocks.scales)]
    if blocks.zero_points is not None:
        stored.append(constant(f"{name}.zero_points", blocks.zero_points))
    for value in stored:
        graph.register_initializer(value)
    for node, _ in product.weight.uses():
        if node.op_type == "Gather":
            _unpack_rows(graph, node, product.name, blocks, stored[0], stored[1])
    build = Builder(graph, product.node, product.name)
    zero_points = stored[2] if len(stored) > 2 else None
    x = product.node.inputs[0]
    if blocks.pooled:
        x = _with_means(build, x, blocks.block_size)
    result = build.add(
        "MatMulNBits", [x, *stored[:2], zero_points, None, product.bias], MICROSOFT,
        K=blocks.columns, N=len(blocks.packed), bits=blocks.bits, block_size=blocks.block_size,
        accuracy_level=ACCURACY_LEVEL,
    )  # fmt: skip
    build.replace(result)


def _with_means(build: Builder, x: ir.Value | None, size: int) -> ir.Value:
    """`x` (..., in) followed by the means of each `size` inputs. (`AveragePool` takes 3 to 17 times as long.)"""
    assert x is not None and x.shape is not None and isinstance(x.shape[-1], int)
    shape = [0] * (len(x.shape) - 1) + [x.shape[-1] // size, size]  # 0 keeps an axis as it is
    parts = build.add("Reshape", [x, build.constant(f"blocks.{len(shape)}_{shape[-2]}", np.array(shape))])
    last = build.constant("blocks.last_axis", np.array([-1]))
    return build.add("Concat", [x, build.add("ReduceMean", [parts, last], keepdims=0)], axis=-1)


def _unpack_rows(
    graph: ir.Graph, gather: ir.Node, name: str, blocks: Blocks, packed: ir.Value, scales: ir.Value
) -> None:
    """Make the embedding's `Gather` read 8-bit blocks (vocab, blocks, block_size)."""
    build = Builder(graph, gather, f"{name}.rows")
    ids = gather.inputs[1]
    values = build.add("Cast", [build.add("Gather", [packed, ids])], to=ir.DataType.FLOAT)
    values = build.add("Sub", [values, build.constant("blocks.centre", np.float32(CENTRE))])
    last = build.constant("blocks.last_axis", np.array([-1]))
    values = build.add("Mul", [values, build.add("Unsqueeze", [build.add("Gather", [scales, ids]), last])])
    # 0 keeps batch and sequence as they are.
    width = blocks.scales.shape[1] * blocks.block_size
    values = build.add("Reshape", [values, build.constant("blocks.rows", np.array([0, 0, width]))])
    if width != blocks.columns:
        start, end = (build.constant(f"blocks.{at}", np.array([at])) for at in (0, blocks.columns))
        values = build.add("Slice", [values, start, end, last])
    build.replace(values)
