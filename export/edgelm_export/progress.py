"""How the exporter tells what is going on: a function of one line of text."""

from __future__ import annotations

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
