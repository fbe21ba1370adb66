"""An int8 KV cache, with a scale for each feature of each head, for graphs with quantised weights.

A quarter of the memory, and half the time after a long text: `GroupQueryAttention` reads what it attends to at every
step. Its int8 kernel also computes row by row, so that one new token gives the same numbers as many, bit for bit
(`passes/spare_row.py` says why that matters); several tokens at once take longer than in float32.

Scales are fixed when the file is made: the largest key and value of each feature over the calibration text, with some
room. A rotation turns two features of a key into each other, so both get the length of the pair.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edgelm_export.passes.builder import constant, refuse_standard_cache
from edgelm_runtime.model_file.interface import past_name

LEVELS = 127
ROOM = 1.5
"""How much larger than on the calibration text a value may be before it is clipped."""
KEY_SCALE = 12  # place among the operator's inputs

Ranges = Mapping[str, NDArray[np.float32]]
"""Largest magnitude (kv_heads, head_dim), by the name of the cache input."""


def widen(
    ranges: dict[str, NDArray[np.float32]], present: str, states: NDArray[np.float32], rotary_dim: int
) -> None:
    """Widen `ranges` by `states` (1, kv_heads, tokens, head_dim), which a graph has put into the cache `present`."""
    sizes = np.abs(states[0])
    if present.endswith(".key"):
        sizes = _turned(sizes, rotary_dim)
    largest = sizes.max(axis=1)
    name = past_name(present)
    ranges[name] = np.maximum(ranges.get(name, largest), largest)


def _turned(sizes: NDArray[np.float32], rotary_dim: int) -> NDArray[np.float32]:
    """The largest that features (..., head_dim) can be after a rotation of the first `rotary_dim`, in two halves."""
    half = rotary_dim // 2
    pairs = np.hypot(sizes[..., :half], sizes[..., half:rotary_dim])
    return np.concatenate([pairs, pairs, sizes[..., rotary_dim:]], axis=-1)


class Int8Cache(ir.passes.InPlacePass):
    """Each `GroupQueryAttention` keeps its cache in int8, for values up to `ranges`."""

    def __init__(self, ranges: Ranges) -> None:
        super().__init__()
        self._ranges = ranges

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        refuse_standard_cache(model)
        nodes = [node for node in model.graph if node.op_type == "GroupQueryAttention"]
        for node in nodes:
            node.resize_inputs(KEY_SCALE + 2)
            for index in (0, 1):
                past, present = node.inputs[3 + index], node.outputs[1 + index]
                assert past is not None and past.name is not None
                past.type = present.type = ir.TensorType(ir.DataType.INT8)
                scale = constant(f"{past.name}.scale", self._scale(past.name))
                model.graph.register_initializer(scale)
                node.replace_input_with(KEY_SCALE + index, scale)
            for name, value in (
                ("k_quant_type", "PER_CHANNEL"), ("v_quant_type", "PER_CHANNEL"), ("kv_cache_bit_width", 8),
            ):  # fmt: skip
                node.attributes.add(ir.convenience.convert_attribute(name, value))
        return ir.passes.PassResult(model, bool(nodes))

    def _scale(self, name: str) -> NDArray[np.float32]:
        """(1, kv_heads, 1, head_dim); a feature that was always 0 stays 0 and wants some scale."""
        scale = self._ranges[name] * np.float32(ROOM / LEVELS)
        return np.where(scale > 0, scale, np.float32(1))[None, :, None, :]
