"""4-bit blocks whose rounding makes up for itself: GPTQ (Frantar et al. 2022, https://arxiv.org/abs/2210.17323).

Rounding each weight w to the nearest level makes |W - Q| small. What counts is the product's output on the
inputs x that occur, E|(W - Q) x|^2 = sum of (W - Q) H (W - Q)' with H = E[x x'], and features are correlated: a
later column can take back what an earlier one got wrong. Columns are rounded one after the other, each after
the error of those before it has been added as far as they predict it. With H = U D U', U unit upper triangular:

    q_j = round(w_j + sum over i < j of (w_i - q_i) U_ij)

which is GPTQ without the inverse of H (the two are equal: Chee et al. 2023, https://arxiv.org/abs/2307.13304).

Choices, with the perplexity of SmolLM2-135M in blocks of 64 (2026-11-29; nearest level: +36.7%): scales and zero
points are fixed beforehand, of least error weighted by H's diagonal (+13.2%; unweighted +16.1%), so that columns
can go by falling diagonal, the important ones first and free of others' errors (in their own order +23.3%, and
+25.7% with scales fixed when their block's turn comes).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgelm_export.quantization.block_layout import (
    LEVELS,
    Blocks,
    Bytes,
    divided,
    in_blocks,
    least_error,
    pack,
)
from edgelm_runtime.arrays import Floats
from edgelm_runtime.errors import ExportError

# Shares of the mean diagonal that are added to the diagonal until the factorisation succeeds. Some is needed
# in any case: the text is short, and what it does not show must not count for nothing.
DAMPING = (0.01, 0.1, 1.0)
ROWS_AT_ONCE = 1024
COLUMNS_AT_ONCE = 64  # errors of earlier columns come by one matrix product for so many


def gptq_blocks(matrix: Floats, moments: Floats, block_size: int, name: str) -> Blocks:
    """`matrix` (out, in) in 4-bit blocks of `block_size` inputs, for inputs of second moments `moments` (in, in).

    Raises ExportError, with `name` in it, where the moments cannot be factorised.
    """
    columns = matrix.shape[1]
    # Important columns first: they take over the fewest errors of others.
    order = np.argsort(-moments.diagonal(), kind="stable")
    feedback, damped = _factor(moments[np.ix_(order, order)], name)
    importance = np.empty(columns, np.float32)
    importance[order] = damped
    weights_of_errors = in_blocks(importance[None], block_size)

    def rounded(start: int) -> tuple[Bytes, Floats, Floats]:
        rows = matrix[start : start + ROWS_AT_ONCE]
        # Scales belong to blocks of adjacent columns, whatever the order that columns are rounded in: so they are
        # chosen before, for the unrounded weights.
        blocks = in_blocks(rows, block_size)
        scales, zeros = least_error(blocks, weights_of_errors)
        # Filled with zero points first: that is the value 0, for what fills up the last block.
        values = np.tile(zeros[..., None], block_size).astype(np.uint8).reshape(len(rows), -1)
        values[:, order] = _round_columns(
            np.ascontiguousarray(rows.T[order]), feedback, order // block_size, scales.T, zeros.T
        ).T
        return pack(values.reshape(blocks.shape)), scales, zeros

    # Outputs have nothing to do with each other, so a few at a time give the same in less memory. (In two threads, with
    # NumPy's own products: a fifth faster at 3072 x 1024, no faster at 8192 x 2048; 2026-12-01.)
    parts = [rounded(start) for start in range(0, len(matrix), ROWS_AT_ONCE)]
    packed, scales, zeros = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Blocks(4, block_size, columns, packed, scales, pack(zeros.astype(np.uint8)))


def _factor(moments: Floats, name: str) -> tuple[Floats, Floats]:
    """U - 1 (in, in) of H = U D U', and the diagonal (in,) of H, which is `moments` damped."""
    if not np.isfinite(moments).all():
        raise ExportError(
            f"the inputs of {name} are not finite on the text that rounding is fitted on",
            "check the checkpoint, or choose --dtype int8",
        )
    for share in DAMPING:
        damped = moments.astype(np.float64)
        # Where the input is always 0, the least that can be divided by.
        damped[np.diag_indices_from(damped)] += share * moments.diagonal().mean() + np.finfo(np.float32).tiny
        try:
            # Cholesky gives lower triangles; that of the matrix read backwards is the upper one.
            upper = np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]
        except np.linalg.LinAlgError:
            continue
        unit: NDArray[np.float64] = np.triu(upper / upper.diagonal(), 1)
        return unit.astype(np.float32), damped.diagonal().astype(np.float32)
    raise ExportError(
        f"the second moments of the inputs of {name} cannot be factorised, even with {DAMPING[-1]:g} of their mean "
        "added to the diagonal",
        "check the checkpoint, or choose --dtype int8",
    )


def _round_columns(
    columns: Floats, feedback: Floats, block_of: NDArray[np.intp], scales: Floats, zeros: Floats
) -> Bytes:
    """Levels (in, out) for `columns` (in, out), one at a time, by the scales and zero points (blocks, out)."""
    # The feedback of all columns before is a triangular product. It is taken in two parts: that of the columns before
    # this group for the whole group at once, a large and fast product, and that within the group column by column.
    errors, levels = np.zeros_like(columns), np.empty(columns.shape, np.uint8)
    for start in range(0, len(columns), COLUMNS_AT_ONCE):
        part = slice(start, start + COLUMNS_AT_ONCE)
        targets = columns[part] + feedback[:start, part].T @ errors[:start]
        for at, target in enumerate(targets, start):
            scale, zero = scales[block_of[at]], zeros[block_of[at]]
            wanted = target + feedback[start:at, at] @ errors[start:at]
            level = np.clip(np.rint(divided(wanted, scale)) + zero, 0, LEVELS)
            errors[at] = columns[at] - (level - zero) * scale
            levels[at] = level
    return levels
