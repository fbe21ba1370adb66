"""Writing a model file: one file, streamed.

Protobuf wants a message's length before its content and builds the whole in memory for that. Weights are
all of the length here, and it is known beforehand, so the file is put together from three parts: what
stands before the weights, the weights one at a time, and what follows. The result is byte for byte what
protobuf would write. Above its limit of 2 GB the weights go to one sidecar instead.

Metadata is appended to the finished graph (repeated fields may stand anywhere), so the graph that was
tested is the graph that is shipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import onnx_ir as ir

from edgelm_export.progress import Progress, Report, quiet
from edgelm_runtime.atomic_files import new_files
from edgelm_runtime.errors import EdgelmError
from edgelm_runtime.model_file.external_weights import ALIGNMENT, SMALLEST
from edgelm_runtime.model_file.opened import OpenModel
from edgelm_runtime.model_file.protobuf import GRAPH, INITIALIZER, RAW_DATA, TENSOR_DOC, delimited

# Protobuf refuses 2 GiB; the difference is room for the graph and the metadata.
LARGEST_FILE = 2**31 - 64 * 2**20
PAGE = 4096  # bytes, as a sidecar is mapped into memory
IN_SIDECAR_FROM = 1024  # bytes; smaller tensors stay in the graph, where shape inference sees them


@dataclass(frozen=True)
class Placed:
    """A weight and where its bytes go: into the file, or to an offset of the sidecar."""

    value: ir.Value
    offset: int | None

    def header(self, sidecar: str) -> onnx.TensorProto:
        tensor = self.value.const_value
        assert tensor is not None
        proto = onnx.TensorProto(
            dims=tensor.shape.numpy(), data_type=tensor.dtype.value, name=self.value.name
        )
        if self.offset is not None:
            proto.data_location = onnx.TensorProto.EXTERNAL
            entries = {"location": sidecar, "offset": str(self.offset), "length": str(tensor.nbytes)}
            for key, value in entries.items():
                proto.external_data.add(key=key, value=value)
        return proto


@contextmanager
def new_model_file(path: Path) -> Iterator[Path]:
    """`atomic_files.new_files` for a model file: a sidecar that only the replaced file needed goes with it."""
    old = _sidecar(path)
    with new_files(path) as new:
        yield new
        needed = {file.name for file in new.parent.iterdir()}
    if old is not None and old.name not in needed:
        old.unlink(missing_ok=True)


def _sidecar(path: Path) -> Path | None:
    """The sidecar that the model file `path` has by now, if it is one that `write_graph` would replace."""
    try:
        with OpenModel(path) as model:
            files = [file.path for file in model.sidecars.values()]
            return next((file for file in files if file == _sidecar_of(model.file.path)), None)
    except EdgelmError:
        return None  # no model, a damaged one, or one without its sidecar


def _sidecar_of(path: Path) -> Path:
    return path.with_name(path.name + ".data")


def write_graph(model: ir.Model, path: Path, report: Report = quiet) -> Path | None:
    """Write `model` without metadata to `path`; the sidecar's path where the weights need one."""
    weights = _placed(model)
    sidecar = _sidecar_of(path)
    whole = _without_weights(model)
    with path.open("wb") as file:
        before, after = onnx.ModelProto(), onnx.ModelProto()
        before.CopyFrom(whole)
        before.ClearField("graph")
        before.ClearField("opset_import")
        after.opset_import.extend(whole.opset_import)
        file.write(before.SerializeToString(deterministic=True))
        _write_graph_field(file, whole.graph, weights, sidecar.name)
        file.write(after.SerializeToString(deterministic=True))
    if all(weight.offset is None for weight in weights):
        return None
    with sidecar.open("wb") as file:
        progress = Progress(report, "writing", len(weights))
        for weight in weights:
            if weight.offset is not None:
                file.write(b"\0" * (weight.offset - file.tell()))
                file.write(_bytes_of(weight.value))
            progress.step()
    return sidecar


def append_metadata(path: Path, entries: Mapping[str, str]) -> None:
    """Add `metadata_props` to a written model file."""
    proto = onnx.ModelProto()
    for key, value in entries.items():
        proto.metadata_props.add(key=key, value=value)
    with path.open("ab") as file:
        file.write(proto.SerializeToString(deterministic=True))


def _placed(model: ir.Model) -> list[Placed]:
    values = list(model.graph.initializers.values())
    # Small ones first: the first large one needs one in front that fills up.
    values.sort(key=lambda value: _nbytes(value) >= SMALLEST)
    sizes = [value.const_value.nbytes for value in values if value.const_value is not None]
    if sum(sizes) <= LARGEST_FILE:
        return [Placed(value, None) for value in values]
    placed, end = [], 0
    for value, size in zip(values, sizes, strict=True):
        if size < IN_SIDECAR_FROM:
            placed.append(Placed(value, None))
            continue
        start = -(-end // PAGE) * PAGE
        placed.append(Placed(value, start))
        end = start + size
    return placed


def _without_weights(model: ir.Model) -> onnx.ModelProto:
    """`model` as protobuf, its initializers left out."""
    tensors = {name: value.const_value for name, value in model.graph.initializers.items()}
    nothing = ir.tensor(np.zeros(0, np.float32))
    try:
        for value in model.graph.initializers.values():
            value.const_value = nothing
        proto = ir.to_proto(model)
    finally:
        for name, tensor in tensors.items():
            model.graph.initializers[name].const_value = tensor
    del proto.graph.initializer[:]
    return proto


def _write_graph_field(file: BinaryIO, graph: onnx.GraphProto, weights: list[Placed], sidecar: str) -> None:
    before = onnx.GraphProto(node=graph.node, name=graph.name)
    after = onnx.GraphProto()
    after.CopyFrom(graph)
    after.ClearField("node")
    after.ClearField("name")
    head, tail = (part.SerializeToString(deterministic=True) for part in (before, after))
    # Weights are padded to begin at multiples of ALIGNMENT in the file, so their fields depend on where they begin,
    # which depends on the bytes of the length in front of the graph, which depends on the fields. A longer number only
    # moves everything by a byte, so this settles in two or three rounds.
    length = 0
    while True:
        tag = delimited(GRAPH, length)
        fields = list(_weight_fields(weights, sidecar, file.tell() + len(tag) + len(head)))
        length = len(head) + sum(field.length for field in fields) + len(tail)
        if delimited(GRAPH, length) == tag:
            break
    file.write(tag + head)
    for field, weight in zip(fields, weights, strict=True):
        file.write(field.start)
        if weight.offset is None:
            file.write(_bytes_of(weight.value))
        file.write(field.end)
    file.write(tail)


@dataclass(frozen=True)
class WeightField:
    """An initializer field: what stands before and after its `size` raw bytes."""

    start: bytes
    size: int
    end: bytes = b""

    @property
    def length(self) -> int:
        return len(self.start) + self.size + len(self.end)


def _weight_fields(weights: list[Placed], sidecar: str, position: int) -> Iterator[WeightField]:
    """A field for each weight, of which the first begins at `position` in the file.

    Protobuf has no padding, so spaces in the doc string of the weight before serve as such: readers ignore them.
    """
    headers = [weight.header(sidecar).SerializeToString(deterministic=True) for weight in weights]
    sizes = [0 if weight.offset is not None else _nbytes(weight.value) for weight in weights]
    for index, (header, size) in enumerate(zip(headers, sizes, strict=True)):
        field = _weight_field(header, size)
        if size and index + 1 < len(sizes) and sizes[index + 1] >= SMALLEST:
            # The next weight is to begin aligned. What can grow is the doc string of this one, which comes after its
            # data: space by space, since its own length and the tensor's may take another byte on the way.
            following = len(_weight_field(headers[index + 1], sizes[index + 1]).start)
            for spaces in range(2 * ALIGNMENT):
                if (position + field.length + following) % ALIGNMENT == 0:
                    break
                field = _weight_field(header, size, delimited(TENSOR_DOC, spaces) + b" " * spaces)
        yield field
        position += field.length


def _weight_field(header: bytes, size: int, end: bytes = b"") -> WeightField:
    raw = delimited(RAW_DATA, size) if size else b""
    length = len(header) + len(raw) + size + len(end)
    return WeightField(delimited(INITIALIZER, length) + header + raw, size, end)


def _nbytes(value: ir.Value) -> int:
    assert value.const_value is not None
    return value.const_value.nbytes


def _bytes_of(value: ir.Value) -> memoryview | bytes:
    assert value.const_value is not None
    array = value.const_value.numpy()
    if array.dtype.itemsize * array.size != value.const_value.nbytes:
        return value.const_value.tobytes()  # types of less than a byte are packed
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
