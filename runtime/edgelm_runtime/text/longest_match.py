"""One regular expression for the longest of many words at a place in a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby, takewhile

DEEPEST = 20
"""Levels of the tree. `re` follows groups inside groups by calling itself, and a chain of words, each the beginning of
the next, makes as many levels as it has words."""


def longest_of(words: Sequence[str], depth: int = DEEPEST) -> str:
    """A pattern that matches the longest of `words` (sorted, distinct) at a place.

    It is a tree over their common prefixes: vocabularies exist with thousands of added tokens that start alike,
    and alternatives in a row would each be tried at every character. Below `depth` levels they are in a row.
    """
    if not depth:
        return f"(?:{'|'.join(map(re.escape, sorted(words, key=len, reverse=True)))})"
    branches = []
    for _, group in groupby([word for word in words if word], key=lambda word: word[0]):
        alike = list(group)
        # Of sorted words the first and the last differ earliest.
        pairs = zip(alike[0], alike[-1], strict=False)
        stem = "".join(character for character, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        branches.append(re.escape(stem) + longest_of([word[len(stem) :] for word in alike], depth - 1))
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)})" + ("?" if "" in words else "")
