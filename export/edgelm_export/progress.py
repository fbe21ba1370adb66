"""How the exporter tells what is going on: a function of one line of text."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str], None]


def quiet(line: str) -> None:
    """A report to nobody."""
