"""What `edgelm train` and `edgelm demo` show while they work.

On a terminal one line is rewritten in place; elsewhere (a log, a pipe) a plain line appears now and then.
"""

from __future__ import annotations

import shutil
import time
from types import TracebackType
from typing import TextIO

import click

from edgelm.training.report import Figures

# Seconds between two updates: eyes on a terminal, lines in a log.
_TERMINAL_PACE, _LOG_PACE = 0.2, 10.0


class Display:
    """Shows a run's events on `stream`; an implementation of `edgelm.training.report.Reporter`."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.live = stream.isatty()
        self._shown = 0.0
        self._measured = ""
        self._open_line = False

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_line()

    def note(self, text: str) -> None:
        """Print one line that stays."""
        self._end_line()
        click.echo(text, file=self.stream)

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show how far reading and encoding are."""
        self._show(f"{what} {done / 1e6:.1f} of {total / 1e6:.1f} MB", stays=done >= total)

    def step(self, figures: Figures, progress: float, tokens_per_second: float, seconds_left: float) -> None:
        """Show a step, at most every so often; a validation or the last step always."""
        if figures.val_loss is not None:
            self._measured = f"  held out {figures.val_loss:.3f}"
            if not self.live:  # a terminal's line is short
                self._measured += f" ({figures.val_bits_per_byte:.3f} bits/byte)"
        self._show(
            f"step {figures.step:,} {_bar(progress) if self.live else ''}{progress:4.0%}  "
            f"{_duration(seconds_left)} left  {tokens_per_second:,.0f} tokens/s  "
            f"loss {figures.loss:.3f}{self._measured}",
            stays=(figures.val_loss is not None and not self.live) or progress >= 1,
        )

    def _show(self, line: str, stays: bool) -> None:
        now = time.monotonic()
        if not stays and now - self._shown < (_TERMINAL_PACE if self.live else _LOG_PACE):
            return
        self._shown = now
        if not self.live:
            click.echo(line, file=self.stream)
            return
        # Erase the line, then write it anew, no wider than the terminal: a wrapped line cannot be erased.
        line = line[: shutil.get_terminal_size().columns - 1]
        click.echo(f"\r\x1b[2K{line}", file=self.stream, nl=False)
        self._open_line = True
        if stays:
            self._end_line()

    def _end_line(self) -> None:
        if self._open_line:
            click.echo("", file=self.stream)
            self._open_line = False


def _bar(share: float, width: int = 10) -> str:
    filled = round(share * width)
    return f"[{'#' * filled}{'-' * (width - filled)}] "


def _duration(seconds: float) -> str:
    if seconds == float("inf"):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
