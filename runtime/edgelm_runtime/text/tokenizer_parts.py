"""The parts that a tokenizer is made of, checked before anything is made of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from edgelm_runtime.errors import OptionError, TokenizerError
from edgelm_runtime.validation import are_texts, is_whole, shown

LARGEST_ID = 2**24
"""Tables are as long as the largest id; no vocabulary comes near."""


def _is_id(value: Any) -> bool:
    return is_whole(value, 0, LARGEST_ID)


def _is_list(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and all(map(fits, value))


def _is_mapping(value: Any, key: Callable[[Any], bool], fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, Mapping) and all(map(key, value)) and all(map(fits, value.values()))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_bytes(value: Any) -> bool:
    return isinstance(value, bytes)


def _is_entry(value: Any) -> bool:
    return _is_id(value) or _is_list(value, _is_id)


PARTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "tokens": ("a list of bytes, of at least one", lambda value: _is_list(value, _is_bytes) and bool(value)),
    "pattern": ("a regular expression", _is_text),
    "special": ("a mapping of texts to token ids", lambda value: _is_mapping(value, _is_text, _is_id)),
    "ids": ("a list of token ids, or of lists of them", lambda value: _is_list(value, _is_entry)),
    "added": ("a mapping of texts to token ids", lambda value: _is_mapping(value, _is_text, _is_id)),
    "normalized": (
        "a collection of texts",
        lambda value: (
            isinstance(value, Collection) and not isinstance(value, str) and all(map(_is_text, value))
        ),
    ),
    "strip": ("a mapping of texts to sides", lambda value: _is_mapping(value, _is_text, _is_text)),
    "decode_only": ("a mapping of token ids to bytes", lambda value: _is_mapping(value, _is_id, _is_bytes)),
    "space_symbol": ("a text", _is_text),
    "drop_unknown": ("True or False", lambda value: isinstance(value, bool)),
}
"""What each argument of `Tokenizer` must be, where it is given."""

NEEDED = ("tokens", "pattern", "normalized", "space_symbol", "drop_unknown")


def check_parts(**parts: Any) -> None:
    """Raise TokenizerError for an argument of `Tokenizer` that is none of what it takes."""
    for name, value in parts.items():
        description, fits = PARTS[name]
        if not fits(value) and (value is not None or name in NEEDED):
            raise TokenizerError(f"{name} of the tokenizer is {shown(value)} and not {description}")


def allowed_names(names: Collection[str] | str, special: Collection[str]) -> set[str]:
    """The special tokens that may be spelled out in a text. Raises OptionError for what is none of `special`."""
    if isinstance(names, str):
        names = special if names == "all" else [names]
    if not are_texts(names):
        raise OptionError(f"allowed_special is {shown(names)}", 'give a list of texts, or "all"')
    if unknown := sorted(set(names) - set(special)):
        known = ", ".join(sorted(special)) or "none"
        raise OptionError(f"unknown special token {shown(unknown[0])}", f"the model has: {known}")
    return set(names)
