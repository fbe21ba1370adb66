"""A request to an engine: the side that the engine writes, and the side that its caller reads."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from edgelm_runtime.generation.results import Generation, Piece, Stats
from edgelm_runtime.generation.sequence import finished

if TYPE_CHECKING:
    from edgelm_runtime.generation.sequence import Row

OnPiece = Callable[[Piece], None]
OnEnd = Callable[[BaseException | None], None]


class Request:
    """One text on its way through an engine. The engine's thread writes it, a `Ticket` reads it."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.stats = Stats(prompt_tokens=row.prompt_length)
        self.started = time.perf_counter()
        self.cancelled = False  # the engine looks at it before each step
        self.pieces: list[Piece] = []
        self.ended = False
        self.error: BaseException | None = None
        self.changed = threading.Condition()
        self.on_piece: OnPiece | None = None
        self.on_end: OnEnd | None = None

    def tell(self, piece: Piece) -> None:
        """Hand a piece to the caller. Raises what the caller's functions raise."""
        self.stats.seconds = time.perf_counter() - self.started
        if piece.token_id is not None:
            self.stats.tokens += 1
            self.stats.first_token_seconds = self.stats.first_token_seconds or self.stats.seconds
        with self.changed:
            self.pieces.append(piece)
            self.changed.notify_all()
            for function in (self.row.limits.on_token, self.on_piece):
                if function is not None:
                    function(piece)

    def end(self, error: BaseException | None = None) -> None:
        """Nothing follows. Raises what the caller's function raises."""
        with self.changed:
            self.ended, self.error = True, error
            self.stats.seconds = time.perf_counter() - self.started
            self.changed.notify_all()
            if self.on_end is not None:
                self.on_end(error)

    def more_than(self, told: int) -> list[Piece]:
        """Wait until there are more than `told` pieces, and give those; none where the text has ended before."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.pieces) > told or self.ended)
            return self.pieces[told:]

    def cancel(self) -> None:
        """Let the engine end this text before its next step."""
        self.cancelled = True


class Ticket:
    """What `Engine.submit` gives: iterate over it for the pieces, or ask for the `result`.

    A ticket that nobody holds any more cancels its request, so keep it for as long as the text is wanted.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        weakref.finalize(self, request.cancel).atexit = False

    def __iter__(self) -> Iterator[Piece]:
        """The pieces from the first on, as they are made; may be iterated several times.

        Raises what ended the request, where that was an error.
        """
        request, told = self._request, 0
        while pieces := request.more_than(told):
            yield from pieces
            told += len(pieces)
        if request.error is not None:
            raise request.error

    def result(self, timeout: float | None = None) -> Generation:
        """The whole text, when it is finished. Raises what ended the request, TimeoutError after `timeout` seconds."""
        request = self._request
        with request.changed:
            if not request.changed.wait_for(lambda: request.ended, timeout):
                raise TimeoutError(f"the text is not finished after {timeout} seconds")
        if request.error is not None:
            raise request.error
        return finished(request.row, request.pieces, request.stats)

    def cancel(self) -> None:
        """End the text before the engine's next step; its last piece says `cancelled`. From any thread."""
        self._request.cancel()

    @property
    def done(self) -> bool:
        """Whether the text is finished, or failed."""
        return self._request.ended

    @property
    def stats(self) -> Stats:
        """Counts of this request so far. `passes` are those that it took part in; times begin at `submit`."""
        return self._request.stats

    @property
    def on_piece(self) -> OnPiece | None:
        """A function called with each piece, in the engine's thread; it must not block.

        It is called at once with the pieces that exist already. One that raises ends its own request only.
        """
        return self._request.on_piece

    @on_piece.setter
    def on_piece(self, function: OnPiece | None) -> None:
        request = self._request
        with request.changed:
            request.on_piece = function
            if function is not None:
                for piece in request.pieces:
                    function(piece)

    @property
    def on_end(self) -> OnEnd | None:
        """A function called once after the last piece, with the error that ended the request or None."""
        return self._request.on_end

    @on_end.setter
    def on_end(self, function: OnEnd | None) -> None:
        request = self._request
        with request.changed:
            request.on_end = function
            if function is not None and request.ended:
                function(request.error)
