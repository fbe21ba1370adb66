"""Bytes merged by rank, by tiktoken: text is cut into pieces by a regular expression, and each piece merged.

The expression may come from a file that nobody vouches for.

fancy-regex, which tiktoken uses, runs what needs no look-around in linear time and bounds the rest to a million
steps back. What it does not bound is the room that counted repetitions take: it writes them out one after the
other, and nested ones multiply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import tiktoken

from edgelm_runtime.errors import OptionError, TokenizerError

# A run of blanks is cut into parts of this length: the expression gives up on one of a million.
LONGEST_RUN = 1 << 16
_LONG_RUN = re.compile(rf"\s{{{LONGEST_RUN}}}(?=\s)")

LONGEST_PATTERN = 1 << 16
MOST_REPETITIONS = 1 << 12

# What matters of the syntax: escapes and classes are skipped, groups opened and closed, repetitions counted.
_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(|\)|\{(\d{1,9})?(?:,(\d{1,9})?)?\}", re.DOTALL)


class BytePairs:
    """The ranks that text becomes. Raises TokenizerError where tokens or pattern are not usable."""

    def __init__(self, tokens: Sequence[bytes], pattern: str) -> None:
        ranks = {token: rank for rank, token in enumerate(tokens)}
        if len(ranks) != len(tokens):
            raise TokenizerError("the tokenizer lists the same bytes twice", "make the tokenizer again")
        if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
            raise TokenizerError(
                f"the tokenizer has no token for byte {missing[0]:#04x}", "all 256 bytes must be present"
            )
        check_pattern(pattern)
        try:
            self._encoding = tiktoken.Encoding(
                "edgelm", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
            )
        except ValueError as error:
            raise TokenizerError(f"the tokenizer's pattern is not usable: {error}") from error

    def ranks(self, text: str) -> list[int]:
        """Ranks of `text`. Raises OptionError where the pattern gives up on it."""
        try:
            if len(text) <= LONGEST_RUN:
                return self._encoding.encode_ordinary(text)
            ends = [match.end() for match in _LONG_RUN.finditer(text)]
            parts = [text[start:end] for start, end in pairwise([0, *ends, len(text)])]
            return [rank for part in parts for rank in self._encoding.encode_ordinary(part)]
        except BaseException as error:  # a panic of Rust code is no Exception
            if type(error).__name__ != "PanicException":
                raise
            raise OptionError(
                f"the tokenizer's pattern gives up on this text of {len(text)} characters", "split the text"
            ) from None


def check_pattern(pattern: object) -> None:
    """Raise TokenizerError for a pattern that is no text, too long, or writes out too much when it is compiled."""
    if not isinstance(pattern, str):
        raise TokenizerError(f"the tokenizer's pattern is {pattern!r}"[:200], "it must be a text")
    if len(pattern) > LONGEST_PATTERN:
        raise TokenizerError(
            f"the tokenizer's pattern has {len(pattern)} characters", f"at most {LONGEST_PATTERN} are taken"
        )
    if (most := _repetitions(pattern)) > MOST_REPETITIONS:
        raise TokenizerError(
            f"the tokenizer's pattern repeats a part {most} times: {pattern[:60]!r}",
            f"at most {MOST_REPETITIONS} are taken",
        )


def _repetitions(pattern: str) -> int:
    """How often nested counts repeat a part, at most: the largest product of a count and those inside it."""
    inside = [1]  # the most repetitions in each open group
    last = 1  # those of the part that a count would repeat
    for part in _PARTS.finditer(pattern):
        text = part.group()
        if text == "(":
            inside.append(1)
        elif text == ")" and len(inside) > 1:
            last = inside.pop()
            inside[-1] = max(inside[-1], last)
            continue
        elif text.startswith("{"):
            last *= max(1, int(part.group(1) or 1), int(part.group(2) or 1))
            inside[-1] = max(inside[-1], last)
            continue
        last = 1
    return max(inside)
