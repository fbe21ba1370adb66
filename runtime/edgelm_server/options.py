"""From the fields of a completion to the runtime's options, which the runtime checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgelm_server.errors import ApiError
from edgelm_server.fields import Fields

MOST_CHOICES = 128

# Fields that have the runtime's own names; the last two lines are not OpenAI's.
SAME = (
    "temperature", "top_p", "frequency_penalty", "presence_penalty",
    "top_k", "min_p", "typical_p", "repeat_penalty", "repeat_last_n", "lookup", "keep_special",
    "choices", "regex", "json_schema",
)  # fmt: skip


def take_options(fields: Fields) -> dict[str, Any]:
    """The options of one text, but for its length and log-probabilities."""
    options = {name: value for name in SAME if (value := fields.take(name)) is not None}
    stop = fields.take("stop")
    if stop is not None:
        options["stop"] = [stop] if isinstance(stop, str) else stop
    seed = fields.whole("seed", -(1 << 63), (1 << 64) - 1)
    if seed is not None:
        options["seed"] = seed % (1 << 64)
    if bias := fields.mapping("logit_bias"):
        options["logit_bias"] = _by_token(fields, bias)
    return options


def take_count(fields: Fields) -> int:
    """How many texts are wanted of one prompt."""
    return fields.whole("n", 1, MOST_CHOICES) or 1


def take_usage_wish(fields: Fields, streaming: bool) -> bool:
    """Whether a stream is to end with a chunk that counts tokens."""
    values = fields.mapping("stream_options")
    if values is None:
        return False
    if not streaming:
        raise ApiError(400, "stream_options is given without stream; set stream", param="stream_options")
    options = Fields(values, "stream_options.")
    wished = options.flag("include_usage")
    options.refuse("include_obfuscation", unless=(False,))
    options.finish()
    return wished


def new_tokens(prompt_length: int, context_length: int, wanted: int | None, param: str) -> int:
    """How many tokens may follow a prompt, the field `param`: what is wanted, at most to the end of the context.

    Raises ApiError for a prompt that does not fit.
    """
    room = context_length - prompt_length
    if room < 0 or (room == 0 and wanted != 0):
        raise ApiError(
            400,
            f"the prompt has {prompt_length} tokens and the context {context_length}"
            f"{', which leaves none for an answer' if room == 0 else ''}; send a shorter one",
            param=param,
            code="context_length_exceeded",
        )
    return room if wanted is None else min(wanted, room)


def _by_token(fields: Fields, bias: Mapping[str, Any]) -> dict[int, Any]:
    try:
        return {int(token): value for token, value in bias.items()}
    except ValueError:
        raise fields.wrong("logit_bias", bias, "name tokens by their ids") from None
