"""Generation settings of a source, checked: ids are the model's, values are such as the runtime takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgelm.importers.notices import dropped
from edgelm_runtime.errors import CheckpointError, OptionError
from edgelm_runtime.generation.options import defaults_from_file, split_options


def usable(options: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The options that the runtime takes; the others are named in a warning."""
    taken, refused = {}, []
    for name, value in options.items():
        try:
            split_options({name: value})
            taken[name] = value
        except OptionError as error:
            refused.append(str(error))
    dropped(source, refused)
    return taken


def within(generation: Mapping[str, Any], vocab_size: int, source: str) -> dict[str, Any]:
    """The settings less the ids that another tokenizer, which the caller has asked for, does not have."""
    kept = dict(generation)
    for name in ("bos", "eos"):
        if not kept.get(f"{name}_id", 0) < vocab_size:
            del kept[f"{name}_id"], kept[f"add_{name}"]
    for name in ("end_ids", "banned_tokens"):
        if name in kept:
            kept[name] = [token_id for token_id in kept[name] if token_id < vocab_size]
            if len(kept[name]) < len(generation[name]):
                dropped(source, [f"{name} that the tokenizer does not have"])
    return kept


def check_generation(generation: Mapping[str, Any], vocab_size: int, source: str) -> None:
    """Raise CheckpointError where a token id is outside the vocabulary, or an option is not usable."""
    ids = {
        "end-of-text id": generation.get("end_ids", []),
        "beginning-of-text id": [generation["bos_id"]] if "bos_id" in generation else [],
        "id after every text": [generation["eos_id"]] if "eos_id" in generation else [],
        "forbidden token id": generation.get("banned_tokens", []),
    }
    for what, values in ids.items():
        for value in values:
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab_size:
                raise CheckpointError(
                    f"{source}: the {what} {value!r} is outside the vocabulary of {vocab_size}",
                    "correct it in the source's configuration",
                )
    try:
        split_options(defaults_from_file(generation))
    except OptionError as error:
        raise CheckpointError(f"{source}: {error.problem}", error.remedy) from error
