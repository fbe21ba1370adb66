"""What the loop needs of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgelm_runtime.arrays import Ids, Logits


class Decoder(Protocol):
    """What the generation loop needs of a model."""

    context_length: int
    vocab_size: int

    def __call__(self, rows: Sequence[Ids], counts: Sequence[int]) -> list[Logits]:
        """Logits (counts[i], vocab) at the last `counts[i]` positions of each row (1 to context_length ids)."""
        ...
