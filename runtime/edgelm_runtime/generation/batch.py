"""Rows that advance together, a pass at a time, and may join and leave between two passes.

A row whose prompt is still to be computed takes it in chunks, one chunk per step, so that whoever waits for another
row, or wants to cancel, never waits for a whole prompt.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from edgelm_runtime.arrays import Ids, Logits
from edgelm_runtime.errors import OptionError
from edgelm_runtime.generation.results import ContextWarning
from edgelm_runtime.generation.sequence import AUTO_DRAFT, Row

if TYPE_CHECKING:
    from edgelm_runtime.generation.decoder import Decoder, Slots
    from edgelm_runtime.generation.options import Limits
    from edgelm_runtime.generation.results import FinishReason, Piece

Window = tuple[Ids, int]


class Batch:
    """Advances the rows that have joined. Serves one thread.

    `interleave`: rows that have begun go on while another's prompt is computed. Each of them waits less, and all
    together take longer, since passes with few rows are not much faster than those with many.
    """

    def __init__(self, decoder: Decoder, slots: Slots, interleave: bool = False) -> None:
        self._decoder = decoder
        self._states = slots
        self._interleave = interleave
        self._slots: dict[Row, int] = {}
        self._turn = 0
        self._last_turn: dict[Row, int] = {}  # at which the prompt of each went on

    def __len__(self) -> int:
        return len(self._slots)

    def join(self, row: Row) -> None:
        """Let a row take part from the next step on."""
        self._slots[row] = self._states.acquire(row.ids[-self._decoder.context_length :])

    def leave(self, row: Row) -> None:
        """Let a row take no further part."""
        self._states.release(self._slots.pop(row))
        self._last_turn.pop(row, None)

    def step(self) -> list[tuple[Row, Iterator[Piece]]]:
        """One pass, or a chunk of a prompt and a pass: the rows that got logits, with what they make of them.

        An iterator of pieces has to be used up before the next step, and raises what is wrong with its row.
        """
        windows = {row: self._window(row) for row in self._slots}
        ready = self._prefilled(windows)
        logits = self._logits(ready, windows)
        return [(row, self._pieces(row, one)) for row, one in zip(ready, logits, strict=True)]

    def _window(self, row: Row) -> Window:
        # A row with a draft is a pass of its own, which costs more than it gains, except where all rows repeat
        # themselves: four of SmolLM2 in 4 bits took 2.1 CPU seconds without drafts and 2.3 to 3.0 with them, and
        # 2.7 to 2.9 and 2.5 on lists that repeat. Without a cache a draft is a few tokens more in the same pass.
        drafting = len(self._slots) == 1 or not self._states.chunk
        return row.next_window(self._decoder.context_length, self._decoder.pass_cost, drafting)

    def _prefilled(self, windows: dict[Row, Window]) -> list[Row]:
        """Compute a chunk of a prompt, where there is one to compute; the rows that are ready for a pass."""
        left = {row: self._states.remaining(self._slots[row], *windows[row]) for row in windows}
        long = [row for row in windows if left[row] - windows[row][1] > AUTO_DRAFT]
        if not long:
            return list(windows)
        chosen = self._next(long, left)
        others = [row for row in windows if row not in long] if self._interleave else []
        if left[chosen] > self._states.chunk:
            with contextlib.suppress(Exception):  # if it fails, the pass below says so
                self._states.prefill(self._slots[chosen], *windows[chosen])
                return others
        return [chosen, *others]

    def _next(self, rows: list[Row], left: dict[Row, int]) -> Row:
        """Whose prompt goes on: in turn the one that has waited longest, and the one nearest to its first token.

        The first alone would let short prompts wait for long ones, the second alone would let a long one wait for ever
        (a window that slides is a prompt at each step).
        """
        self._turn += 1
        if not self._interleave:
            return rows[0]
        chosen = min(
            rows, key=left.__getitem__ if self._turn % 2 else lambda row: self._last_turn.get(row, 0)
        )
        self._last_turn[chosen] = self._turn
        return chosen

    def _logits(self, rows: list[Row], windows: dict[Row, Window]) -> list[Logits | Exception]:
        """Logits for each row, or what went wrong. Where a pass fails, each row is tried alone, so that one that
        cannot be computed takes no other with it."""
        if not rows:
            return []
        ids, counts = zip(*(windows[row] for row in rows), strict=True)
        try:
            return [*self._states.logits([self._slots[row] for row in rows], ids, counts)]
        except Exception as error:
            if len(rows) == 1:
                return [error]
            return [one for row in rows for one in self._logits([row], windows)]

    def _pieces(self, row: Row, logits: Logits | Exception) -> Iterator[Piece]:
        if isinstance(logits, Exception):
            raise logits
        yield from row.accept(logits, self._decoder.context_length)


def refusal(row: Row, context: int) -> Piece | None:
    """The last piece of a row that may not make a single token."""
    if row.limits.max_new_tokens == 0:
        return row.finish("length")
    if row.limits.overflow == "stop" and row.length >= context:
        return row.finish("context")
    return None


def interrupted(limits: Limits, started: float) -> FinishReason | None:
    """Why rows that began at `started` (by `time.perf_counter`) end before their next pass, if they do."""
    if limits.cancel is not None and limits.cancel.is_set():
        return "cancelled"
    if limits.max_time is not None and time.perf_counter() - started >= limits.max_time:
        return "time"
    return None


def unfinished(rows: Iterable[Row]) -> list[Row]:
    """Those that have not ended."""
    return [row for row in rows if row.finish_reason is None]


def check_context(rows: Sequence[Row], limits: Limits, context: int) -> None:
    """Raise OptionError where prompts do not fit and must; warn where they are cut to their last tokens."""
    longest = max((row.prompt_length for row in rows), default=0)
    if limits.overflow == "error" and longest + limits.max_new_tokens > context:
        raise OptionError(
            f"a prompt of {longest} tokens and {limits.max_new_tokens} new ones exceed the context of {context}",
            "shorten the prompt, ask for fewer tokens, or let the window slide",
        )
    if longest > context:
        warnings.warn(
            f"the prompt has {longest} tokens and the model sees {context}: "
            f"the first {longest - context} are left out",
            ContextWarning,
            stacklevel=4,
        )
