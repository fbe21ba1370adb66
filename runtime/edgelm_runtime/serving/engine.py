"""The engine: one thread that owns the decoder and advances the requests of many callers together."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from edgelm_runtime.errors import ClosedError, QueueFullError
from edgelm_runtime.generation.decoder import Decoder
from edgelm_runtime.generation.keywords import Options
from edgelm_runtime.generation.loop import check_context, run
from edgelm_runtime.generation.results import Piece
from edgelm_runtime.generation.sequence import Row
from edgelm_runtime.serving.ticket import Request, Ticket
from edgelm_runtime.validation import number, whole

if TYPE_CHECKING:
    from typing_extensions import Unpack

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
        self._reasons: Counter[str] = Counter()
        self._wake = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._active: dict[Request, Iterator[Piece]] = {}
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
        self, messages: Sequence[Mapping[str, Any]], *, sample: int = 0, **options: Unpack[Options]
    ) -> Ticket:
        """Ask for the assistant's answer to a conversation; otherwise as `submit`."""
        return self._enter(self._make_chat_row(messages, sample=sample, **options))

    def _enter(self, row: Row) -> Ticket:
        check_context([row], row.limits, self._decoder.context_length)
        request = Request(row, self._notify)
        with self._wake:
            self._check_open()
            status = self._status
            if len(self._waiting) >= status.queue + max(0, status.parallel - len(self._active)):
                status.refused += 1
                raise QueueFullError(
                    f"{len(self._active)} requests are being answered and {len(self._waiting)} wait",
                    "try again later",
                )
            status.submitted += 1
            self._waiting.append(request)
            self._wake.notify_all()
        return Ticket(request)

    def _check_open(self) -> None:
        if self._closing or self._process != os.getpid():
            raise ClosedError("the engine is closed", "make a new one")

    def status(self) -> EngineStatus:
        """Counts of this moment."""
        with self._wake:
            self._status.active, self._status.queued = len(self._active), len(self._waiting)
            return EngineStatus(**{**vars(self._status), "finished": dict(self._reasons)})

    def ping(self, timeout: float = 5.0) -> bool:
        """Whether the engine's thread answers within `timeout` seconds. It does between two steps."""
        answered = threading.Event()
        with self._wake:
            if self._closing or self._process != os.getpid():
                return False
            self._pings.append(answered)
            self._wake.notify_all()
        return answered.wait(timeout)

    def close(self, drain: float = 0.0) -> None:
        """Take no further requests, let those that are here go on for `drain` seconds, and cancel the rest."""
        number("drain", drain, 0, float("inf"))
        with self._wake:
            self._deadline = time.perf_counter() + drain
            self._closing = True
            self._wake.notify_all()
        if self._process == os.getpid() and threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify_all()

    def _serve(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(
                    lambda: self._waiting or self._active or self._pings or self._closing,
                )
                for ping in self._pings:
                    ping.set()
                self._pings.clear()
                if self._closing and time.perf_counter() >= self._deadline:
                    for request in (*self._waiting, *self._active):
                        request.cancelled = True
                while self._waiting and len(self._active) < self._status.parallel:
                    request = self._waiting.popleft()
                    self._active[request] = run(self._decoder, [request.row], request.row.limits)
                if self._closing and not self._active:
                    return
            self._step()

    def _step(self) -> None:
        self._status.steps += 1
        for request, pieces in list(self._active.items()):
            try:
                piece = request.row.finish("cancelled") if request.cancelled else next(pieces)
                request.tell(piece)
            except BaseException as error:
                self._leave(request, None if isinstance(error, StopIteration) else error)
            else:
                if piece.finish_reason:
                    self._leave(request)

    def _leave(self, request: Request, error: BaseException | None = None) -> None:
        with self._wake:
            del self._active[request]
            self._reasons["error" if error else str(request.row.finish_reason)] += 1
            self._status.tokens += request.stats.tokens
        with contextlib.suppress(Exception):  # from the caller's function, when there is nothing left to end
            request.end(error)


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _close_all() -> None:
    """Before the interpreter goes: a run that is under way would outlive it."""
    for engine in list(_engines):
        engine.close()


atexit.register(_close_all)
