"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from edgelm_runtime.validation import stop_strings


class Stopper:
    """Lets text through up to the first stop string, which may span pieces.

    Text that could still become a stop string is held back until it is decided. The stop string that
    completes first wins (of two that end together, the longer), so the result does not depend on how the
    text is split.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        stop_strings("stop", stops)
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Text that may be shown now, and whether a stop string was met (which is not shown)."""
        buffer = self._held + text
        if found := self._first_stop(buffer):
            self._held = ""
            return buffer[: found[0]], True
        keep = self._undecided(buffer)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep], False

    def flush(self) -> str:
        """Text held back that did not become a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_stop(self, buffer: str) -> tuple[int, int] | None:
        """(start, end) of the stop string that completes first."""
        spans = [(at, at + len(stop)) for stop in self._stops if (at := buffer.find(stop)) >= 0]
        return min(spans, key=lambda span: (span[1], span[0]), default=None)

    def _undecided(self, buffer: str) -> int:
        """Length of the longest end of `buffer` that begins some stop string."""
        for length in range(min(self._longest - 1, len(buffer)), 0, -1):
            end = buffer[len(buffer) - length :]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
