"""The ONNX opsets that can be exported, and the devices that a cache can be exported for."""

from __future__ import annotations

FIRST_OPSET, LAST_OPSET = 18, 25
FUSED_OPSET = 23
"""`Attention` and `RotaryEmbedding` exist from here on; below, graphs spell them out."""
STATIC_CACHE_OPSET = 24
"""`TensorScatter` exists from here on."""
TARGETS = {"cpu": FIRST_OPSET, "cuda": STATIC_CACHE_OPSET}
"""The first opset for each device that a graph with a cache is for."""
