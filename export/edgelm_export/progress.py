"""How the exporter tells what is going on: a function of one line of text."""

from __future__ import annotations

import time
from collections.abc import Callable

Report = Callable[[str], None]


def quiet(line: str) -> None:
    """A report to nobody."""


def unfailing(report: Report) -> Report:
    """`report` until it cannot be written any more: a reader that has gone (`edgelm export ... | head -1`) or a full
    disk under a log is no reason to lose the model file."""
    failed = False

    def guarded(line: str) -> None:
        nonlocal failed
        if not failed:
            try:
                report(line)
            except (OSError, ValueError):  # ValueError: the stream is closed, or cannot encode the line
                failed = True

    return guarded


QUIET_SECONDS = 5.0  # of work without a word


class Progress:
    """Tells how far a loop of `total` similar steps is, and the time left, every few seconds; short loops are quiet."""

    def __init__(self, report: Report, what: str, total: int) -> None:
        self._report, self._what, self._total = report, what, total
        self._done = 0
        self._began = self._told = time.monotonic()

    def step(self) -> None:
        """One more is done."""
        self._done += 1
        now = time.monotonic()
        if now - self._told >= QUIET_SECONDS and self._done < self._total:
            left = (now - self._began) / self._done * (self._total - self._done)
            self._told = now
            self._report(f"{self._what}: {self._done} of {self._total}, about {_time(left)} left")


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
