"""A tokenizer as JSON values: the saved tokenizer file, and the tokenizer entry of a model file."""

from __future__ import annotations

import base64
from binascii import a2b_base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgelm_runtime.validation import shown

if TYPE_CHECKING:
    from edgelm_runtime.text.tokenizer import Tokenizer

# Arguments that are saved as they are, and left out while they have the usual value.
_PLAIN: dict[str, Any] = {
    "added": {}, "normalized": [], "strip": {},
    "normalization": "", "space_symbol": "", "prefix_space": "never", "drop_unknown": False,
}  # fmt: skip


def saved_values(tokenizer: Tokenizer) -> dict[str, Any]:
    """What is saved of a tokenizer; `arguments` reads it back."""
    values: dict[str, Any] = {
        "pattern": tokenizer.pattern,
        "tokens": [base64.b64encode(token).decode() for token in tokenizer.tokens],
        "special": tokenizer.special,
    }
    if tokenizer.ids is not None:
        values["ids"] = [entry if isinstance(entry, int) else list(entry) for entry in tokenizer.ids]
    if tokenizer.decode_only:
        values["decode_only"] = {
            str(token_id): base64.b64encode(token).decode()
            for token_id, token in tokenizer.decode_only.items()
        }
    for name, usual in _PLAIN.items():
        if getattr(tokenizer, name) != usual:
            values[name] = getattr(tokenizer, name)
    return values


def arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `Tokenizer` that were saved. Raises KeyError, TypeError, ValueError or AttributeError
    for values of another form."""
    if not isinstance(values, Mapping):
        raise TypeError(f"it is {shown(values)} and not an object")
    return {
        "tokens": [a2b_base64(token) for token in values["tokens"]],
        "pattern": values["pattern"],
        "special": values["special"],
        "ids": values.get("ids"),
        "decode_only": {
            int(token_id): a2b_base64(token) for token_id, token in values.get("decode_only", {}).items()
        },
        **{name: values.get(name, usual) for name, usual in _PLAIN.items()},
    }
