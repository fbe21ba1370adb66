"""One arrangement of a precision, as the search tries them: the block size, and which matrices get more bits."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from edgelm_export.passes.builder import products
from edgelm_export.passes.spare_row import SpareRow
from edgelm_export.quantization.block_matmul import BlockQuantized
from edgelm_export.quantization.expert_blocks import QuantizedExperts, expert_matrices
from edgelm_export.quantization.fp16 import Float16Weights
from edgelm_export.quantization.int8_kv_cache import Int8Cache
from edgelm_export.quantization.precision import FP16, Precision
from edgelm_export.quantization.reference import Reference
from edgelm_export.quantization.rowwise_int8 import RowwiseInt8, RowwiseInt8Embedding
from edgelm_export.quantization.smoothing import Smoothed

ROUTER = "mlp.router"


@dataclass(frozen=True)
class Plan:
    """What happens to which matrices.

    `block_size` 0 is int8 row-wise, for whole windows; otherwise weights are quantised block-wise, for steps with a
    cache. `int8_cache`: keys and values are kept in int8. Matrices of the kinds in `kept`, such as `mlp.down`, get
    the precision's `kept_bits`.
    """

    precision: Precision
    block_size: int = 0
    int8_cache: bool = False
    kept: tuple[str, ...] = ()

    def __str__(self) -> str:
        size = f" in blocks of {self.block_size}" if self.block_size else ""
        kept = f", {' and '.join(self.kept)} at {self.precision.kept_bits} bits" if self.kept else ""
        return f"{self.precision}{size}{kept}"

    def apply(self, graph: ir.Model, reference: Reference) -> None:
        """Rewrite `graph`, which is the one of `reference`."""
        if self.precision is FP16:
            Float16Weights()(graph)
            return
        bits = {name: self._bits(name) for name in matrices(graph.graph)}
        halved = {name for name, count in bits.items() if count == 16}
        QuantizedExperts(bits, self.block_size)(graph)
        if self.block_size:
            BlockQuantized(bits, self.block_size, reference.rounding)(graph)
        else:
            if reference.fit:
                Smoothed(reference.stats.input_sizes, keep=halved)(graph)
            RowwiseInt8(keep=halved)(graph)
        attention = Int8Cache(reference.stats.cache_ranges) if self.int8_cache else SpareRow()
        for step in (RowwiseInt8Embedding(), Float16Weights(only=halved), attention):
            step(graph)

    def _bits(self, name: str) -> int:
        if kind_of(name) == ROUTER:
            return max(8, self.precision.bits)  # it is tiny, and another expert is another function
        return self.precision.kept_bits if kind_of(name) in self.kept else self.precision.bits


def matrices(graph: ir.Graph) -> list[str]:
    """The names of all weights that a plan has bits for."""
    return [*(product.name for product in products(graph)), *expert_matrices(graph)]


def kind_of(weight: str) -> str:
    """`attention.qkv` for `blocks.3.attention.qkv.weight`; `head` for the head."""
    parts = [part for part in weight.split(".") if not part.isdigit()]
    return ".".join(parts[1:-1] if parts[0] == "blocks" else parts[:-1])
