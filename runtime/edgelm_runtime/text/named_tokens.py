"""Where text spells tokens that are taken out before any merging: added tokens, and special tokens on request."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Literal

from edgelm_runtime.text.longest_match import longest_of

Strip = Literal["left", "right", "both"]

# Unicode's White_Space property; Python's `str.isspace` also counts four separators (U+001C to U+001F).
_SPACES = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_SPACES_AHEAD = re.compile(f"[{_SPACES}]*")


class NamedTokens:
    """A set of token texts, the longest of which counts at each place.

    `strip` names those that swallow the white space next to them, on the left, the right or both sides.
    """

    def __init__(self, names: Collection[str], strip: Mapping[str, Strip]) -> None:
        self._pattern = re.compile(longest_of(sorted(names))) if names else None
        self._left = {name for name in names if strip.get(name) in ("left", "both")}
        self._right = {name for name in names if strip.get(name) in ("right", "both")}

    def places(self, text: str) -> Iterator[tuple[int, int, str]]:
        """(start, end, name) of each token in `text`, from left to right."""
        if self._pattern is None:
            return
        done = 0
        for match in self._pattern.finditer(text):
            start, end, name = match.start(), match.end(), match.group()
            if start < done:
                continue  # it begins in the white space that the token before it has taken
            if name in self._left:
                start = done + len(text[done:start].rstrip(_SPACES))
            if name in self._right:
                ahead = _SPACES_AHEAD.match(text, end)
                end = ahead.end() if ahead else end
            yield start, end, name
            done = end
