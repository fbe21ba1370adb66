"""Fewer, larger nodes for step-by-step decoding, with operators of `com.microsoft`.

A step computes one row, and a node costs about 2 us whatever it does: with thirty layers that is what
remains to be saved. Whole-window graphs stay with standard operators; there the gain does not show.
"""

from __future__ import annotations

import onnx_ir as ir

from edgelm_export.passes.builder import MICROSOFT

NORMS = {
    "RMSNormalization": "SkipSimplifiedLayerNormalization",
    "LayerNormalization": "SkipLayerNormalization",
}


class PackQueryKeyValue(ir.passes.InPlacePass):
    """`GroupQueryAttention` takes query, key and value as they leave their common matrix."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for node in model.graph:
            if node.op_type != "GroupQueryAttention":
                continue
            split = node.inputs[0].producer() if node.inputs[0] is not None else None
            if split is None or split.op_type != "Split" or list(node.inputs[:3]) != list(split.outputs):
                continue
            for index, value in enumerate((split.inputs[0], None, None)):
                node.replace_input_with(index, value)
            modified = True
        return ir.passes.PassResult(model, modified)


class FuseSumAndNorm(ir.passes.InPlacePass):
    """A residual sum and the norm that reads it become one node that gives both, a bias included."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for node in list(model.graph):
            total = node.inputs[0] if node.op_type in NORMS else None
            add = total.producer() if total is not None else None
            if add is not None and add.op_type == "Add" and _same_shapes(add):
                _fuse(model.graph, add, node)
                modified = True
        return ir.passes.PassResult(model, modified)


def _same_shapes(add: ir.Node) -> bool:
    left, right = (value.shape if value is not None else None for value in add.inputs)
    return left is not None and left == right and not add.outputs[0].is_graph_output()


def _fuse(graph: ir.Graph, add: ir.Node, norm: ir.Node) -> None:
    residual, update = add.inputs
    assert update is not None
    bias = None
    biased = update.producer()
    if (
        biased is not None
        and biased.op_type == "Add"
        and len(update.uses()) == 1
        and _is_vector(biased.inputs[1])
    ):
        update, bias = biased.inputs
    weights = list(norm.inputs[1:])
    if norm.op_type == "LayerNormalization" and len(weights) == 1:
        weights.append(None)
    inputs = [residual, update, *weights, *([bias] if bias is not None else [])]
    fused = ir.node(
        NORMS[norm.op_type], inputs, {"epsilon": norm.attributes["epsilon"].as_float()},
        domain=MICROSOFT, num_outputs=4, name=f"{norm.name}/fused",
    )  # fmt: skip
    for index, old in ((0, norm.outputs[0]), (3, add.outputs[0])):
        new = fused.outputs[index]
        # The name goes along: the last norm's may be an output of the graph.
        new.name, old.name = old.name, None
        new.shape, new.type = old.shape, old.type
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    for index in (1, 2):
        fused.outputs[index].name = ""
    graph.insert_before(norm, fused)
    graph.remove(norm, safe=True)
    graph.remove(add, safe=True)


def _is_vector(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is not None and len(value.const_value.shape) == 1
