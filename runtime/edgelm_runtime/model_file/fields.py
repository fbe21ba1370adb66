"""What the metadata entries of a model file hold, field by field, and one reader that checks it.

Everything that edgelm reads from a file is declared here, so that a file whose metadata is damaged is refused when
it is loaded, with one line, and the code after it needs no checks of its own. Fields that are not declared here are
for people and other programs; they are handed on as they are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from edgelm_runtime.errors import ModelFileError
from edgelm_runtime.model_file.interface import (
    ADD_BOS,
    ADD_EOS,
    BOS_ID,
    CACHE_SPARE,
    CHAT_TEMPLATE,
    CONFIG,
    CONTEXT_LENGTH,
    DIGEST,
    END_IDS,
    EOS_ID,
    FORMAT_ENTRY,
    GENERATION,
    GOLDEN,
    GRAPH,
    ORIGIN,
    PARITY,
    PREFIX,
    QUALITY,
    SIDECAR,
    SIDECAR_SAMPLE,
    TOKENIZER,
    VOCAB_SIZE,
)
from edgelm_runtime.validation import shown

EXPORT_AGAIN = "get the original file again, or export the model again"


class Kind(NamedTuple):
    """What a JSON value must be."""

    description: str
    fits: Callable[[Any], bool]

    def or_null(self) -> Kind:
        """This kind, or null."""
        return Kind(f"{self.description} or null", lambda value: value is None or self.fits(value))


def _is_whole(value: Any, low: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value < 2**63


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _is_step(value: Any) -> bool:
    """Logits of one step of a golden answer: a few ids, their values, and the logsumexp of all."""
    return (
        isinstance(value, dict)
        and IDS.fits(value.get("ids"))
        and _list_of(_is_number)(value.get("values"))
        and 0 < len(value["ids"]) == len(value["values"])
        and _is_number(value.get("logsumexp"))
    )


def _is_golden(value: Any) -> bool:
    """A golden prompt, with a step for each token of its answer."""
    return (
        isinstance(value, dict)
        and IDS.fits(value.get("ids"))
        and IDS.fits(value.get("tokens"))
        and _list_of(_is_step)(value.get("logits"))
        and isinstance(value.get("text", ""), str)
        and bool(value["ids"])
        and 0 < len(value["tokens"]) == len(value["logits"])
    )


WHOLE = Kind("a whole number of at least 0", _is_whole)
COUNT = Kind("a whole number of at least 1", lambda value: _is_whole(value, 1))
NUMBER = Kind("a finite number", _is_number)
SIZE = Kind("a finite number of at least 0", lambda value: _is_number(value) and value >= 0)
TEXT = Kind("a text", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
IDS = Kind("a list of token ids", _list_of(_is_whole))
COUNTS = Kind(
    "an object of counts", lambda value: isinstance(value, dict) and all(map(_is_whole, value.values()))
)
GOLDEN_PROMPTS = Kind("a list of prompts with their answers", _list_of(_is_golden))

FIELDS: dict[str, dict[str, Kind]] = {
    CONFIG: {
        CONTEXT_LENGTH: COUNT, VOCAB_SIZE: COUNT, "num_layers": COUNT, "width": COUNT, "num_heads": COUNT,
        "num_kv_heads": COUNT, "head_dim": COUNT, "mlp_width": COUNT, "sliding_window": WHOLE,
        "num_experts": WHOLE, "experts_per_token": WHOLE,
        "activation": TEXT, "norm": TEXT, "position": TEXT, "gated_mlp": FLAG, "tied_head": FLAG,
    },
    GENERATION: {
        END_IDS: IDS, BOS_ID: WHOLE.or_null(), ADD_BOS: FLAG, EOS_ID: WHOLE.or_null(), ADD_EOS: FLAG,
        CHAT_TEMPLATE: TEXT.or_null(),
    },
    ORIGIN: {},
    PARITY: {
        "max_abs_error": SIZE, "cases": WHOLE, "longest": WHOLE, "atol": SIZE, "greedy_agreement": SIZE,
    },
    GOLDEN: {"atol": SIZE, "prompts": GOLDEN_PROMPTS},
    GRAPH: {
        "opset": WHOLE, "ir_version": WHOLE, "dtype": TEXT, "parameters": WHOLE, "weight_bytes": WHOLE,
        "operators": COUNTS, CACHE_SPARE: WHOLE, SIDECAR: TEXT.or_null(), SIDECAR_SAMPLE: TEXT,
    },
    QUALITY: {
        "plan": TEXT, "text": TEXT, "perplexity": NUMBER, "ppl_increase_pct": NUMBER, "allowed_pct": SIZE,
        "top1_agreement": SIZE,
    },
}  # fmt: skip
"""The fields of each entry. They may be missing, except those that are REQUIRED."""

REQUIRED: dict[str, tuple[str, ...]] = {
    CONFIG: (CONTEXT_LENGTH, VOCAB_SIZE), GOLDEN: ("atol", "prompts"), GENERATION: (), FORMAT_ENTRY: (),
}  # fmt: skip
OPTIONAL_ENTRIES = (TOKENIZER, ORIGIN, PARITY, GOLDEN, GRAPH, QUALITY, DIGEST)


class EntryReader:
    """Reads the entries of the model file `name`. Every mistake in them is a ModelFileError with one line."""

    def __init__(self, metadata: Mapping[str, str], name: str) -> None:
        self._metadata = metadata
        self._name = name

    def value(self, entry: str) -> Any:
        """The JSON value of an entry; None where an optional one is missing."""
        key = PREFIX + entry
        if key not in self._metadata:
            if entry in OPTIONAL_ENTRIES:
                return None
            raise ModelFileError(f"{self._name} lacks the metadata entry {key}", EXPORT_AGAIN)
        try:
            return json.loads(self._metadata[key], parse_constant=_no_number, parse_float=_finite)
        except RecursionError:
            raise self.damaged(entry, "it is nested too deeply") from None
        except ValueError as error:
            raise self.damaged(entry, str(error)) from error

    def fields(self, entry: str) -> dict[str, Any]:
        """The object that an entry holds, its declared fields checked; empty where it is missing."""
        values = self.value(entry)
        if values is None and PREFIX + entry not in self._metadata:
            return {}
        if not isinstance(values, dict):
            raise self.damaged(entry, f"it is {shown(values)} and not an object")
        if values or entry == CONFIG:
            for field in REQUIRED.get(entry, ()):
                if field not in values:
                    raise self.damaged(entry, f"it has no {field}")
        for field, kind in FIELDS[entry].items():
            if field in values and not kind.fits(values[field]):
                raise self.damaged(entry, f"{field} is {shown(values[field])} and not {kind.description}")
        return values

    def texts(self, entry: str) -> dict[str, str]:
        """The object of texts that an entry holds; empty where it is missing."""
        values = self.value(entry)
        if values is None:
            return {}
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise self.damaged(entry, "it is not an object of texts")
        return values

    def damaged(self, entry: str, problem: str) -> ModelFileError:
        """The error for an entry that cannot be used."""
        return ModelFileError(f"{self._name} has a damaged entry {PREFIX + entry}: {problem}", EXPORT_AGAIN)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number in JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value
