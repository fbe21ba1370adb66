"""A graph in pieces of a few layers, run one after the other over many texts.

A piece holds the weights of its layers only, so that a model of any size is run in the memory that some layers take;
what is in memory of the texts is what the next piece reads. Pieces begin at the first product of a layer, after the
norm, so that onnxruntime fuses in a piece what it fuses in the whole: the numbers are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from edgelm_runtime.engine.session import Session
from edgelm_runtime.model_file.opened import OpenModel

LAYER = re.compile(r"blocks\.(\d+)\.")
BYTES = 1 << 28  # of weights that a segment holds, about, where a layer has fewer

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Segment:
    """Nodes that run together. `later` are the values that following segments read."""

    nodes: Sequence[onnx.NodeProto]
    later: frozenset[str]

    @property
    def made(self) -> set[str]:
        """What the nodes give."""
        return {name for node in self.nodes for name in node.output}


class Segments:
    """The model file `path` in segments. Raises ModelFileError where it cannot be used."""

    def __init__(self, path: Path) -> None:
        with OpenModel(path) as file:
            data, self._folder = file.graph_for_mapping() or (file.in_memory()[0], file.file.path.parent)
        self._model = onnx.load_from_string(data)
        graph = self._model.graph
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        self._about = {info.name: info for info in (*graph.value_info, *graph.output)}
        self._parts = self._cut()

    def __len__(self) -> int:
        return len(self._parts)

    def of_weight(self, name: str) -> int:
        """The first segment that multiplies by the matrix `name`."""
        return next(
            index
            for index, part in enumerate(self._parts)
            if any(name in node.input and node.op_type in ("MatMul", "Gemm") for node in part.nodes)
        )

    def made(self, index: int) -> set[str]:
        """The values that a segment gives."""
        return self._parts[index].made

    def run(self, index: int, texts: Sequence[Arrays], wanted: Sequence[str]) -> Iterator[Arrays]:
        """Run a segment over what the one before has left of each of `texts`, and leave there what the next reads.

        Gives for each text the values `wanted` that the segment reads or makes.
        """
        part = self._parts[index]
        made = part.made
        outputs = [name for name in dict.fromkeys([*wanted, *sorted(part.later)]) if name in made]
        if not outputs:  # what is wanted of the head may be its input alone
            yield from ({name: text[name] for name in wanted} for text in texts)
            return
        session = Session(self._graph(part, texts[0], outputs), "cpu", weights=self._folder)
        try:
            for text in texts:
                feeds = {name: text[name] for name in session.inputs}
                found = dict(zip(outputs, session.run(outputs, feeds), strict=True))
                yield {name: found[name] if name in found else text[name] for name in wanted}
                left = {name: array for name, array in (text | found).items() if name in part.later}
                text.clear()
                text.update(left)
        finally:
            session.close()

    def _cut(self) -> list[Segment]:
        parts: list[list[onnx.NodeProto]] = [[]]
        size, place = 0, ""
        for node in self._model.graph.node:
            weights = [self._weights[name] for name in node.input if name in self._weights]
            layer = _layer_of(node, weights) or place
            if layer != place and size > BYTES // 2:
                parts.append([])
                size = 0
            place = layer
            parts[-1].append(node)
            size += sum(map(_nbytes, weights))
        segments: list[Segment] = []
        later: frozenset[str] = frozenset()
        for nodes in reversed(parts):
            segments.insert(0, Segment(nodes, later))
            later |= {name for node in nodes for name in _read(node)}
        return segments

    def _graph(self, part: Segment, text: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> bytes:
        read = {name for node in part.nodes for name in _read(node)}
        made = part.made
        model = onnx.ModelProto(
            ir_version=self._model.ir_version, opset_import=self._model.opset_import,
            functions=self._model.functions,
        )  # fmt: skip
        graph = model.graph
        graph.name = "segment"
        graph.node.extend(part.nodes)
        graph.initializer.extend(
            self._weights[name] for name in sorted(read - text.keys()) if name in self._weights
        )
        for name in sorted(read & text.keys()):
            array = text[name]
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            plain = onnx.helper.make_tensor_value_info(name, kind, [None] * array.ndim)
            graph.input.append(self._about.get(name, plain))
        graph.output.extend(self._about.get(name, onnx.ValueInfoProto(name=name)) for name in outputs)
        graph.value_info.extend(
            self._about[name] for name in sorted(made - set(outputs)) if name in self._about
        )
        return model.SerializeToString()


def _layer_of(node: onnx.NodeProto, weights: Sequence[onnx.TensorProto]) -> str | None:
    """The layer that a product by a matrix of the model belongs to; the head is one too."""
    if node.op_type not in ("MatMul", "Gemm") or not any(len(weight.dims) == 2 for weight in weights):
        return None
    match = LAYER.match(node.input[1])
    return match[1] if match else "head"


def _read(node: onnx.NodeProto) -> set[str]:
    """All that a node reads, its branches included."""
    names = {name for name in node.input if name}
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            names |= {name for inner in graph.node for name in _read(inner)}
    return names


def _nbytes(tensor: onnx.TensorProto) -> int:
    return int(np.prod(tensor.dims)) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
