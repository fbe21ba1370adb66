"""Statistics of the activations: what a float32 graph computes while it reads the calibration text.

For the inputs x of each product: the size of each feature (for `smoothing.py`), and the second moments E[x x'] (for
`gptq.py`); for the cache, how large keys and values become (for `int8_kv_cache.py`). The graph is run in segments of a
few layers. Moments are matrices as wide as the input; those of one segment are held at a time, so whoever asks for
them in the order of the graph has each layer run once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from edgelm_export.files.reader import read_graph
from edgelm_export.files.segments import Arrays, Segments
from edgelm_export.passes.builder import products
from edgelm_export.progress import Progress, Report, quiet
from edgelm_export.quantization.int8_kv_cache import Ranges, widen
from edgelm_runtime.arrays import Floats
from edgelm_runtime.model_file.interface import PRESENT

ROWS_AT_ONCE = 2048  # whose moments are one product


class ActivationStats:
    """Statistics of the float32 model file `path`, each gathered when it is first asked for.

    `texts` gives what the graph is fed for each window of the calibration text. The first `rotary_dim` features of a
    key are turned by its position.
    """

    def __init__(
        self, path: Path, texts: Callable[[], list[Arrays]], rotary_dim: int = 0, report: Report = quiet
    ) -> None:
        self._segments, self._texts = Segments(path), texts
        self._rotary_dim, self._report = rotary_dim, report
        self._inputs: dict[str, str] = {}
        """The value that each matrix is multiplied by, by the name of the matrix."""
        for product in products(read_graph(path).graph):
            value = product.node.inputs[0]
            assert value is not None and value.name is not None
            self._inputs[product.name] = value.name
        self._places = {matrix: self._segments.of_weight(matrix) for matrix in self._inputs}
        self._squares: dict[str, Floats] = {}
        self._ranges: dict[str, Floats] = {}
        self._complete = False  # both of them, over all layers
        self._next, self._left = 0, list[Arrays]()
        self._moments: dict[str, Floats] = {}

    @property
    def matrices(self) -> int:
        """How many there are."""
        return len(self._inputs)

    @property
    def input_sizes(self) -> dict[str, Floats]:
        """Root mean square (in,) of each input feature, by the name of the matrix."""
        self._finish()
        return {matrix: np.sqrt(self._squares[value]) for matrix, value in self._inputs.items()}

    @property
    def cache_ranges(self) -> Ranges:
        """How large keys and values become."""
        self._finish()
        return self._ranges

    def moments(self, matrix: str) -> Floats:
        """Second moments (in, in) of what `matrix` is multiplied by. Cheap in the order of the graph only."""
        place, value = self._places[matrix], self._inputs[matrix]
        if place != self._next - 1 or value not in self._moments:
            if place < self._next:
                self._next = 0
            while self._next < place:
                self._step()
            self._step(moments=True)
        return self._moments[value]

    def _finish(self) -> None:
        progress = Progress(self._report, "activation statistics", len(self._segments) - self._next)
        while not self._complete:
            self._step()
            progress.step()

    def _step(self, moments: bool = False) -> None:
        """Run the next segment over all texts."""
        if self._next == 0:
            self._left = self._texts()
        values = list(
            dict.fromkeys(
                self._inputs[matrix] for matrix, place in self._places.items() if place == self._next
            )
        )
        presents = sorted(name for name in self._segments.made(self._next) if name.startswith(PRESENT))
        self._moments = {}  # the memory of one segment at a time
        squares: dict[str, Floats] = {}
        moments_of = {value: _Moments() for value in values if moments}
        counts = dict.fromkeys(values, 0)
        for arrays in self._segments.run(self._next, self._left, [*values, *presents]):
            for value in values:
                rows = arrays[value].reshape(-1, arrays[value].shape[-1])
                counts[value] += len(rows)
                squares[value] = squares.get(value, np.float32(0)) + np.square(rows).sum(axis=0)
                if moments:
                    moments_of[value].add(rows)
            for name in presents:
                widen(self._ranges, name, arrays[name], self._rotary_dim)
        self._squares |= {value: total / np.float32(counts[value]) for value, total in squares.items()}
        self._moments = {value: gathered.mean() for value, gathered in moments_of.items()}
        self._next += 1
        self._complete = self._complete or self._next == len(self._segments)


class _Moments:
    """The mean of x x' over rows x. Many rows are multiplied at once: the matrix that they are added to is 256 MB for
    8192 features, and to read and write it for each 256 rows took four times as long as their product (2026-12-01)."""

    def __init__(self) -> None:
        self._rows: list[Floats] = []
        self._waiting, self._count = 0, 0
        self._sum: Floats | None = None

    def add(self, rows: Floats) -> None:
        self._rows.append(rows)
        self._waiting += len(rows)
        if self._waiting >= ROWS_AT_ONCE:
            self._multiply()

    def mean(self) -> Floats:
        if self._rows:
            self._multiply()
        assert self._sum is not None
        self._sum /= np.float32(self._count)
        return self._sum

    def _multiply(self) -> None:
        rows = np.concatenate(self._rows)
        product = rows.T @ rows
        self._sum = product if self._sum is None else np.add(self._sum, product, out=self._sum)
        self._count += len(rows)
        self._rows, self._waiting = [], 0
