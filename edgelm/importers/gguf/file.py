"""GGUF files: header, metadata and tensors, with every figure checked against the file's size.

The `gguf` package gives the constants and the arithmetic of quantised blocks; its reader takes header
figures on trust and needs seconds for a large vocabulary, so the header is read here. Format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from edgelm.model import Stored
from edgelm_runtime.errors import CheckpointError
from edgelm_runtime.git_lfs import refuse_pointer

KINDS = gguf.GGMLQuantizationType
PLAIN = {KINDS.F32: np.float32, KINDS.F16: np.float16, KINDS.BF16: np.int16}
QUANTISED = frozenset((
    KINDS.Q8_0, KINDS.Q4_0, KINDS.Q4_1, KINDS.Q5_0, KINDS.Q5_1, KINDS.Q2_K, KINDS.Q3_K, KINDS.Q4_K, KINDS.Q5_K,
    KINDS.Q6_K, KINDS.IQ4_NL, KINDS.IQ4_XS,
))  # fmt: skip
# Numbers of metadata values -> struct format.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
# Elements dequantised at a time: the package's arithmetic needs several times their size.
CHUNK = 1 << 22


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor lies. `shape` is PyTorch's order, rows first; `start` and `size` are bytes."""

    name: str
    shape: tuple[int, ...]
    kind: Any
    start: int
    size: int


class GgufFile:
    """An open GGUF file: `metadata` by key, `tensors` by name. Weights stay memory-mapped.

    Raises CheckpointError that says where the file is damaged, or which tensor type is unknown.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            refuse_pointer(path)
            with path.open("rb") as file:
                # A private mapping: tensors over it are writable and the file is not.
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"cannot read {path}: {error}", "check the path") from error
        self._at, self._size = 0, len(self._map)
        if self._take(4) != b"GGUF":
            raise CheckpointError(f"{path} is no GGUF file", "check the path")
        version = self._scalar("I")
        if version not in (2, 3):
            raise CheckpointError(
                f"{path} is GGUF of version {version}", "versions 2 and 3, little-endian, are known"
            )
        tensors, pairs = self._scalar("Q"), self._scalar("Q")
        # The least that each takes: 24 bytes of lengths, numbers and offset; 13 of length, type and value.
        self._expect(tensors * 24 + pairs * 13, f"{tensors} tensors and {pairs} metadata entries")
        self.metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key = self._string()
            if key in self.metadata:
                raise self._damaged(f"the key {key!r} a second time")
            self.metadata[key] = self._value(self._scalar("I"), key)
        self.tensors: dict[str, GgufTensor] = {}
        for tensor in [self._tensor_info() for _ in range(tensors)]:
            self._place(tensor)
        self._check_overlaps()

    def weights(self) -> dict[str, Stored]:
        """The tensors by name, each read or dequantised when asked for."""
        return {
            name: Stored(tensor.shape, partial(self.read, tensor)) for name, tensor in self.tensors.items()
        }

    def read(self, tensor: GgufTensor) -> torch.Tensor:
        """The numbers of a tensor: a view of the file where they are stored plainly, else float32."""
        if tensor.kind in PLAIN:
            flat = np.frombuffer(self._map, PLAIN[tensor.kind], math.prod(tensor.shape), tensor.start)
            plain = torch.from_numpy(flat).view(tensor.shape)
            return plain.view(torch.bfloat16) if tensor.kind == KINDS.BF16 else plain
        numbers = torch.empty(tensor.shape, dtype=torch.float32)
        rows, blocks = numbers.view(-1, tensor.shape[-1]).numpy(), self.blocks(tensor)
        step = max(1, CHUNK // tensor.shape[-1])
        for begin in range(0, len(rows), step):
            rows[begin : begin + step] = gguf.dequantize(blocks[begin : begin + step], tensor.kind)
        return numbers

    def blocks(self, tensor: GgufTensor) -> NDArray[np.uint8]:
        """The stored bytes of a tensor's rows: (rows, bytes per row), a view of the file."""
        flat = np.frombuffer(self._map, np.uint8, tensor.size, tensor.start)
        return flat.reshape(math.prod(tensor.shape[:-1]), -1)

    def _tensor_info(self) -> GgufTensor:
        """One entry of the tensor list; `start` counts from the data's beginning until it is placed."""
        name, dimensions = self._string(), self._scalar("I")
        if not 1 <= dimensions <= 4:
            raise self._damaged(f"tensor {name!r} has {dimensions} dimensions")
        sizes = [self._scalar("Q") for _ in range(dimensions)]
        number, offset = self._scalar("I"), self._scalar("Q")
        try:
            kind = KINDS(number)
        except ValueError:
            raise CheckpointError(f"{self.path}: {name} is of unknown type {number}", "update gguf") from None
        if kind not in PLAIN and kind not in QUANTISED:
            known = ", ".join(sorted(known.name for known in (*PLAIN, *QUANTISED)))
            raise CheckpointError(f"{self.path}: {name} is stored as {kind.name}", f"known are {known}")
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        if sizes[0] % elements or 0 in sizes:
            raise self._damaged(f"tensor {name!r} has shape {sizes[::-1]} in blocks of {elements}")
        return GgufTensor(name, tuple(sizes[::-1]), kind, offset, math.prod(sizes) // elements * size)

    def _place(self, tensor: GgufTensor) -> None:
        alignment = self.metadata.get("general.alignment", 32)
        # Multiples of 8 by the format; what is no power of two is damage.
        if not isinstance(alignment, int) or alignment not in [1 << bit for bit in range(3, 21)]:
            raise self._damaged(f"an alignment of {alignment!r}")
        start = -(-self._at // alignment) * alignment + tensor.start
        if start + tensor.size > self._size:
            raise self._damaged(
                f"tensor {tensor.name!r} should end at byte {start + tensor.size}, the file has {self._size}"
            )
        if tensor.name in self.tensors:
            raise self._damaged(f"tensor {tensor.name!r} a second time")
        self.tensors[tensor.name] = replace(tensor, start=start)

    def _check_overlaps(self) -> None:
        placed = sorted(self.tensors.values(), key=lambda tensor: tensor.start)
        for before, after in pairwise(placed):
            if before.start + before.size > after.start:
                raise self._damaged(f"tensors {before.name!r} and {after.name!r} overlap")

    def _value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self._string()
        if kind in SCALARS:
            return self._scalar(SCALARS[kind])
        if kind != ARRAY:
            raise self._damaged(f"{key!r} is of unknown type {kind}")
        inner, count = self._scalar("I"), self._scalar("Q")
        if inner == STRING:
            self._expect(count * 8, f"{count} strings in {key!r}")
            return [self._string() for _ in range(count)]
        if inner not in SCALARS:
            raise self._damaged(f"{key!r} is an array of unknown type {inner}")
        width = struct.calcsize("<" + SCALARS[inner])
        return list(struct.unpack(f"<{count}{SCALARS[inner]}", self._take(count * width)))

    def _string(self) -> str:
        return self._take(self._scalar("Q")).decode(errors="surrogateescape")

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))
        # Shortest decimal that is the same float32: 1e-05, not 9.999999747378752e-06.
        return float(str(np.float32(value))) if code == "f" else value

    def _take(self, count: int) -> bytes:
        self._expect(count, f"{count} bytes")
        self._at += count
        return self._map[self._at - count : self._at]

    def _expect(self, count: int, what: str) -> None:
        if count > self._size - self._at:
            raise self._damaged(f"{what} where only {self._size - self._at} bytes are left")

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path} is damaged: at byte {self._at}: {what}", "get the file again")
