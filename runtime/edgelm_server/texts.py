"""The texts that one request asks for, made by the engine and handed to the event loop a piece at a time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from anyio.to_thread import run_sync

from edgelm_runtime.arrays import Ids
from edgelm_runtime.errors import QueueFullError
from edgelm_runtime.generation.results import Piece
from edgelm_runtime.serving.engine import Engine
from edgelm_runtime.serving.ticket import Ticket
from edgelm_server.errors import ApiError
from edgelm_server.metrics import Metrics

RETRY_SECONDS = 0.02


@dataclass(frozen=True)
class Job:
    """One text to make: prompt ids (T,), and the runtime's options; `sample` tells apart texts of one prompt."""

    prompt: Ids
    options: dict[str, Any]
    sample: int = 0


class Texts:
    """Makes the texts of `jobs`. `start` raises what is wrong with them; `pieces` then gives all pieces as they
    come, with the number of their job; `cancel` frees what is still held, and must be called at the end.

    A request has at most as many texts under way as the engine has slots, so that a long list of prompts
    does not fill the queue for everybody else.
    """

    def __init__(self, engine: Engine, jobs: Sequence[Job], metrics: Metrics) -> None:
        self._engine = engine
        self._metrics = metrics
        self._waiting = deque(enumerate(jobs))
        self._running: dict[int, Ticket] = {}
        self._parallel = engine.status().parallel
        self._arrived: asyncio.Queue[tuple[int, Piece | BaseException]] = asyncio.Queue()
        self._started: dict[int, float] = {}
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Hand the first texts to the engine. Raises QueueFullError, OptionError, ClosedError."""
        await run_sync(self._submit)
        await self._fill()

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """(job, piece), until every job has given its last. Raises what ended a text."""
        while self._running or self._waiting:
            if not self._running:
                await asyncio.sleep(RETRY_SECONDS)
                await self._fill()
                continue
            index, piece = await self._arrived.get()
            if isinstance(piece, BaseException):
                raise piece
            if (started := self._started.pop(index, None)) is not None:
                self._metrics.first_token_seconds.observe(time.monotonic() - started)
                if piece.finish_reason == "time":
                    raise ApiError(503, "no slot was free in time; try again later", code="timeout")
            if piece.finish_reason == "cancelled":
                raise ApiError(503, "the server is shutting down", code="shutting_down")
            if piece.finish_reason is not None:
                del self._running[index]
                await self._fill()
            yield index, piece

    def cancel(self) -> None:
        """Take back what is queued or running."""
        self._waiting.clear()
        for ticket in self._running.values():
            ticket.cancel()

    async def _fill(self) -> None:
        while self._waiting and len(self._running) < self._parallel:
            try:
                await run_sync(self._submit)
            except QueueFullError:
                return

    def _submit(self) -> None:
        """Runs in a thread, since tokenizing and compiling a constraint take a while."""
        index, job = self._waiting[0]
        self._started[index] = time.monotonic()
        ticket = self._engine.submit(job.prompt, sample=job.sample, **job.options)
        self._running[index] = ticket
        self._waiting.popleft()
        ticket.on_piece = partial(self._hand_over, index)
        ticket.on_end = partial(self._end, index)

    def _end(self, index: int, error: BaseException | None) -> None:
        if error is not None:
            self._hand_over(index, error)

    def _hand_over(self, index: int, item: Piece | BaseException) -> None:
        """Called in the engine's thread."""
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and nobody waits
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, (index, item))
