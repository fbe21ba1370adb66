"""generation_config.json, tokenizer_config.json and the chat template as the runtime's generation settings.

Every field is carried over, or means nothing here, or is named as left out. Defaults are those of transformers'
`generate`: sampling is at temperature 1 among the 50 likeliest tokens unless the file says otherwise, and a repetition
penalty looks back over everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgelm.importers.files.safe_files import has, inside, read_text
from edgelm.importers.generation import usable
from edgelm.importers.huggingface.tokenizer import content, optional_json
from edgelm.importers.notices import dropped
from edgelm_runtime.errors import CheckpointError
from edgelm_runtime.text.huggingface.convert import ImportedTokenizer

FILE = "generation_config.json"
SAMPLING = {"temperature": 1.0, "top_k": 50, "top_p": None, "min_p": None, "typical_p": None}
# Fields about batches, training, caches, other kinds of models, or the file itself.
MEANINGLESS = frozenset((
    "_from_model_config", "transformers_version", "pad_token_id", "decoder_start_token_id", "use_cache",
    "cache_implementation", "cache_config", "return_dict_in_generate", "output_attentions", "output_hidden_states",
    "output_scores", "output_logits", "do_sample", "bos_token_id", "eos_token_id", "renormalize_logits",
    "remove_invalid_values", "disable_compile", "compile_config", "trust_remote_code", "assistant_confidence_threshold",
    "num_assistant_tokens", "num_assistant_tokens_schedule", "prompt_lookup_num_tokens", "max_matching_ngram_size",
    "is_assistant", "assistant_early_exit", "assistant_lookbehind", "target_lookbehind", "generation_kwargs",
    "chat_format", "token_healing", "low_memory", "prefill_chunk_size", "max_window_size", "cache_max_length",
))  # fmt: skip
# Values that change nothing.
NEUTRAL: Mapping[str, Any] = {
    "num_beams": 1, "num_beam_groups": 1, "num_return_sequences": 1, "length_penalty": 1.0, "max_length": 20,
    "encoder_repetition_penalty": 1.0, "guidance_scale": 1.0, "exponential_decay_length_penalty": None,
}  # fmt: skip


def generation_settings(
    folder: Path, config: Mapping[str, Any], found: ImportedTokenizer | None
) -> dict[str, Any]:
    """End-of-text ids, defaults of options and the chat template, from wherever the folder keeps them."""
    given, about = optional_json(folder, FILE), optional_json(folder, "tokenizer_config.json")
    special = found.tokenizer.special if found else {}
    source = str(folder / FILE)
    ends = [special.get(content(about.get("eos_token")) or "")]
    # The file's own ids override the configuration's.
    ends += _ids(given if given.get("eos_token_id") is not None else config, source)
    generation: dict[str, Any] = {"end_ids": list(dict.fromkeys(end for end in ends if end is not None))}
    added = found.bos_id if found else None
    bos = added if added is not None else special.get(content(about.get("bos_token")) or "")
    if bos is not None:
        generation |= {"bos_id": bos, "add_bos": added is not None}
    if found and found.eos_id is not None:
        generation |= {"eos_id": found.eos_id, "add_eos": True}
    if template := _chat_template(folder, about):
        generation["chat_template"] = template
    return generation | usable(_options(given, source), source)


def _ids(values: Mapping[str, Any], source: str) -> list[int]:
    """`eos_token_id`, which is one id, several or none."""
    value = values.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in ids):
        raise CheckpointError(
            f"{source}: eos_token_id is {value!r}"[:200], "it must be a token id, or a list of them"
        )
    return ids


def _options(given: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The runtime's options for the fields of the file; what has no counterpart is named."""
    left = {
        name: value
        for name, value in given.items()
        if name not in MEANINGLESS
        and value not in (None, False, 0, "", [], {})
        and NEUTRAL.get(name) != value
    }
    options: dict[str, Any] = {}
    sampling = {name: left.pop(name, given.get(name, usual)) for name, usual in SAMPLING.items()}
    if given.get("do_sample"):
        sampling = {name: SAMPLING[name] if value is None else value for name, value in sampling.items()}
        options |= {name: _number(value) for name, value in sampling.items() if value is not None}
        if options["top_k"] == -1:  # what other programs write for all of them
            options["top_k"] = 0
    penalty = left.pop("repetition_penalty", 1.0)
    if penalty != 1.0:
        options |= {"repeat_penalty": penalty, "repeat_last_n": -1}
    if "max_new_tokens" in left:
        options["max_new_tokens"] = _number(left.pop("max_new_tokens"))
    if "stop_strings" in left:
        stop = left.pop("stop_strings")
        options["stop"] = [stop] if isinstance(stop, str) else stop
    banned, notes = _banned(left.pop("suppress_tokens", []), left.pop("bad_words_ids", []))
    if banned:
        options["banned_tokens"] = banned
    notes += [f"{name} {_short(value)}" for name, value in sorted(left.items())]
    dropped(source, notes)
    return options


def _banned(suppressed: Any, words: Any) -> tuple[list[Any], list[str]]:
    """Tokens that are never generated, and what of `bad_words_ids` is longer than one token."""
    one, more = [], []
    for word in words if isinstance(words, list) else [words]:
        if isinstance(word, list) and len(word) == 1:
            one += word
        else:
            more.append(word)
    suppressed = suppressed if isinstance(suppressed, list) else [suppressed]
    return list(dict.fromkeys(map(_number, [*suppressed, *one]))), [
        f"bad_words_ids {_short(more)}"
    ] if more else []


def _number(value: Any) -> Any:
    """50.0 as 50; anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _chat_template(folder: Path, about: Mapping[str, Any]) -> str | None:
    """The template of chat_template.jinja, or of tokenizer_config.json (one, or several by name)."""
    if has(folder, "chat_template.jinja"):
        return read_text(inside(folder, "chat_template.jinja"))
    template = about.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
