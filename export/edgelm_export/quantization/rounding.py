"""The one way from a matrix to blocks of 8 or 4 bits."""

from __future__ import annotations

from edgelm_export.quantization.activation_stats import ActivationStats
from edgelm_export.quantization.block_layout import Blocks, blocks_of_8_bits
from edgelm_export.quantization.detect_q4 import blocks_on_grid
from edgelm_export.quantization.gptq import gptq_blocks
from edgelm_runtime.arrays import Floats


class Rounding:
    """Makes blocks of matrices, as well as can be done.

    In 4 bits: a matrix that consists of 4-bit blocks already keeps them, any other is rounded by GPTQ with the
    activation statistics `stats`. In 8 bits every weight goes to the nearest level, which costs next to nothing.
    """

    def __init__(self, stats: ActivationStats) -> None:
        self._stats = stats
        self._made: dict[tuple[str, int], Blocks] = {}

    def blocks(self, name: str, matrix: Floats, bits: int, block_size: int) -> Blocks:
        """`matrix` (out, in), called `name`, in blocks of `block_size` inputs. Raises ExportError, see `gptq_blocks`.

        4-bit blocks are made once for each size: a search tries plan after plan, and GPTQ takes its time.
        """
        if bits == 8:
            return blocks_of_8_bits(matrix, block_size)
        key = name, block_size
        if key not in self._made:
            kept = blocks_on_grid(matrix)
            self._made[key] = kept or gptq_blocks(matrix, self._stats.moments(name), block_size, name)
        return self._made[key]
