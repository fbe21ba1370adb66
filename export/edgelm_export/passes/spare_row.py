"""Attention over a float32 cache that computes one row as it computes many, for graphs that round activations.

onnxruntime multiplies a single row by another kernel than several, so a step of one token differs from the
same token in a longer pass in the last bit. In float32 that is all; where activations are rounded to int8,
layer after layer turns it into differences as large as the rounding itself (SmolLM2 in 4 bits: 0.9 in the
logits), and recomputing, caching and lookup would write different texts. With a row of zeros after the new
ones there are always several. It goes into the cache after the last valid position, where nothing is read,
and its result is cut off. Measured: 4% of a step of SmolLM2.

The price is in the contract (README.md): one position more in the buffers, and rows with a past go alone.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import TopologicalSortPass

from edgelm_export.passes.builder import Builder, constant, refuse_standard_cache
from edgelm_runtime.errors import OptionError
from edgelm_runtime.model_file.interface import CAPACITY

SPARE = 1  # positions that a cache needs beyond its tokens
SPARE_NAME = "spare_row.size"


class SpareRow(ir.passes.InPlacePass):
    """Give each `GroupQueryAttention` a further row and take it off again."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        refuse_standard_cache(model)
        graph = model.graph
        nodes = [node for node in graph if node.op_type == "GroupQueryAttention"]
        if any(value.shape is not None and CAPACITY in map(str, value.shape) for value in graph.inputs):
            raise OptionError(
                "a file with convolutions is to keep its cache in fp32 next to quantised weights",
                "leave --cache-dtype out",
            )
        if not nodes:
            return ir.passes.PassResult(model, False)
        build = Builder(graph, nodes[0], "spare_row")
        spare = build.constant(SPARE_NAME, np.int32(SPARE))
        lengths = [build.add("Add", [nodes[0].inputs[index], spare]) for index in (5, 6)]
        tables: dict[ir.Value, ir.Value] = {}
        for node in nodes:
            for index, value in zip((5, 6), lengths, strict=True):
                node.replace_input_with(index, value)
            for index, table in enumerate(node.inputs[7:9], start=7):
                if table is not None:
                    node.replace_input_with(index, _longer_table(graph, tables, table))
            _widen(graph, node)
        TopologicalSortPass()(model)
        return ir.passes.PassResult(model, True)


def _longer_table(graph: ir.Graph, tables: dict[ir.Value, ir.Value], table: ir.Value) -> ir.Value:
    """A table of cosines or sines (context, n) with a row of zeros for the spare position."""
    if table not in tables:
        assert table.const_value is not None and table.name is not None
        rows = np.pad(table.const_value.numpy(), ((0, SPARE), (0, 0)))
        tables[table] = constant(f"{table.name}.spare_row", rows)
        graph.register_initializer(tables[table])
    return tables[table]


def _widen(graph: ir.Graph, node: ir.Node) -> None:
    """Add a row of zeros to what `node` is fed, and cut its result off."""
    build = Builder(graph, node, f"{node.name}/spare_row")
    pads = build.constant("spare_row.pads", np.array([0, 0, 0, 0, SPARE, 0]))
    for index, value in enumerate(node.inputs[:3]):
        if value is not None:
            node.replace_input_with(index, build.add("Pad", [value, pads]))
    result = node.outputs[0]
    users = list(result.uses())
    assert result.shape is not None
    shape, result.shape = result.shape, ir.Shape([result.shape[0], "rows_and_spare", result.shape[2]])
    bounds = [build.constant(f"spare_row.{at}", np.array([at])) for at in (0, -SPARE, 1)]
    cut = ir.node("Slice", [result, *bounds], name=f"{node.name}/spare_row/Slice")
    cut.outputs[0].name, cut.outputs[0].shape, cut.outputs[0].type = f"{cut.name}:0", shape, result.type
    graph.insert_after(node, cut)
    for user, index in users:
        user.replace_input_with(index, cut.outputs[0])
