"""Ctrl-C and SIGTERM as a request to stop at the end of a step, so that the run can be saved."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopRequest:
    """Whether a signal has asked the run to stop."""

    stop: bool = False


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """While the block runs, the first SIGINT or SIGTERM asks to stop; a second interrupts as usual."""
    asked = StopRequest()
    numbers = (signal.SIGINT, signal.SIGTERM)
    try:
        former = {number: signal.getsignal(number) for number in numbers}

        def ask(number: int, frame: FrameType | None) -> None:
            asked.stop = True
            signal.signal(number, former[signal.Signals(number)])

        for number in numbers:
            signal.signal(number, ask)
    except ValueError:  # not the main thread, where a program that embeds training handles signals itself
        yield asked
        return
    try:
        yield asked
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
