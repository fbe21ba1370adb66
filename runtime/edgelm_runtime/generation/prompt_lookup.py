"""Drafting by prompt lookup: text that repeats itself predicts its own next tokens.

The draft is what followed the longest recent match of the last tokens, in the window or in a reference text
that the user gave. The loop checks a whole draft in one pass and keeps what it would have drawn anyway, so
drafting changes speed and never text. (Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from edgelm_runtime.arrays import Ids

LONGEST_MATCH = 16
SHORTEST_MATCH = 2
FIRST_DRAFT = 4
WASTE = 0.02


def draft(ids: Ids, most: int, reference: Ids | None = None, shortest: int = SHORTEST_MATCH) -> Ids:
    """Up to `most` tokens that followed the longest match of the end of `ids` (T,); empty without one.

    Matches shorter than `shortest` do not count. Of equally long ones the most recent wins, and the text
    itself wins over `reference`. A match whose continuation reaches the end of `ids` goes on from its start:
    text that has just repeated itself is taken to do so again.
    """
    best, length = _longest_match(ids[:-1], ids)
    found = np.resize(ids[best:], most)
    if reference is not None and len(reference):
        best, longer = _longest_match(reference, ids)
        if longer > length:
            found, length = reference[best : best + most], longer
    return found if length >= shortest else found[:0]


def _longest_match(text: Ids, tail: Ids) -> tuple[int, int]:
    """(position after the match, its length) of the longest, then last, match of the end of `tail` in `text`."""
    ends = np.flatnonzero(text == tail[-1])
    if not len(ends):
        return 0, 0
    length = 1
    while length < min(LONGEST_MATCH, len(tail)):
        starts = ends - length
        longer = ends[(starts >= 0) & (text[starts] == tail[-1 - length])]
        if not len(longer):
            break
        ends, length = longer, length + 1
    return int(ends[-1]) + 1, length


class DraftLength:
    """How many tokens to draft, so that drafting pays where text repeats itself and is all but free elsewhere.

    Costs and gains are counted in tokens that the decoder is fed: a rejected token wastes one, an accepted one
    saves a pass (over the whole window where nothing is cached). Drafts may waste `WASTE` of all that is fed
    anyway, and what drafting has saved, but no more than one pass at a time. Within that, a draft that was accepted
    entirely doubles the length, one that was rejected entirely halves it.
    """

    def __init__(self, most: int, fixed: bool = False) -> None:
        self._most = most
        self._fixed = fixed
        self._length = most if fixed else min(FIRST_DRAFT, most)
        self._budget = 0.0

    def next(self) -> int:
        """Tokens to draft now."""
        return self._length if self._fixed else min(self._length, int(self._budget))

    def update(self, cost: int, drafted: int, accepted: int) -> None:
        """Learn from a pass that would have cost `cost` tokens without the draft."""
        if self._fixed:
            return
        budget = self._budget + (WASTE + accepted) * cost - (drafted - accepted)
        self._budget = min(budget, cost)
        if accepted:
            self._length = min(2 * accepted, self._most)
        elif drafted:
            self._length = max(self._length // 2, 1)
