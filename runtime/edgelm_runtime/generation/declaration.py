"""How an option of generation is declared: its default, the values it takes, its help text, who may set it.

A field of `Sampling`, `Limits` or `TextOptions` (options.py) carries its declaration. Everything else that knows the
options reads it from there: the checks, the command line, what a model file may set, the guide's table and the
keyword types (keywords.py). A kind of value checks one value and raises OptionError with the value and the remedy.
Kinds are named tuples, since each dataclass adds a millisecond to the time that every program needs to start.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from edgelm_runtime.errors import OptionError
from edgelm_runtime.validation import choice, number, shown, stop_strings, whole


class Kind(Protocol):
    """The values that an option takes."""

    @property
    def annotation(self) -> str:
        """The type as keywords.py spells it."""

    def check(self, name: str, value: Any) -> None:
        """Raise OptionError unless `value` is one of them."""


class Number(NamedTuple):
    """A finite number from `low` (itself excluded where `above`) to `high`."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    annotation: str = "float"

    def check(self, name: str, value: Any) -> None:
        number(name, value, self.low, self.high, self.above)


class Whole(NamedTuple):
    """A whole number from `low` to `high`."""

    low: int
    high: float = math.inf
    annotation: str = "int"

    def check(self, name: str, value: Any) -> None:
        whole(name, value, self.low, self.high)


class Flag(NamedTuple):
    """True or False."""

    annotation: str = "bool"

    def check(self, name: str, value: Any) -> None:
        if not isinstance(value, (bool, np.bool_)):
            raise OptionError(f"{name} is {shown(value)}", "give True or False")


class Choice(NamedTuple):
    """One of `names`."""

    names: tuple[str, ...]
    annotation: str

    def check(self, name: str, value: Any) -> None:
        choice(name, value, self.names)


class AutoOr(NamedTuple):
    """The word "auto", or what `kind` takes."""

    kind: Whole

    @property
    def annotation(self) -> str:
        return f'{self.kind.annotation} | Literal["auto"]'

    def check(self, name: str, value: Any) -> None:
        if not (isinstance(value, str) and value == "auto"):
            self.kind.check(name, value)


class Maybe(NamedTuple):
    """None, or what `kind` takes."""

    kind: Kind

    @property
    def annotation(self) -> str:
        return f"{self.kind.annotation} | None"

    def check(self, name: str, value: Any) -> None:
        if value is not None:
            self.kind.check(name, value)


class TokenIds(NamedTuple):
    """A list of token ids. Whether the model has them is known only where a model is."""

    annotation: str = "Sequence[int]"

    def check(self, name: str, value: Any) -> None:
        if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, np.ndarray)):
            raise OptionError(f"{name} is {shown(value)}", "give a list of token ids")
        if isinstance(value, np.ndarray) and value.ndim != 1:
            raise OptionError(f"{name} is {shown(value)}", "give one flat list of token ids")
        for token_id in value:
            whole(f"a token id in {name}", token_id, 0)


class Biases(NamedTuple):
    """A mapping of token ids to finite numbers or -inf."""

    annotation: str = "Mapping[int, float]"

    def check(self, name: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise OptionError(f"{name} is {shown(value)}", "give a mapping of token ids to numbers")
        for token_id, bias in value.items():
            whole(f"a token id in {name}", token_id, 0)
            if not (isinstance(bias, (float, np.floating)) and bias == -math.inf):
                number(f"{name} of {token_id}", bias, -math.inf, math.inf)


class StopStrings(NamedTuple):
    """A list of texts, none of them empty."""

    annotation: str = "Sequence[str]"

    def check(self, name: str, value: Any) -> None:
        stop_strings(name, value)


class Custom(NamedTuple):
    """What `accepts` is true of; `remedy` says what to give instead."""

    annotation: str
    accepts: Callable[[Any], bool]
    remedy: str

    def check(self, name: str, value: Any) -> None:
        if not self.accepts(value):
            raise OptionError(f"{name} is {shown(value)}", self.remedy)


class Option(NamedTuple):
    """The declaration of one option. `flags` None: not on the command line; otherwise its further spellings."""

    name: str
    default: Any
    kind: Kind
    help: str
    from_file: bool
    flags: tuple[str, ...] | None
    default_text: str


def option(
    default: Any,
    kind: Kind,
    help: str,
    *,
    from_file: bool = False,
    flags: tuple[str, ...] | None = None,
    default_text: str | None = None,
) -> Any:
    """A dataclass field that declares an option. `default_text` is how help texts show the default."""
    shown = default_text if default_text is not None else f"{default}"
    about = {"kind": kind, "help": help, "from_file": from_file, "flags": flags, "default_text": shown}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=about)
    return dataclasses.field(default=default, metadata=about)


def declared(group: type) -> dict[str, Option]:
    """The options that the dataclass `group` declares, by name, in order."""
    return {
        field.name: Option(
            field.name,
            field.default if field.default is not dataclasses.MISSING else {},
            **field.metadata,
        )
        for field in dataclasses.fields(group)
    }


def check_fields(options: Any) -> None:
    """Raise OptionError for the first field of a dataclass of options that has a value it does not take."""
    for field in dataclasses.fields(options):
        field.metadata["kind"].check(field.name, getattr(options, field.name))


def check_ids(names: Collection[str], options: Any, vocab_size: int) -> None:
    """Raise OptionError where one of the fields `names` holds a token id that the model does not have."""
    for name in names:
        for token_id in getattr(options, name):
            if token_id >= vocab_size:
                raise OptionError(
                    f"{name}: token id {token_id} is outside the vocabulary of {vocab_size}",
                    f"give ids from 0 to {vocab_size - 1}",
                )
