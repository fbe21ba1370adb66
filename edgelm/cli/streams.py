"""Standard input, output and error, whatever state a program is started with them in."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from typing import Any

import click


def open_streams() -> None:
    """Put something in the place of closed streams, and let output replace what its encoding cannot hold.

    Where 0, 1 or 2 is free, the next file that anything opens would get that number, and what is printed would be
    written into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def silence() -> None:
    """Have what is still in the buffers go nowhere: a stream that has failed fails again when Python ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError, io.UnsupportedOperation):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


def print_json(value: Any, indent: int | None = None) -> None:
    """Print a value as JSON, in ASCII where the output's encoding could not hold every character."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    click.echo(json.dumps(value, indent=indent, ensure_ascii=encoding != "utf8"))
