"""What the loop needs of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgelm_runtime.arrays import Ids, Logits


class Decoder(Protocol):
    """Token ids in, logits out. A class that names `Decoder` as its base gets the defaults."""

    context_length: int
    """Maximum number of tokens in a row."""
    vocab_size: int
    pass_cost: int | None = None
    """What one pass costs, in tokens fed; None: as much as the whole window. Prompt lookup weighs drafts by it."""

    def __call__(self, rows: Sequence[Ids], counts: Sequence[int]) -> list[Logits]:
        """Logits (counts[i], vocab_size) at the last `counts[i]` positions of each row (1 to context_length ids)."""
        ...

    def clear(self) -> None:
        """Forget earlier calls and free what was kept for later ones; most decoders keep nothing."""
        return
