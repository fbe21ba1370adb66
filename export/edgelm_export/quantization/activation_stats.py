"""What the products of a float32 graph are fed: the graph is run with their inputs as further outputs.

Two statistics of the inputs x of a product over a text: the size of each feature (`input_sizes`, for
`smoothing.py`), and the second moments E[x x'] (`Moments`, for `gptq.py`). Moments are matrices as wide as the
input, so they are gathered in groups of bounded memory, with a further run over the text for each group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edgelm_export.files.writer import write_graph
from edgelm_export.passes.builder import products
from edgelm_runtime.atomic_files import scratch_folder
from edgelm_runtime.engine.graph_inputs import empty_cache
from edgelm_runtime.engine.session import Session
from edgelm_runtime.model_file.interface import INPUT_IDS, LOGITS_AT

Floats = NDArray[np.float32]
Windows = Sequence[NDArray[np.int64]]
Reduce = Callable[[Floats], Floats]

LARGEST_GROUP = 2**30  # bytes of moments that are held at once


class FedText:
    """A float32 graph, read anew by `graph`, and the windows of ids that it is to be fed.

    What has to be written goes into folders beside `path`, which are removed again.
    """

    def __init__(self, graph: Callable[[], ir.Model], windows: Windows, path: Path) -> None:
        self._graph, self._windows, self._path = graph, windows, path
        self.inputs: Mapping[str, str] = {
            product.name: _input_name(product.node) for product in products(graph().graph)
        }
        """What each matrix's product reads, by the name of the matrix."""

    @property
    def tokens(self) -> int:
        """How many tokens the windows have."""
        return sum(map(len, self._windows))

    def mean(self, values: Sequence[str], reduce: Reduce) -> dict[str, Floats]:
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
        graph = self._graph()
        outputs = graph.graph.outputs
        for name in values:
            value = next(node.inputs[0] for node in graph.graph if _reads(node, name))
            if value is not None and value not in outputs:
                outputs.append(value)
        write_graph(graph, path)
        session = Session(path, "cpu")
        try:
            for ids in self._windows:
                feeds = {INPUT_IDS: ids[None], LOGITS_AT: np.arange(len(ids))[None]}
                yield session.run(values, {**feeds, **empty_cache(session.inputs, 1, len(ids))})
        finally:
            session.close()


def _input_name(node: ir.Node) -> str:
    value = node.inputs[0]
    assert value is not None and value.name is not None
    return value.name


def _reads(node: ir.Node, name: str) -> bool:
    return bool(node.inputs) and node.inputs[0] is not None and node.inputs[0].name == name


def input_sizes(text: FedText) -> dict[str, Floats]:
    """Root mean square (in,) of each input feature, by the name of the matrix."""
    squares = text.mean(list(dict.fromkeys(text.inputs.values())), lambda rows: np.square(rows).sum(axis=0))
    return {matrix: np.sqrt(squares[value]) for matrix, value in text.inputs.items()}


class Moments:
    """Second moments (in, in) of a product's inputs, by the name of its matrix; gathered when first asked for."""

    def __init__(self, text: FedText, widths: Mapping[str, int]) -> None:
        """`widths` are the input features of each matrix that will be asked for, in order."""
        self._text = text
        self._groups = _groups(text.inputs, widths)
        self._held: dict[str, Floats] = {}

    def __getitem__(self, matrix: str) -> Floats:
        value = self._text.inputs[matrix]
        if value not in self._held:
            self._held.clear()  # the next group, and the memory of one
            group = next(group for group in self._groups if value in group)
            self._held = self._text.mean(group, lambda rows: rows.T @ rows)
        return self._held[value]


def _groups(inputs: Mapping[str, str], widths: Mapping[str, int]) -> list[list[str]]:
    """The inputs of the matrices in order, as many together as LARGEST_GROUP allows."""
    groups: list[list[str]] = [[]]
    size = 0
    for value, width in {inputs[matrix]: width for matrix, width in widths.items()}.items():
        size += 4 * width * width
        if size > LARGEST_GROUP and groups[-1]:
            groups.append([])
            size = 4 * width * width
        groups[-1].append(value)
    return groups
