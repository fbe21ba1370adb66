"""The PyTorch model: one `Transformer`, composed from parts by a `ModelConfig`."""

from edgelm.model.attention import Attend, AttentionSpec, causal_attention, visible
from edgelm.model.transformer import Transformer

__all__ = ["Attend", "AttentionSpec", "Transformer", "causal_attention", "visible"]
