"""Weights that are 4-bit blocks already, as those of GGUF's Q4_0 and Q4_1, found again in float32 and kept.

In such a matrix each 32 inputs of an output lie on a grid of 16 levels, low + step * q; a match by accident is
out of the question. Quantising them a second time would round them again: the perplexity of SmolLM2 in Q4_1
went from 14.9 to 18.1. So q and step are kept as they are. `MatMulNBits` has no minima but integer zero
points z, w = step * (q - z) + rest; the rest (up to half a step, none for Q4_0) times the sum of the 32 inputs
goes into further 4-bit columns, whose inputs are the means of the blocks (README.md has the measurements).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelm_export.quantization.block_layout import LEVELS, Blocks, Bytes, divided, in_blocks, pack
from edgelm_runtime.arrays import Floats

GRID_BLOCK = 32
# How far from its level a weight may be, in steps: float32 keeps seven digits, and a grid is rarely more
# than a hundred steps away from zero.
TOLERANCE = 2e-3
NEGLIGIBLE = 1e-3  # of a step: a rest below that is the rounding of float32
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Grid:
    """`low + step * values` are the weights: (rows, blocks), (rows, blocks), (rows, blocks, 32)."""

    low: Floats
    step: Floats
    values: Bytes


def blocks_on_grid(matrix: Floats) -> Blocks | None:
    """The 4-bit blocks that `matrix` (out, in) consists of, or None where it does not."""
    if matrix.shape[1] % GRID_BLOCK:
        return None
    grids = []
    for start in range(0, len(matrix), ROWS_AT_ONCE):
        grid = _find_grid(matrix[start : start + ROWS_AT_ONCE])
        if grid is None:
            return None
        grids.append(grid)
    low, step, values = (
        np.concatenate([getattr(grid, part) for grid in grids]) for part in ("low", "step", "values")
    )
    return _as_blocks(Grid(low, step, values), matrix.shape[1])


def _find_grid(matrix: Floats) -> Grid | None:
    blocks = matrix.reshape(len(matrix), -1, GRID_BLOCK)
    low, high = blocks.min(axis=-1), blocks.max(axis=-1)
    # Blocks of one value only: one step away from zero.
    flat = high == low
    step = np.where(flat, np.abs(low), 0).astype(np.float32)
    values = np.zeros(blocks.shape, np.uint8)
    values[flat] = (low[flat] > 0)[:, None]
    low = np.where(flat, np.minimum(low, 0), low)
    left = np.argwhere(~flat)
    for steps in range(LEVELS, 0, -1):
        if not len(left):
            break
        at = tuple(left.T)
        size = (high[at] - low[at]) / np.float32(steps)
        exact = (blocks[at] - low[at][:, None]) / size[:, None]
        whole = np.rint(exact)
        fits = np.abs(exact - whole).max(axis=-1) < TOLERANCE
        if steps == LEVELS and fits.mean() < 0.5:
            return None  # most blocks of a real grid use all levels
        found = tuple(left[fits].T)
        step[found], values[found] = size[fits], whole[fits].astype(np.uint8)
        left = left[~fits]
    return Grid(low, step, values) if not len(left) else None


def _as_blocks(grid: Grid, columns: int) -> Blocks:
    zeros: Floats = np.clip(np.rint(divided(-grid.low, grid.step)), 0, LEVELS)
    rest: Floats = grid.low + zeros * grid.step
    rest[np.abs(rest) <= NEGLIGIBLE * grid.step] = 0
    packed, scales, points = pack(grid.values), grid.step, zeros.astype(np.uint8)
    if not rest.any():
        return Blocks(4, GRID_BLOCK, columns, packed, scales, pack(points))
    further = _symmetric(rest * np.float32(GRID_BLOCK))
    return Blocks(
        4, GRID_BLOCK, columns + rest.shape[1],
        np.concatenate([packed, pack(further.values)], axis=1),
        np.concatenate([scales, further.step], axis=1),
        pack(np.concatenate([points, np.full(further.step.shape, 8, np.uint8)], axis=1)),
        pooled=True,
    )  # fmt: skip


def _symmetric(rest: Floats) -> Grid:
    """`rest` (rows, n) in 4-bit blocks around 8."""
    blocks = in_blocks(rest, GRID_BLOCK)
    step = np.abs(blocks).max(axis=-1) / np.float32(7)
    return Grid(-8 * step, step, (np.rint(divided(blocks, step)) + 8).astype(np.uint8))
