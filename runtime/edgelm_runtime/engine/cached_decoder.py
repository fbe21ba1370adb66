"""The decoder with a key-value cache: feeds only what it has not seen, and remembers between calls.

It answers like any other decoder and is a memo: it looks up how much of each row a cache begins with, and feeds the
rest. A rejected draft, the next turn of a conversation, another sample of the same prompt and a row that leaves its
batch are all the same case. A window that slides begins with another token, so every step computes it in full, as
without a cache: what the model saw of the first token is in the states of all that follow.

Caches are kept in a small pool, so that one decoder serves many threads and several conversations.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence

from edgelm_runtime.arrays import Ids, Logits
from edgelm_runtime.engine.forks import renewed_in_children
from edgelm_runtime.engine.kv_buffers import cache_device
from edgelm_runtime.engine.kv_cache import Cache
from edgelm_runtime.engine.session import Session

MOST_CACHES = 4
"""Caches kept for later; more exist only while more threads than this run at once."""

DRAFT = 16
"""Tokens per row that are no more than a rejected draft, or a step."""


class CachedDecoder:
    """Runs a graph that was exported with a cache (see "Cache contract" in export/README.md)."""

    pass_cost: int | None = 8
    """A step costs about as much as feeding this many tokens more, since it waits for the weights from memory.

    Measured with SmolLM2: 4 in 4 bits, 18 in float32. Rejected drafts may cost a fiftieth of what is fed, by this.
    """

    def __init__(self, session: Session, context_length: int, vocab_size: int) -> None:
        self.context_length = context_length
        self.vocab_size = vocab_size
        self._session = session
        self._lock = threading.Lock()
        self._idle: list[Cache] = []  # the least recently used first
        renewed_in_children(self)

    def renew_in_child(self) -> None:
        """In a forked child: another thread may have held the lock, and a device's memory belongs to the parent."""
        self._lock = threading.Lock()
        if self._idle and cache_device(self._session) is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._idle))  # never freed here
            self._idle = []

    def __call__(self, rows: Sequence[Ids], counts: Sequence[int]) -> list[Logits]:
        cache = self._take(rows)
        logits = cache.logits(rows, counts)  # where this fails, the cache is not used again
        with self._lock:
            if not self._session.closed:  # a cache holds on to the session that it is bound to
                self._idle.append(cache)
                del self._idle[:-MOST_CACHES]
        return [row[:, : self.vocab_size] for row in logits]

    def clear(self) -> None:
        """Forget all earlier calls and free their memory."""
        with self._lock:
            self._idle.clear()

    def _take(self, rows: Sequence[Ids]) -> Cache:
        """The cache that knows most of `rows`, or a new one where that would cost another conversation its place."""
        with self._lock:
            known = {cache: cache.known(rows) for cache in self._idle}
            best = max(known, key=known.__getitem__, default=None)
            if best is None or (len(known) < MOST_CACHES and not _continues(best.held, known[best], rows)):
                return Cache(self._session, self.context_length)
            self._idle.remove(best)
            return best


def _continues(held: int, known: int, rows: Sequence[Ids]) -> bool:
    """Whether `rows` go on from the `held` tokens of a cache that knows so many of theirs: they drop little of
    what it holds, or add little to it."""
    few = DRAFT * len(rows)
    new = sum(map(len, rows)) - known
    return held - known <= few or new <= min(few, known)
