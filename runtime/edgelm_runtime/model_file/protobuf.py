"""Protobuf messages as fields and where they lie, without onnx: enough to walk a model file.

https://protobuf.dev/programming-guides/encoding/; field numbers from onnx.proto.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import NamedTuple

# ModelProto, GraphProto, TensorProto
GRAPH, METADATA = 7, 14
INITIALIZER = 5
RAW_DATA, TENSOR_DOC, EXTERNAL_DATA, DATA_LOCATION = 9, 12, 13, 14

VARINT, EIGHT_BYTES, DELIMITED, FOUR_BYTES = 0, 1, 2, 5  # wire types

Data = bytes | mmap.mmap


class Field(NamedTuple):
    """Number of a field, and offsets: of the field, of its content, and after both."""

    number: int
    start: int
    content: int
    end: int


def walk(data: Data, start: int, end: int) -> Iterator[Field]:
    """The fields of the message that lies at `data[start:end]`, in order. Raises ValueError, with what is wrong."""
    while start < end:
        tag, content = read_varint(data, start, end)
        kind = tag & 7
        if kind == DELIMITED:
            length, content = read_varint(data, content, end)
            after = content + length
        elif kind == VARINT:
            after = read_varint(data, content, end)[1]
        elif kind in (EIGHT_BYTES, FOUR_BYTES):
            after = content + (8 if kind == EIGHT_BYTES else 4)
        else:
            raise ValueError("is not an ONNX model")
        if after > end:
            raise ValueError("is cut off")
        yield Field(tag >> 3, start, content, after)
        start = after


def read_varint(data: Data, start: int, end: int) -> tuple[int, int]:
    """A number and the offset after it."""
    number = 0
    for index in range(start, min(start + 10, end)):
        byte = data[index]
        number |= (byte & 0x7F) << 7 * (index - start)
        if byte < 0x80:
            return number, index + 1
    raise ValueError("is cut off" if end < start + 10 else "is not an ONNX model")


def varint(number: int) -> bytes:
    """A number, 0 or more, as bytes."""
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def delimited(number: int, length: int) -> bytes:
    """What stands before the `length` bytes of a field: a message, a string or bytes."""
    return bytes([number << 3 | DELIMITED]) + varint(length)
