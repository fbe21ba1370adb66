"""What is done to which matrices of a graph, and what rounding may be fitted on."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from edgelm_export.passes.builder import products
from edgelm_export.passes.spare_row import SteadyAttention
from edgelm_export.quantization.block_layout import Blocks, Floats, blocks_of_8_bits
from edgelm_export.quantization.block_matmul import BlockQuantized
from edgelm_export.quantization.fp16 import Float16Weights
from edgelm_export.quantization.int8_kv_cache import Int8Cache
from edgelm_export.quantization.reference import Source
from edgelm_export.quantization.rowwise_int8 import RowwiseInt8, RowwiseInt8Embedding
from edgelm_export.quantization.smoothing import Smoothed


@dataclass(frozen=True)
class Plan:
    """What happens to which matrices.

    `dtype` is fp16, int8 or int4. `block_size` 0 is int8 by rows and columns, for whole windows; otherwise
    weights go in blocks, for steps with a cache. `kept` are kinds such as `mlp.down` that get the next better
    precision: 8 bits in blocks instead of 4, 16 bits instead of 8.
    """

    dtype: str
    block_size: int = 0
    kept: tuple[str, ...] = ()

    def __str__(self) -> str:
        size = f" in blocks of {self.block_size}" if self.block_size else ""
        better = "8" if self.dtype == "int4" else "16"
        return self.dtype + size + (f", {' and '.join(self.kept)} at {better} bits" if self.kept else "")

    def apply(self, graph: ir.Model, source: Source) -> None:
        """Rewrite `graph`, which is the one of `source`."""
        if self.dtype == "fp16":
            Float16Weights()(graph)
            return
        names = [product.name for product in products(graph.graph)]
        kept = {name for name in names if kind_of(name) in self.kept}

        def rounded(name: str, matrix: Floats, bits: int) -> Blocks:
            if bits == 8:
                return blocks_of_8_bits(matrix, self.block_size)
            return source.gptq_blocks(name, matrix, self.block_size)

        if self.dtype == "int4":
            BlockQuantized(lambda name: 8 if name in kept else 4, rounded)(graph)
        elif self.block_size:
            BlockQuantized(lambda name: 0 if name in kept else 8, rounded)(graph)
        else:
            Smoothed(source.input_sizes, keep=kept)(graph)
            RowwiseInt8(keep=kept)(graph)
        attention = SteadyAttention() if source.ranges is None else Int8Cache(source.ranges)
        for step in (RowwiseInt8Embedding(), Float16Weights(only=kept), attention):
            step(graph)


def kind_of(weight: str) -> str:
    """`attention.qkv` for `blocks.3.attention.qkv.weight`; `head` for the head."""
    parts = [part for part in weight.split(".") if not part.isdigit()]
    return ".".join(parts[1:-1] if parts[0] == "blocks" else parts[:-1])
