"""Block-quantised weights for decoding step by step: `com.microsoft.MatMulNBits`, 8 or 4 bits.

One step is bound by the memory traffic of the weights, so small weights win. Each block of 32 (or more)
weights of an output has a scale of its own; 4-bit blocks have a zero point besides, since half a step counts
there. The kernel (`accuracy_level` 4) rounds activations to int8 per row and block, so a token's result does
not depend on its neighbours.

The tied embedding is stored once, in the 8-bit blocks of the head; its rows are unpacked as they are read.
Layout: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edgelm_export.rewriting import MICROSOFT, Builder, Product, constant, drop_unused, products

ACCURACY_LEVEL = 4  # int8 products
CENTRE = 128  # zero point of 8-bit blocks, the operator's default
# Ranges that are tried for each 4-bit block, as shares of the full one: giving up the extremes rounds all
# others more finely. The one of least squared error is taken.
SHARES = (1.0, 0.95, 0.9, 0.85, 0.8)

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Blocks:
    """A matrix (out, in) in the operator's layout. `zero_points` is None where all are CENTRE."""

    bits: int
    block_size: int
    columns: int
    packed: Bytes  # (out, blocks, block_size * bits / 8)
    scales: Floats  # (out, blocks)
    zero_points: Bytes | None  # (out, ceil(blocks / 2)), two in a byte

    def matrix(self) -> Floats:
        """The values that the blocks stand for, (out, in)."""
        values = self.packed if self.bits == 8 else unpack(self.packed)
        count = self.scales.shape[1]
        zeros: Floats | int = CENTRE
        if self.zero_points is not None:
            zeros = unpack(self.zero_points)[:, :count, None].astype(np.float32)
        floats = (values.astype(np.float32) - zeros) * self.scales[:, :, None]
        return floats.reshape(len(floats), -1)[:, : self.columns]


def quantize_blocks(matrix: Floats, bits: int, block_size: int) -> Blocks:
    """`matrix` (out, in) in blocks of `block_size` inputs, 4 or 8 bits each."""
    rows, columns = matrix.shape
    count = -(-columns // block_size)
    padded = np.zeros((rows, count * block_size), np.float32)
    padded[:, :columns] = matrix
    blocks = padded.reshape(rows, count, block_size)
    if bits == 8:
        scales = np.abs(blocks).max(axis=-1) / np.float32(127)
        packed = np.rint(_divided(blocks, scales)) + CENTRE
        return Blocks(8, block_size, columns, packed.astype(np.uint8), scales, None)
    scales, zeros = _least_error(blocks)
    values = np.clip(np.rint(_divided(blocks, scales)) + zeros[..., None], 0, 15).astype(np.uint8)
    return Blocks(4, block_size, columns, pack(values), scales, pack(zeros.astype(np.uint8)))


def _least_error(blocks: Floats) -> tuple[Floats, Floats]:
    """Scales and zero points (rows, blocks) of 4-bit blocks."""
    low, high = np.minimum(blocks.min(axis=-1), 0), np.maximum(blocks.max(axis=-1), 0)
    best_scale, best_zero = np.zeros_like(low), np.zeros_like(low)
    least = np.full_like(low, np.inf)
    for share in SHARES:
        scale = (high - low) * np.float32(share / 15)
        zero = np.clip(np.rint(_divided(-low * np.float32(share), scale)), 0, 15)
        values = np.clip(np.rint(_divided(blocks, scale)) + zero[..., None], 0, 15)
        error = np.square((values - zero[..., None]) * scale[..., None] - blocks).sum(axis=-1)
        better = error < least
        best_scale, best_zero = np.where(better, scale, best_scale), np.where(better, zero, best_zero)
        least = np.minimum(least, error)
    return best_scale, best_zero


def _divided(values: Floats, scales: Floats) -> Floats:
    """`values` over `scales`, whose last axis may lack; 0 where the scale is 0."""
    scales = scales if scales.ndim == values.ndim else scales[..., None]
    quotient: Floats = np.divide(values, scales, out=np.zeros_like(values), where=scales > 0)
    return quotient


def pack(values: Bytes) -> Bytes:
    """Numbers below 16 as bytes, the first of each two in the low half; an odd last axis is filled with 0."""
    if values.shape[-1] % 2:
        values = np.concatenate([values, np.zeros_like(values[..., :1])], axis=-1)
    low, high = values[..., 0::2], values[..., 1::2]
    return low | np.left_shift(high, 4, dtype=np.uint8)


def unpack(packed: Bytes) -> Bytes:
    """The inverse of `pack`."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


class BlockQuantized(ir.passes.InPlacePass):
    """Products become `MatMulNBits`. `bits` says for a weight's name 4, 8, or 0 to leave it."""

    def __init__(self, bits: Callable[[str], int], block_size: int) -> None:
        super().__init__()
        self._bits, self._block_size = bits, block_size

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for product in products(model.graph):
            # The embedding reads rows of the head, and rows of 4 bits would cost it too much.
            bits = self._bits(product.name)
            if bits:
                _rewrite(model.graph, product, quantize_blocks(product.matrix(), bits, self._block_size))
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
    result = build.add(
        "MatMulNBits", [product.node.inputs[0], *stored[:2], zero_points, None, product.bias], MICROSOFT,
        K=blocks.columns, N=len(blocks.packed), bits=blocks.bits, block_size=blocks.block_size,
        accuracy_level=ACCURACY_LEVEL,
    )  # fmt: skip
    build.replace(result)


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
