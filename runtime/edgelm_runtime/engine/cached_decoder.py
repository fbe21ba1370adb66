"""The decoder with a key-value cache: feeds only what it has not seen, and remembers between calls.

It answers like any other decoder and is a memo: it looks up how much of each row a cache begins with, and feeds the
rest. A rejected draft, the next turn of a conversation and another sample of the same prompt are all the same case.
A window that slides begins with another token, so every step computes it in full, as without a cache: what the model
saw of the first token is in the states of all that follow.

A cache serves one call at a time and holds several conversations; a small pool of them serves many threads.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edgelm_runtime.engine.forks import renewed_in_children
from edgelm_runtime.engine.kv_buffers import cache_device
from edgelm_runtime.engine.kv_cache import Cache

if TYPE_CHECKING:
    from edgelm_runtime.arrays import Ids, Logits
    from edgelm_runtime.engine.session import Session

MOST_CACHES = 4
"""Caches kept for later; more exist only while more threads than this run at once."""

MOST_SLOTS = 4
"""Slots that a cache keeps for later: a batch of hundreds gives its memory back when it is finished."""


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
        with self._borrowed(rows, len(rows)) as cache:
            slots = [cache.acquire(row) for row in rows]
            return cache.logits(slots, rows, counts)

    @contextmanager
    def slots(self, prompts: Sequence[Ids] = (), count: int = 0) -> Iterator[Cache]:
        """See `Decoder`. With a `count`, a cache of its own."""
        if count:
            yield Cache(self._session, self.context_length, self.vocab_size, count)
        else:
            with self._borrowed(prompts, 0) as cache:
                yield cache

    def clear(self) -> None:
        """Forget all earlier calls and free their memory."""
        with self._lock:
            self._idle.clear()

    @contextmanager
    def _borrowed(self, rows: Sequence[Ids], most_slots: int) -> Iterator[Cache]:
        """A cache out of the pool, and back into it with about `most_slots` slots, unless an error comes between."""
        cache = self._take(rows)
        try:
            yield cache
        except Exception:  # what it holds is not to be relied on
            raise
        except BaseException:  # such as GeneratorExit: a stream that is not read to its end
            self._put_back(cache, max(most_slots, MOST_SLOTS))
            raise
        self._put_back(cache, max(most_slots, MOST_SLOTS))

    def _put_back(self, cache: Cache, slots: int) -> None:
        cache.release_all()
        cache.keep(slots)
        with self._lock:
            if not self._session.closed:  # a cache holds on to the session that it is bound to
                self._idle.append(cache)
                del self._idle[:-MOST_CACHES]

    def _take(self, rows: Sequence[Ids]) -> Cache:
        """The idle cache that knows most of `rows`, or a new one where all are taken."""
        with self._lock:
            if not self._idle:
                return Cache(self._session, self.context_length, self.vocab_size, MOST_SLOTS)
            best = (
                max(self._idle, key=lambda cache: cache.known(rows)) if len(self._idle) > 1 else self._idle[0]
            )
            self._idle.remove(best)
            return best
