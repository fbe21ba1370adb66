"""Checks of what a caller gives: each raises OptionError with the value and the remedy."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgelm_runtime.errors import OptionError
from edgelm_runtime.errors import shown as shown

if TYPE_CHECKING:
    from edgelm_runtime.arrays import Ids


def is_whole(value: object, low: float = -math.inf, high: float = math.inf) -> bool:
    """Whether `value` is a whole number from `low` to `high`; True and False are none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(low <= value <= high)


def is_number(value: object, low: float = -math.inf, high: float = math.inf, open_low: bool = False) -> bool:
    """Whether `value` is a finite number from `low`, itself included or not, to `high`; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return False
    try:
        plain = float(value)
    except OverflowError:
        return False
    return math.isfinite(plain) and low <= plain <= high and not (open_low and plain == low)


def are_texts(value: object) -> bool:
    """Whether `value` is a collection of texts; one text alone is none."""
    if not isinstance(value, Collection) or isinstance(value, str):
        return False
    try:
        return all(isinstance(text, str) for text in value)
    except TypeError:  # an array without axes calls itself a collection
        return False


def stop_strings(name: str, value: object) -> None:
    """Raise OptionError unless `value` is a sequence of texts, none of them empty."""
    if not isinstance(value, Sequence) or not are_texts(value):
        raise OptionError(f"{name} is {shown(value)}", "give a list of strings")
    if not all(value):
        raise OptionError("a stop string is empty", "give text, or no stop string")


def whole(name: str, value: object, low: int, high: float = math.inf) -> None:
    """Raise OptionError unless `value` is a whole number from `low` to `high`."""
    if not is_whole(value, low, high):
        bound = f"from {low} to {high}" if high < math.inf else f"of at least {low}"
        raise OptionError(f"{name} is {shown(value)}", f"give a whole number {bound}")


def number(name: str, value: object, low: float, high: float, open_low: bool = False) -> None:
    """Raise OptionError unless `value` is a finite number from `low`, itself included or not, to `high`."""
    if is_number(value, low, high, open_low):
        return
    if low == -math.inf:
        raise OptionError(f"{name} is {shown(value)}", "give a finite number")
    if high == math.inf:
        bound = f"above {low}" if open_low else f"of at least {low}"
    else:
        bound = f"{'above' if open_low else 'from'} {low} up to {high}"
    raise OptionError(f"{name} is {shown(value)}", f"give a finite number {bound}")


def choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise OptionError unless `value` is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise OptionError(f"{name} is {shown(value)}", f"choose one of {', '.join(choices)}")


def function(name: str, value: object) -> None:
    """Raise OptionError unless `value` can be called."""
    if not callable(value):
        raise OptionError(f"{name} is {shown(value)}", "give a function")


def path_of(name: str, value: object) -> Path:
    """`value` as a path. Raises OptionError where it is none."""
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise OptionError(f"{name} is {shown(value)}", "give a path")
    try:
        return Path(value)
    except TypeError:  # a path of bytes
        raise OptionError(f"{name} is {shown(value)}", "give a path of text") from None


def check_prompt(ids: Any, vocab_size: int) -> Ids:
    """Token ids (T,) as int64. Raises OptionError where they are none, not whole, or outside the vocabulary."""
    try:
        array = np.asarray(ids)
    except ValueError:
        raise OptionError("token ids are nested lists", "give one flat list per prompt") from None
    if array.ndim != 1:
        raise OptionError(f"token ids have shape {array.shape}", "give one flat list per prompt")
    if not len(array):
        raise OptionError("the prompt is empty", "give at least one token")
    if not np.issubdtype(array.dtype, np.integer):
        raise OptionError(f"token ids are {array.dtype}", "give whole numbers")
    outside = array[(array < 0) | (array >= vocab_size)]
    if len(outside):
        raise OptionError(
            f"token id {outside[0]} is outside the vocabulary of {vocab_size}",
            f"give ids from 0 to {vocab_size - 1}",
        )
    return array.astype(np.int64)
