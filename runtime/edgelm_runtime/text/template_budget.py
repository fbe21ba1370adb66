"""What a chat template may use: steps, characters and seconds, counted before something large is made."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from jinja2 import TemplateError

MAX_STEPS = 300_000
"""Turns, calls and values; more for a long conversation."""
MAX_SECONDS = 5.0
MAX_DEPTH = 40
"""Blocks inside each other."""
MAX_SOURCE = 1 << 20
MAX_TEXT = 1 << 21
"""Characters of one text; more for a long conversation."""
MAX_ITEMS = 1 << 18
"""Items of a list or mapping, those of the lists inside it included; more for a long conversation."""
MAX_WIDTH = 1000
"""Columns that a text may be filled up to, and spaces to indent by."""
MAX_BITS = 4096
"""Bits of a whole number."""

# Widths of four digits in a format, and widths that are taken from the values.
_WIDE = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{4})|\{[^{}]*(?:\d{4}|:[^{}]*\{)")


class LimitError(TemplateError):
    """A template went beyond its budget."""


class Budget:
    """What is left to one rendering. `input_size` is the characters that the conversation holds."""

    def __init__(self, input_size: int) -> None:
        self.longest = MAX_TEXT + 4 * input_size
        self.items = MAX_ITEMS + input_size
        self.characters = 128 * self.longest
        self.steps = MAX_STEPS + input_size
        self.deadline = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        """One more turn, call or value."""
        self.steps -= 1
        if self.steps < 0:
            raise LimitError("it takes more steps than a chat template needs")
        if time.monotonic() > self.deadline:
            raise LimitError(f"it takes more than {MAX_SECONDS:.0f} seconds")

    def text(self, size: float) -> None:
        """A text of `size` characters is about to be made, or was made."""
        self.characters -= int(min(size, self.longest))
        if size > self.longest or self.characters < 0:
            raise LimitError("it makes more text than a chat template needs")

    def width(self, *values: Any) -> None:
        """Numbers that a text is filled up or indented by."""
        if any(isinstance(value, int) and abs(value) > MAX_WIDTH for value in values):
            raise LimitError(f"it asks for more than {MAX_WIDTH} columns")

    def made(self, value: Any) -> Any:
        """Count a value that a template made, and hand it on."""
        self.step()
        if isinstance(value, str):
            self.text(len(value))
        elif isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise LimitError("it makes a number that is too large")
        elif isinstance(value, (list, tuple, dict)) and _items(value, self.items) <= 0:
            raise LimitError("it makes a list that is too large")
        return value


def _items(value: Any, left: int) -> int:
    """What is `left` of a number of items after those of `value`, each as often as printing would show it."""
    parts = value.values() if isinstance(value, dict) else value
    left -= 1 + len(value)
    for part in parts:
        if left <= 0:
            break
        if isinstance(part, (list, tuple, dict)):
            left = _items(part, left)
    return left


def foresee(budget: Budget, name: str, text: str, given: Sequence[Any]) -> None:
    """Refuse a method or a filter of a text whose result would be too long, before it is made."""
    longest = max((len(value) for value in given if isinstance(value, str)), default=0)
    if name in ("center", "ljust", "rjust", "zfill", "expandtabs", "indent"):
        budget.width(*given)
        breaks = text.count("\n") + text.count("\t") + 1
        budget.text(len(text) + breaks * max(longest, MAX_WIDTH if given else 8))
    elif name == "replace":
        old = str(given[0]) if given else ""
        budget.text(len(text) + (text.count(old) if old else len(text) + 1) * longest)
    elif name == "format":
        if _WIDE.search(text):
            raise LimitError("it fills up a text to a width that is too large")
        size = sum(len(value) if isinstance(value, str) else len(str(budget.made(value))) for value in given)
        budget.text(len(text) + (text.count("%") + text.count("{")) * (size + MAX_WIDTH))


under_way: ContextVar[Budget] = ContextVar("under_way")


def now() -> Budget:
    """The budget of the rendering under way."""
    return under_way.get()
