"""The one way from a matrix to blocks of 8 or 4 bits."""

from __future__ import annotations

from edgelm_export.progress import Progress, Report, quiet
from edgelm_export.quantization.activation_stats import ActivationStats
from edgelm_export.quantization.block_layout import Blocks, blocks_of_4_bits, blocks_of_8_bits
from edgelm_export.quantization.detect_q4 import blocks_on_grid
from edgelm_export.quantization.gptq import gptq_blocks
from edgelm_runtime.arrays import Floats


class Rounding:
    """Makes blocks of matrices, as well as can be done.

    In 4 bits: a matrix that consists of 4-bit blocks already keeps them, any other is rounded by GPTQ with the
    activation statistics `stats`, or without `fit` to the nearest level. In 8 bits every weight goes to the nearest
    level anyway, which costs next to nothing.
    """

    def __init__(self, stats: ActivationStats, fit: bool = True, report: Report = quiet) -> None:
        self._stats, self._fit, self._report = stats, fit, report
        self._progress: dict[int, Progress] = {}
        self._made: dict[tuple[str, int], Blocks] = {}

    def blocks(self, name: str, matrix: Floats, bits: int, block_size: int) -> Blocks:
        """`matrix` (out, in), called `name`, in blocks of `block_size` inputs. Raises ExportError, see `gptq_blocks`.

        4-bit blocks are made once for each size: a search tries plan after plan, and GPTQ takes its time.
        """
        if bits == 8:
            return blocks_of_8_bits(matrix, block_size)
        key = name, block_size
        if key not in self._made:
            self._made[key] = blocks_on_grid(matrix) or self._rounded(name, matrix, block_size)
            if block_size not in self._progress:
                self._progress[block_size] = Progress(self._report, "rounding", self._stats.matrices)
            self._progress[block_size].step()
        return self._made[key]

    def _rounded(self, name: str, matrix: Floats, block_size: int) -> Blocks:
        if not self._fit:
            return blocks_of_4_bits(matrix, block_size)
        return gptq_blocks(matrix, self._stats.moments(name), block_size, name)
