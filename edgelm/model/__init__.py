"""The PyTorch model: one `Transformer`, composed from parts by a `ModelConfig`."""

from edgelm.model.attention import AttentionSpec, Attend, causal_attention
from edgelm.model.transformer import Transformer

__all__ = ["Attend", "AttentionSpec", "Transformer", "causal_attention"]
