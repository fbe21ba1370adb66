"""The engine: one thread that owns the decoder and advances the requests of many callers together."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from edgelm_runtime.errors import ClosedError, QueueFullError
from edgelm_runtime.generation.batch import Batch, check_context, interrupted, refusal
from edgelm_runtime.generation.decoder import Decoder, slots_of
from edgelm_runtime.generation.sequence import Row
from edgelm_runtime.serving.ticket import Request, Ticket
from edgelm_runtime.validation import number, whole

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edgelm_runtime.generation.keywords import Options
    from edgelm_runtime.generation.results import FinishReason, Piece

MakeRow = Callable[..., Row]
"""(prompt or messages, sample=..., **options) -> Row. Raises OptionError."""


@dataclass
class EngineStatus:
    """Counts of an engine. Those of requests and tokens are since its start."""

    parallel: int
    """Requests that advance together at most: the slots."""
    queue: int
    """Requests that may wait for a slot at most."""
    active: int = 0
    queued: int = 0
    submitted: int = 0
    refused: int = 0
    """By a full queue."""
    finished: dict[str, int] = field(default_factory=dict)
    """Requests by their `finish_reason`; `error` for those that failed."""
    prompt_tokens: int = 0
    reused_tokens: int = 0
    """Of those, how many an earlier or another request had computed."""
    tokens: int = 0
    steps: int = 0
    first_token_seconds: float = 0.0
    """Sum over the `first_tokens` requests that have made a token, from `submit` on."""
    first_tokens: int = 0
    cache_tokens: int = 0
    """Tokens whose states the slots hold, those of finished requests included."""
    cache_bytes: int = 0
    cache_bytes_limit: int = 0
    """What the cache may grow to: slots x context. 0 without a cache."""


class Engine:
    """Serves up to `parallel` requests at once and lets up to `queue` more wait. Use it in a `with` block.

    `LanguageModel.engine` makes it. Safe in many threads; in a forked process it is closed.
    """

    def __init__(
        self, decoder: Decoder, make_row: MakeRow, make_chat_row: MakeRow, parallel: int, queue: int
    ) -> None:
        whole("parallel", parallel, 1, 1024)
        whole("queue", queue, 0)
        self._decoder = decoder
        self._make_row, self._make_chat_row = make_row, make_chat_row
        self._status = EngineStatus(parallel, queue)
        self._ended: Counter[str] = Counter()
        self._resources = contextlib.ExitStack()
        self._slots = self._resources.enter_context(slots_of(decoder, count=parallel))
        self._batch = Batch(decoder, self._slots, interleave=True)
        self._active: dict[Row, Request] = {}  # changed by the engine's thread alone
        self._wake = threading.Condition()  # guards what follows
        self._waiting: deque[Request] = deque()
        self._pings: list[threading.Event] = []
        self._closing = False
        self._deadline = 0.0
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._serve, name="edgelm-engine", daemon=True)
        self._thread.start()
        _engines.add(self)

    def submit(self, prompt: Any, *, sample: int = 0, **options: Unpack[Options]) -> Ticket:
        """Ask for a text. `options` are those of `LanguageModel.generate`; `sample` tells apart several texts
        of one prompt and seed, as its `n` does.

        Raises OptionError for what cannot be used, QueueFullError where too many wait, ClosedError after `close`.
        """
        return self._enter(self._make_row(prompt, sample=sample, **options))

    def submit_chat(
        self, messages: Sequence[Mapping[str, Any]], *, sample: int = 0, **options: Any
    ) -> Ticket:
        """Ask for the assistant's answer to a conversation, with the options of `LanguageModel.chat`; as `submit`."""
        return self._enter(self._make_chat_row(messages, sample=sample, **options))

    def _enter(self, row: Row) -> Ticket:
        check_context([row], row.limits, self._decoder.context_length)
        request = Request(row)
        with self._lock():
            if self._closing:
                raise ClosedError("the engine is closed", "make a new one")
            status, here = self._status, len(self._active) + len(self._waiting)
            if here >= status.parallel + status.queue:
                status.refused += 1
                raise QueueFullError(
                    f"{here} requests are here, and the engine takes {status.parallel} at once and "
                    f"{status.queue} that wait",
                    "try again later",
                )
            status.submitted += 1
            self._waiting.append(request)
            self._wake.notify_all()
        return Ticket(request)

    def _lock(self) -> threading.Condition:
        """What guards the queue. Raises ClosedError in a forked child, where the engine's thread does not exist and
        may have left the lock taken."""
        if self._process != os.getpid():
            raise ClosedError("the engine stayed in the parent process", "make a new one")
        return self._wake

    def status(self) -> EngineStatus:
        """Counts of this moment."""
        with self._lock():
            return replace(
                self._status,
                active=len(self._active),
                queued=len(self._waiting),
                finished=dict(self._ended),
                reused_tokens=self._slots.reused,
                cache_tokens=self._slots.tokens,
                cache_bytes=self._slots.bytes,
                cache_bytes_limit=self._slots.bytes_limit,
            )

    def ping(self, timeout: float = 5.0) -> bool:
        """Whether the engine's thread answers within `timeout` seconds. It does between two steps."""
        answered = threading.Event()
        with self._lock():
            if self._closing:
                return False
            self._pings.append(answered)
            self._wake.notify_all()
        return answered.wait(timeout)

    def close(self, drain: float = 0.0) -> None:
        """Take no further requests, let those that are here go on for `drain` seconds, and cancel the rest."""
        number("drain", drain, 0, float("inf"))
        if self._process != os.getpid():
            return
        with self._wake:
            self._deadline = time.perf_counter() + drain
            self._closing = True
            self._wake.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        with self._resources:
            while self._wait():
                try:
                    self._admit()
                    self._step()
                except (
                    Exception
                ) as error:  # not of a single request: the next ones are to find the engine alive
                    for request in list(self._active.values()):
                        self._end(request, error)

    def _wait(self) -> bool:
        """Sleep until there is something to do; False when the engine is to end."""
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or self._active or self._pings or self._closing)
            while self._pings:
                self._pings.pop().set()
            return bool(self._waiting or self._active or not self._closing)

    def _admit(self) -> None:
        """Let requests that wait have the slots that are free, after ending those that nobody waits for any more."""
        with self._wake:
            waiting = list(self._waiting)
        for request in waiting:
            row = request.row
            reason = self._reason_to_end(request)
            last = row.finish(reason) if reason else refusal(row, self._decoder.context_length)
            if last is None and len(self._active) == self._status.parallel:
                continue
            with self._wake:
                self._waiting.remove(request)
                if last is None:
                    self._batch.join(row)
                    self._active[row] = request
            if last is not None:
                self._deliver(request, [last])

    def _reason_to_end(self, request: Request) -> FinishReason | None:
        closing = self._closing and time.perf_counter() >= self._deadline
        if request.cancelled or closing:
            return "cancelled"
        return interrupted(request.row.limits, request.started)

    def _step(self) -> None:
        for request in list(self._active.values()):
            if reason := self._reason_to_end(request):
                self._deliver(request, [request.row.finish(reason)])
        if not self._active:
            return
        self._status.steps += 1
        for row, pieces in self._batch.step():
            request = self._active[row]
            request.stats.passes += 1
            self._deliver(request, pieces)

    def _deliver(self, request: Request, pieces: Iterable[Piece]) -> None:
        """Hand on what a step made. Whatever goes wrong there, in sampling or in the caller's functions, ends this
        request and no other."""
        row, error = request.row, None
        try:
            for piece in pieces:
                request.tell(piece)
        except Exception as raised:
            error = raised
        request.stats.drafted += row.drafted
        request.stats.accepted += row.accepted
        if error is not None or row.finish_reason:
            self._end(request, error)

    def _end(self, request: Request, error: Exception | None) -> None:
        if self._active.pop(request.row, None) is not None:
            self._batch.leave(request.row)
        with self._wake:
            self._ended["error" if error is not None else str(request.row.finish_reason)] += 1
            self._status.prompt_tokens += request.stats.prompt_tokens
            self._status.tokens += request.stats.tokens
            if request.stats.tokens:
                self._status.first_tokens += 1
                self._status.first_token_seconds += request.stats.first_token_seconds
        with contextlib.suppress(Exception):  # of the caller's function, when there is nothing left to end
            request.end(error)


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _close_all() -> None:
    """Before the interpreter goes: a run that is under way would outlive it."""
    for engine in list(_engines):
        engine.close()


atexit.register(_close_all)
