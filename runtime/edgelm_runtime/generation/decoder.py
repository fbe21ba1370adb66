"""What the loop needs of a model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
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


class Slots(Protocol):
    """Where a decoder keeps what it has computed of rows, a slot for each. Serves one thread at a time."""

    chunk: int
    """Maximum number of tokens in a pass; 0 where nothing is kept, and every pass takes whole rows."""
    tokens: int = 0
    """Tokens whose states are kept."""
    reused: int = 0
    """Tokens so far that an earlier text, or another one, had computed."""
    bytes: int = 0
    """Memory that the states take now."""
    bytes_limit: int = 0
    """Memory that they take at most."""

    def acquire(self, row: Ids) -> int:
        """A slot for a text that begins as `row`, until `release`."""

    def release(self, slot: int) -> None:
        """Give a slot back. What it holds may serve a later text that begins alike."""

    def remaining(self, slot: int, row: Ids, count: int) -> int:
        """How many tokens of `row` a call of `logits` would compute now; 0 where nothing is kept."""

    def prefill(self, slot: int, row: Ids, count: int) -> None:
        """Compute the next `chunk` tokens of `row`, short of the last `count`."""

    def logits(self, slots: Sequence[int], rows: Sequence[Ids], counts: Sequence[int]) -> list[Logits]:
        """As `Decoder.__call__`, for the row of each slot."""


class WholeRows(Slots):
    """The slots of a decoder that keeps nothing."""

    chunk = 0

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def acquire(self, row: Ids) -> int:
        return 0

    def release(self, slot: int) -> None:
        return

    def remaining(self, slot: int, row: Ids, count: int) -> int:
        return 0

    def prefill(self, slot: int, row: Ids, count: int) -> None:
        return

    def logits(self, slots: Sequence[int], rows: Sequence[Ids], counts: Sequence[int]) -> list[Logits]:
        return self._decoder(rows, counts)


def slots_of(decoder: Decoder, prompts: Sequence[Ids] = (), count: int = 0) -> AbstractContextManager[Slots]:
    """Slots for rows that begin as `prompts`, from what earlier calls left; with a `count`, so many of their own."""
    make: Any = getattr(decoder, "slots", None)
    kept: AbstractContextManager[Slots] = (
        nullcontext(WholeRows(decoder)) if make is None else make(prompts, count)
    )
    return kept
