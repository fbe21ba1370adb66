"""Experts in blocks of 8 or 4 bits: `com.microsoft.QMoE` in the place of `MoE` (`tracing/experts.py`).

The layout of a matrix is that of `MatMulNBits`, and so is the kernel since onnxruntime 1.31: `accuracy_level` 4 rounds
activations to int8 by row and block. Older versions know no such attribute and unpack the weights at every step (71 ms
where 1.31 takes 0.7: 64 experts, 8 for each token, width 1024, 512 features), so these files want 1.31.

Each weight goes to the nearest level: what an expert's second matrix is fed is nowhere in the graph, so that GPTQ has
nothing to be fitted to. A matrix that consists of 4-bit blocks already is kept. Widths that blocks do not divide are
filled up with zeros, to two blocks at least, since a single one has its zero points elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from edgelm_export.passes.builder import MICROSOFT, Builder, drop_unused
from edgelm_export.quantization.block_layout import Blocks, blocks_of_4_bits, blocks_of_8_bits
from edgelm_export.quantization.block_matmul import ACCURACY_LEVEL
from edgelm_export.quantization.detect_q4 import GRID_BLOCK, blocks_on_grid
from edgelm_runtime.arrays import Floats

UP, DOWN = 2, 4  # where the operator has its matrices
DEFAULT_BLOCK = 32


def expert_matrices(graph: ir.Graph) -> list[str]:
    """The names of the matrices of experts, two for each layer that has some."""
    return [_name(node, index) for node in _nodes(graph) for index in (UP, DOWN)]


class QuantizedExperts(ir.passes.InPlacePass):
    """Experts whose matrices have 4 or 8 `bits`, by name, become `QMoE`. Both of a layer get the larger number."""

    def __init__(self, bits: Mapping[str, int], block_size: int) -> None:
        super().__init__()
        self._bits, self._block_size = bits, block_size or DEFAULT_BLOCK

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for node in _nodes(model.graph):
            bits = max(self._bits[_name(node, index)] for index in (UP, DOWN))
            if bits <= 8:
                _rewrite(model.graph, node, bits, self._block_size)
                modified = True
        drop_unused(model.graph)
        return ir.passes.PassResult(model, modified)


def _nodes(graph: ir.Graph) -> list[ir.Node]:
    return [node for node in graph if node.op_type == "MoE"]


def _name(node: ir.Node, index: int) -> str:
    value = node.inputs[index]
    assert value is not None and value.name is not None
    return value.name


def _rewrite(graph: ir.Graph, node: ir.Node, bits: int, block_size: int) -> None:
    build = Builder(graph, node, _name(node, UP))
    up, down = (_matrices(node, index) for index in (UP, DOWN))
    # Features that blocks lack: of the input, and inside the expert (rows of zeros give zeros).
    outer, inner = (_lacking(matrices.shape[-1], block_size) for matrices in (up, down))
    stored = [
        _stored(build, _name(node, UP), np.pad(up, ((0, 0), (0, 2 * inner), (0, outer))), bits, block_size),
        _stored(build, _name(node, DOWN), np.pad(down, ((0, 0), (0, outer), (0, inner))), bits, block_size),
    ]
    x = node.inputs[0]
    if outer:
        x = build.add("Pad", [x, build.constant(f"experts.{outer}", np.array([0, 0, 0, 0, 0, outer]))])
    (up_values, up_scales, up_points), (down_values, down_scales, down_points) = stored
    further: list[ir.Value | None] = [None, None, None, None, up_points, down_points] if bits == 4 else []
    result = build.add(
        "QMoE", [x, node.inputs[1], up_values, up_scales, None, down_values, down_scales, *further], MICROSOFT,
        expert_weight_bits=bits, block_size=block_size, accuracy_level=ACCURACY_LEVEL,
        **{name: value.value for name, value in node.attributes.items()},
    )  # fmt: skip
    if outer:
        bounds = [build.constant(f"experts.{at}", np.array([at])) for at in (0, down.shape[1], -1)]
        result = build.add("Slice", [result, *bounds])
    build.replace(result)


def _matrices(node: ir.Node, index: int) -> Floats:
    """(experts, out, in)."""
    value = node.inputs[index]
    assert value is not None and value.const_value is not None
    return value.const_value.numpy()


def _lacking(features: int, block_size: int) -> int:
    return max(2, -(-features // block_size)) * block_size - features


def _stored(
    build: Builder, name: str, matrices: Floats, bits: int, block_size: int
) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """The initializers of values (experts, out, bytes), scales and zero points of `matrices`."""
    made = [_blocks(matrix, bits, block_size) for matrix in matrices]
    name = f"{name}.int{bits}"
    values = build.constant(
        name, np.stack([blocks.packed.reshape(len(blocks.packed), -1) for blocks in made])
    )
    scales = build.constant(f"{name}.scales", np.stack([blocks.scales for blocks in made]))
    points = [blocks.zero_points for blocks in made if blocks.zero_points is not None]
    return values, scales, build.constant(f"{name}.zero_points", np.stack(points)) if points else None


def _blocks(matrix: Floats, bits: int, block_size: int) -> Blocks:
    if bits == 8:
        return blocks_of_8_bits(matrix, block_size)
    kept = blocks_on_grid(matrix) if block_size == GRID_BLOCK else None
    return kept if kept is not None and not kept.pooled else blocks_of_4_bits(matrix, block_size)
