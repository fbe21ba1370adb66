"""Characters that stand for special-token text inside a message while a template is filled in."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from edgelm_runtime.text.longest_match import longest_of

PRIVATE_USE = range(0xF0000, 0x110000)


class StandIns:
    """Private-use characters that do not occur in `values`, each for one text."""

    def __init__(self, values: Any) -> None:
        self.meant: dict[str, str] = {}
        """The text that each character stands for."""
        self._of: dict[str, str] = {}
        taken = {character for text in _texts(values) for character in text}
        self._unused: Iterator[str] = (chr(code) for code in PRIVATE_USE if chr(code) not in taken)

    def new(self) -> str:
        """A character that stands for nothing yet."""
        return next(self._unused)

    def put(self, value: Any, texts: Collection[str]) -> Any:
        """`value` with a character in the place of each of `texts`, the longest first, wherever it is spelled."""
        pattern = longest_of(sorted(texts))
        return self._put(value, re.compile(pattern)) if pattern else value

    def found_again(self, text: str) -> str:
        """`text` with the characters that JSON in ASCII spells as escapes."""
        for character in self.meant:
            text = text.replace(json.dumps(character)[1:-1], character)
        return text

    def _put(self, value: Any, pattern: re.Pattern[str]) -> Any:
        if isinstance(value, dict):
            return {key: self._put(item, pattern) for key, item in value.items()}
        if isinstance(value, list):
            return [self._put(item, pattern) for item in value]
        return pattern.sub(self._character, value) if isinstance(value, str) else value

    def _character(self, match: re.Match[str]) -> str:
        text = match.group()
        if text not in self._of:
            self._of[text] = self.new()
            self.meant[self._of[text]] = text
        return self._of[text]


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
