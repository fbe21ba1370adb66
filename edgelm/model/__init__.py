"""The PyTorch model: one `Transformer`, composed from parts by a `ModelConfig`.

from edgelm.model import generate
ids = generate(checkpoint.model, [1, 2, 3], max_new_tokens=20)
"""

from edgelm.model.attention import Attend, AttentionSpec, causal_attention, visible
from edgelm.model.decoder import TorchDecoder, generate
from edgelm.model.operators import Operators, TorchOperators, rotate_by_table
from edgelm.model.stored import Stored, StoredModel
from edgelm.model.transformer import Transformer

__all__ = [
    "Attend",
    "AttentionSpec",
    "Operators",
    "Stored",
    "StoredModel",
    "TorchDecoder",
    "TorchOperators",
    "Transformer",
    "causal_attention",
    "generate",
    "rotate_by_table",
    "visible",
]
