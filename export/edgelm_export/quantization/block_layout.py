"""Weights in blocks of 8 or 4 bits, laid out as `com.microsoft.MatMulNBits` reads them.

Each block of 32 (or another number of) weights of an output has a scale of its own; 4-bit blocks also have a
zero point, since half a step counts there. Layout:
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.arrays import Floats

CENTRE = 128  # zero point of 8-bit blocks, the operator's default
# Ranges that are tried for each 4-bit block, as shares of the full one: giving up the extremes rounds all
# others more finely. The one of least squared error is taken.
SHARES = (1.0, 0.95, 0.9, 0.85, 0.8)
ROWS_AT_ONCE = 64
LEVELS = 15  # the highest of 4 bits

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
    pooled: bool = False  # the last columns are for the means of each `block_size` inputs

    def matrix(self) -> Floats:
        """The values that the blocks stand for, (out, in)."""
        values = self.packed if self.bits == 8 else unpack(self.packed)
        count = self.scales.shape[1]
        zeros: Floats | int = CENTRE
        if self.zero_points is not None:
            zeros = unpack(self.zero_points)[:, :count, None].astype(np.float32)
        floats = (values.astype(np.float32) - zeros) * self.scales[:, :, None]
        return floats.reshape(len(floats), -1)[:, : self.columns]


def blocks_of_8_bits(matrix: Floats, block_size: int) -> Blocks:
    """`matrix` (out, in) in 8-bit blocks of `block_size` inputs, every weight by itself."""
    blocks = in_blocks(matrix, block_size)
    scales = np.abs(blocks).max(axis=-1) / np.float32(127)
    packed = np.rint(divided(blocks, scales)) + CENTRE
    return Blocks(8, block_size, matrix.shape[1], packed.astype(np.uint8), scales, None)


def blocks_of_4_bits(matrix: Floats, block_size: int) -> Blocks:
    """`matrix` (out, in) in 4-bit blocks of `block_size` inputs, every weight by itself. `gptq.py` does it better."""
    blocks = in_blocks(matrix, block_size)
    scales, zeros = least_error(blocks)
    values = np.clip(np.rint(divided(blocks, scales)) + zeros[..., None], 0, LEVELS).astype(np.uint8)
    return Blocks(4, block_size, matrix.shape[1], pack(values), scales, pack(zeros.astype(np.uint8)))


def in_blocks(matrix: Floats, block_size: int) -> Floats:
    """`matrix` (rows, columns) as (rows, blocks, block_size), the last block filled up with 0."""
    rows, columns = matrix.shape
    count = -(-columns // block_size)
    padded = np.zeros((rows, count * block_size), np.float32)
    padded[:, :columns] = matrix
    return padded.reshape(rows, count, block_size)


def least_error(blocks: Floats, importance: Floats | float = 1.0) -> tuple[Floats, Floats]:
    """Scales and zero points (rows, blocks) of 4-bit blocks; `importance` weighs the squares of errors."""
    if len(blocks) > ROWS_AT_ONCE:
        # Each row by itself, and so many that what is made on the way stays in the processor's cache.
        starts = range(0, len(blocks), ROWS_AT_ONCE)
        parts = [least_error(blocks[start : start + ROWS_AT_ONCE], importance) for start in starts]
        return np.concatenate([scale for scale, _ in parts]), np.concatenate([zero for _, zero in parts])
    low, high = np.minimum(blocks.min(axis=-1), 0), np.maximum(blocks.max(axis=-1), 0)
    best_scale, best_zero = np.zeros_like(low), np.zeros_like(low)
    least = np.full_like(low, np.inf)
    for share in SHARES:
        scale = (high - low) * np.float32(share / LEVELS)
        zero = np.clip(np.rint(divided(-low * np.float32(share), scale)), 0, LEVELS)
        values = np.clip(np.rint(divided(blocks, scale)) + zero[..., None], 0, LEVELS)
        errors = (values - zero[..., None]) * scale[..., None] - blocks
        error = (np.square(errors) * importance).sum(axis=-1)
        better = error < least
        best_scale, best_zero = np.where(better, scale, best_scale), np.where(better, zero, best_zero)
        least = np.where(better, error, least)
    return best_scale, best_zero


def divided(values: Floats, scales: Floats) -> Floats:
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
