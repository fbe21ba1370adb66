"""Statistics of the activations: what the products of a float32 graph are fed while it reads the calibration text.

Two of them, for the inputs x of a product: the size of each feature (for `smoothing.py`), and the second moments
E[x x'] (for `gptq.py`). The graph is run with those inputs as further outputs. Moments are matrices as wide as the
input, so they are gathered in groups of bounded memory, with another run over the text for each group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from edgelm_export.files.writer import write_graph
from edgelm_export.passes.builder import Product, products
from edgelm_export.progress import Progress, Report, quiet
from edgelm_runtime.arrays import Floats, Ids
from edgelm_runtime.atomic_files import scratch_folder
from edgelm_runtime.engine.graph_inputs import empty_cache
from edgelm_runtime.engine.session import Session
from edgelm_runtime.model_file.interface import INPUT_IDS, LOGITS_AT

LARGEST_GROUP = 2**30  # bytes of moments that are held at once


class ActivationStats:
    """Statistics of a float32 graph, each gathered when it is first asked for.

    `graph` reads the graph anew, `windows` gives the calibration text as windows of ids. What has to be written goes
    into folders next to `path`, which are removed again.
    """

    def __init__(
        self,
        graph: Callable[[], ir.Model],
        windows: Callable[[], Sequence[Ids]],
        path: Path,
        report: Report = quiet,
    ) -> None:
        self._graph, self._windows, self._path, self._report = graph, windows, path, report
        self._moments: dict[str, Floats] = {}

    @functools.cached_property
    def input_sizes(self) -> dict[str, Floats]:
        """Root mean square (in,) of each input feature, by the name of the matrix."""
        values = list(dict.fromkeys(self._inputs.values()))
        squares = self._mean(values, lambda rows: np.square(rows).sum(axis=0))
        return {matrix: np.sqrt(squares[value]) for matrix, value in self._inputs.items()}

    def moments(self, matrix: str) -> Floats:
        """Second moments (in, in) of what `matrix` is multiplied by. Cheap in the order of the graph only."""
        value = self._inputs[matrix]
        if value not in self._moments:
            self._moments.clear()  # the memory of one group at a time
            group = next(group for group in self._groups if value in group)
            self._moments = self._mean(group, lambda rows: rows.T @ rows)
        return self._moments[value]

    @property
    def matrices(self) -> int:
        """How many there are."""
        return len(self._inputs)

    @functools.cached_property
    def _products(self) -> list[Product]:
        return products(self._graph().graph)

    @functools.cached_property
    def _inputs(self) -> Mapping[str, str]:
        """The value that each matrix is multiplied by, by the name of the matrix."""
        return {product.name: _input_name(product.node) for product in self._products}

    @functools.cached_property
    def _groups(self) -> list[list[str]]:
        """The inputs of the matrices in order, as many together as LARGEST_GROUP allows."""
        groups: list[list[str]] = [[]]
        size = 0
        for value, width in {_input_name(product.node): product.width for product in self._products}.items():
            size += 4 * width * width
            if size > LARGEST_GROUP and groups[-1]:
                groups.append([])
                size = 4 * width * width
            groups[-1].append(value)
        return groups

    def _mean(self, values: Sequence[str], reduce: Callable[[Floats], Floats]) -> dict[str, Floats]:
        """The sum of `reduce` (rows, features) over all windows for each of `values`, divided by the rows."""
        sums: dict[str, Floats] = {}
        counts = dict.fromkeys(values, 0)
        with scratch_folder(self._path) as folder:
            for arrays in self._run(values, folder / "inputs.onnx"):
                for name, array in zip(values, arrays, strict=True):
                    rows = array.reshape(-1, array.shape[-1])
                    sums[name] = sums.get(name, np.float32(0)) + reduce(rows)
                    counts[name] += len(rows)
        return {name: total / np.float32(counts[name]) for name, total in sums.items()}

    def _run(self, values: Sequence[str], path: Path) -> Iterator[list[Floats]]:
        """What `values` are for each window, from the graph written as `path` with them as outputs."""
        graph = self._graph()
        outputs = graph.graph.outputs
        for name in values:
            value = next(node.inputs[0] for node in graph.graph if _reads(node, name))
            if value is not None and value not in outputs:
                outputs.append(value)
        write_graph(graph, path)
        session = Session(path, "cpu")
        try:
            windows = self._windows()
            progress = Progress(self._report, "activation statistics", len(windows))
            for ids in windows:
                feeds = {INPUT_IDS: ids[None], LOGITS_AT: np.arange(len(ids))[None]}
                yield session.run(values, {**feeds, **empty_cache(session.inputs, 1, len(ids))})
                progress.step()
        finally:
            session.close()


def _input_name(node: ir.Node) -> str:
    value = node.inputs[0]
    assert value is not None and value.name is not None
    return value.name


def _reads(node: ir.Node, name: str) -> bool:
    return bool(node.inputs) and node.inputs[0] is not None and node.inputs[0].name == name
