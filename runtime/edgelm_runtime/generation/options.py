"""The options of generation, each declared once.

To add one: declare it here, use it where its group is used (`Sampling` in sampler.py, `Limits` in sequence.py and
loop.py, `TextOptions` in language_model.py), and run `python tests/regenerate.py`, which writes the keyword types,
the guide's table and the page of help texts anew. Nothing else lists the options.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from edgelm_runtime.arrays import Floats, Ids
from edgelm_runtime.errors import OptionError
from edgelm_runtime.generation.declaration import (
    AutoOr,
    Biases,
    Choice,
    Custom,
    Flag,
    Maybe,
    Number,
    StopStrings,
    TokenIds,
    Whole,
    check_fields,
    check_ids,
    declared,
    option,
)
from edgelm_runtime.validation import are_texts

if TYPE_CHECKING:
    from edgelm_runtime.generation.results import Piece


Processor = Callable[[Ids, Floats], Floats]
"""(ids so far (T,), logits (vocab,)) -> logits (vocab,). It may change both; -inf forbids a token."""
Overflow = Literal["slide", "stop", "error"]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen. Every field is checked; OptionError names the value that is not usable."""

    temperature: float = option(
        0.0, Number(0), "Randomness of the choice; 0 always takes the most likely token (greedy).",
        from_file=True, flags=("-t", "--temp"), default_text="0",
    )  # fmt: skip
    top_k: int = option(
        0, Whole(0), "Keep only the k most likely tokens; 0 keeps all.", from_file=True, flags=("-k",)
    )
    top_p: float = option(
        1.0, Number(0, 1, above=True), "Keep the most likely tokens that together reach this probability.",
        from_file=True, flags=(), default_text="1",
    )  # fmt: skip
    min_p: float = option(
        0.0, Number(0, 1), "Keep only tokens at least this fraction as likely as the most likely one.",
        from_file=True, flags=(), default_text="0",
    )  # fmt: skip
    typical_p: float = option(
        1.0, Number(0, 1, above=True),
        "Locally typical sampling: keep the tokens whose surprise is closest to the expected one, up to this "
        "probability.",
        from_file=True, flags=(), default_text="1",
    )  # fmt: skip
    repeat_penalty: float = option(
        1.0, Number(0, above=True),
        "Values above 1 make tokens of the last `repeat_last_n` less likely (divides positive logits, "
        "multiplies negative ones).",
        from_file=True, flags=(), default_text="1",
    )  # fmt: skip
    repeat_last_n: int = option(
        64, Whole(-1), "Number of recent tokens, prompt included, that the penalties consider; -1 considers all.",
        from_file=True, flags=(),
    )  # fmt: skip
    frequency_penalty: float = option(
        0.0, Number(), "Subtracted from a token's logit for each time it has occurred.",
        from_file=True, flags=(), default_text="0",
    )  # fmt: skip
    presence_penalty: float = option(
        0.0, Number(), "Subtracted from the logit of every token that has occurred.",
        from_file=True, flags=(), default_text="0",
    )  # fmt: skip
    logit_bias: Mapping[int, float] = option(
        {}, Biases(), "Added to the logits of these token ids; `-inf` forbids one.", default_text="none"
    )
    banned_tokens: Sequence[int] = option(
        (), TokenIds(), "Token ids that are never generated.", from_file=True, default_text="none"
    )
    forced_tokens: Sequence[int] = option(
        (), TokenIds(), "Token ids that the output starts with.", default_text="none"
    )
    seed: int | None = option(
        None, Maybe(Whole(0, 2**64 - 1)),
        "Random seed. The same seed gives the same text: alone, in a batch, streamed, with or without prompt "
        "lookup or a KV cache.",
        flags=("-s",), default_text="a new one each time",
    )  # fmt: skip
    processor: Processor | None = option(
        None, Maybe(Custom("Processor", callable, "give a function of (ids, logits)")),
        "A function `(ids, logits) -> logits` of your own, called before everything else.",
        default_text="none",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def greedy(self) -> bool:
        """Whether no random number decides."""
        return self.temperature == 0

    def check_ids(self, vocab_size: int) -> None:
        """Raise OptionError where an option names a token that the model does not have."""
        check_ids(("banned_tokens", "forced_tokens", "logit_bias"), self, vocab_size)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When generation ends, and what the loop does along the way."""

    max_new_tokens: int = option(
        128, Whole(0), "Maximum number of new tokens.", from_file=True, flags=("-n", "--max-tokens")
    )
    max_time: float | None = option(
        None, Maybe(Number(0, above=True)), "Seconds after which no further token is computed.",
        flags=(), default_text="none",
    )  # fmt: skip
    stop: Sequence[str] = option(
        (), StopStrings(), "Stop before any of these texts.", from_file=True, flags=(), default_text="none"
    )
    keep_special: bool = option(
        False, Flag(), "Show special tokens in the text, such as those around a model's thinking.", flags=(),
        default_text="off",
    )  # fmt: skip
    overflow: Overflow = option(
        "slide", Choice(get_args(Overflow), "Overflow"),
        "When the context is full: slide (see only the most recent tokens), stop, or raise an error at the start.",
        flags=(),
    )  # fmt: skip
    lookup: int | Literal["auto"] = option(
        "auto", AutoOr(Whole(0, 1024)),
        "Prompt lookup: number of tokens to draft from earlier text, or as many as pay off; 0 turns it off. "
        "Changes speed, never text.",
        flags=(),
    )  # fmt: skip
    reference: Sequence[int] = option(
        (),
        Custom(
            "Sequence[int] | str",
            lambda value: hasattr(value, "__len__") and not isinstance(value, str),
            "give token ids",
        ),
        "A text (or token ids) that prompt lookup may draft from as well.", default_text="none",
    )  # fmt: skip
    logprobs: int | None = option(
        None, Maybe(Whole(0)), "Return log-probabilities, with this many alternatives per token.",
        default_text="none",
    )  # fmt: skip
    cancel: threading.Event | None = option(
        None,
        Maybe(Custom("threading.Event", lambda value: hasattr(value, "is_set"), "give a threading.Event")),
        "Set this event, from any thread, to end generation after the current pass.", default_text="none",
    )  # fmt: skip
    on_token: Callable[[Piece], None] | None = option(
        None, Maybe(Custom("Callable[[Piece], None]", callable, "give a function of a Piece")),
        "A function that is called with each piece.", default_text="none",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """How the prompt's text is read, and what form the generated text must have. They need a tokenizer."""

    allowed_special: Collection[str] | str = option(
        (),
        Custom(
            "Collection[str] | str",
            lambda value: isinstance(value, str) or are_texts(value),
            'give a list of texts, or "all"',
        ),
        'Special tokens that may be spelled out in the prompt; `"all"` allows every one.',
        default_text="none",
    )  # fmt: skip
    choices: Sequence[str] | None = option(
        None,
        Maybe(
            Custom(
                "Sequence[str]",
                lambda value: are_texts(value) and bool(value) and all(value),
                "give a list of texts that are not empty",
            )
        ),
        "Generate exactly one of these texts (`pip install 'edgelm[constrain]'`).",
        default_text="none",
    )
    regex: str | None = option(
        None,
        Maybe(
            Custom("str", lambda value: isinstance(value, str) and bool(value), "give a regular expression")
        ),
        "Generate only text that matches this regular expression (extra `constrain`).",
        default_text="none",
    )
    json_schema: Mapping[str, Any] | str | bool | None = option(
        None,
        Maybe(
            Custom(
                "Mapping[str, Any] | str | bool",
                lambda value: isinstance(value, (Mapping, str, bool)),
                "give a JSON schema",
            )
        ),
        "Generate only JSON that is valid under this schema (extra `constrain`).",
        default_text="none",
    )

    def __post_init__(self) -> None:
        check_fields(self)


GROUPS = {group: declared(group) for group in (Sampling, Limits, TextOptions)}
OPTIONS = {name: about for group in GROUPS.values() for name, about in group.items()}
"""Every option of generation by name."""


def _without_arrays(value: Any) -> Any:
    """An array or a tensor of ids as a list: one is as good as the other, and so is a list of their items."""
    if hasattr(value, "__array__"):
        return np.asarray(value).tolist()
    if isinstance(value, (list, tuple)) and any(hasattr(item, "__array__") for item in value):
        return [_without_arrays(item) for item in value]
    return value


def split_options(options: Mapping[str, Any]) -> tuple[Sampling, Limits, TextOptions]:
    """The three groups from one set of keyword options. Raises OptionError for an unknown one."""
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise OptionError(f"unknown option {unknown[0]!r}", f"known are {', '.join(sorted(OPTIONS))}")
    plain = {name: _without_arrays(value) for name, value in options.items()}
    given = {group: {name: plain[name] for name in names if name in plain} for group, names in GROUPS.items()}
    return Sampling(**given[Sampling]), Limits(**given[Limits]), TextOptions(**given[TextOptions])


def defaults_from_file(generation: Mapping[str, Any]) -> dict[str, Any]:
    """What the `generation` entry of a model file sets as defaults of options."""
    return {name: value for name, value in generation.items() if name in OPTIONS and OPTIONS[name].from_file}
