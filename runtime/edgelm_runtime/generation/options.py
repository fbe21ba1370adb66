"""The keyword options of generation, for type checkers and editors.

The values are checked, and described, where they are used: `Sampling`, `Limits` and `make_constraint`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypedDict, get_args

import numpy as np

from edgelm_runtime.arrays import Floats, Ids
from edgelm_runtime.errors import OptionError
from edgelm_runtime.generation.results import Piece
from edgelm_runtime.text.stop_strings import Stopper
from edgelm_runtime.validation import number, whole


class Options(TypedDict, total=False):
    """What `LanguageModel.generate`, `stream`, `chat` and `stream_chat` take by name."""

    max_new_tokens: int
    max_time: float | None
    stop: Sequence[str]
    overflow: Overflow
    lookup: int | Literal["auto"]
    reference: Sequence[int] | str
    logprobs: int | None
    cancel: threading.Event | None
    on_token: Callable[[Piece], None] | None

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_penalty: float
    repeat_last_n: int
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float]
    banned_tokens: Sequence[int]
    forced_tokens: Sequence[int]
    seed: int | None
    processor: Processor | None

    allowed_special: Collection[str] | str
    """Special tokens whose text in the prompt stands for them, or "all"."""
    choices: Sequence[str] | None
    regex: str | None
    json_schema: Mapping[str, Any] | str | None


Processor = Callable[[Ids, Floats], Floats]
"""(ids so far (T,), logits (vocab,)) -> logits (vocab,). It may change both; -inf forbids a token."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen. Every field is validated; OptionError names what cannot be."""

    temperature: float = 0.0
    """0 takes the most likely token (greedy)."""
    top_k: int = 0
    """Keep the k most likely tokens. 0: all."""
    top_p: float = 1.0
    """Keep the most likely tokens that together reach this probability."""
    min_p: float = 0.0
    """Keep tokens of at least this share of the best token's probability."""
    typical_p: float = 1.0
    """Keep the tokens of the most typical surprise that together reach this probability."""
    repeat_penalty: float = 1.0
    """Divides positive logits (multiplies negative ones) of tokens in the last `repeat_last_n`."""
    repeat_last_n: int = 64
    """Tokens, prompt included, that the three penalties look back on. -1: all."""
    frequency_penalty: float = 0.0
    """Taken off a token's logit, per use."""
    presence_penalty: float = 0.0
    """Taken off the logit of a token that was used."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids; -inf forbids one."""
    banned_tokens: Sequence[int] = ()
    forced_tokens: Sequence[int] = ()
    """Ids that the output begins with."""
    seed: int | None = None
    """None: a new one each time."""
    processor: Processor | None = None

    def __post_init__(self) -> None:
        number("temperature", self.temperature, 0, math.inf)
        number("top_p", self.top_p, 0, 1, open_low=True)
        number("typical_p", self.typical_p, 0, 1, open_low=True)
        number("min_p", self.min_p, 0, 1)
        number("repeat_penalty", self.repeat_penalty, 0, math.inf, open_low=True)
        number("frequency_penalty", self.frequency_penalty, -math.inf, math.inf)
        number("presence_penalty", self.presence_penalty, -math.inf, math.inf)
        whole("top_k", self.top_k, 0)
        whole("repeat_last_n", self.repeat_last_n, -1)
        if self.seed is not None:
            whole("seed", self.seed, 0, 2**64 - 1)
        for name in ("banned_tokens", "forced_tokens"):
            ids = getattr(self, name)
            if isinstance(ids, (str, bytes)) or not isinstance(ids, (Sequence, np.ndarray)):
                raise OptionError(f"{name} is {ids!r}", "give a list of token ids")
            for token_id in ids:
                whole(f"a token id in {name}", token_id, 0)
        if not isinstance(self.logit_bias, Mapping):
            raise OptionError(f"logit_bias is {self.logit_bias!r}", "give a mapping of token ids to numbers")
        for token_id, bias in self.logit_bias.items():
            whole("a token id in logit_bias", token_id, 0)
            if bias != -math.inf:
                number(f"logit_bias of {token_id}", bias, -math.inf, math.inf)
        if self.processor is not None and not callable(self.processor):
            raise OptionError(f"processor is {self.processor!r}", "give a function of (ids, logits)")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def check_ids(self, vocab_size: int) -> None:
        """Raise OptionError where an option names a token that the model does not have."""
        named = [*self.banned_tokens, *self.forced_tokens, *self.logit_bias]
        if outside := [token_id for token_id in named if token_id >= vocab_size]:
            raise OptionError(
                f"token id {outside[0]} is outside the vocabulary of {vocab_size}",
                f"give ids from 0 to {vocab_size - 1}",
            )


SAMPLING_OPTIONS = tuple(field.name for field in fields(Sampling))


Overflow = Literal["slide", "stop", "error"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When generation ends, and what the loop does along the way."""

    max_new_tokens: int = 128
    max_time: float | None = None
    """Seconds after which no further pass starts."""
    stop: Sequence[str] = ()
    overflow: Overflow = "slide"
    """When the context is full: see its last tokens only, stop, or refuse at the start."""
    lookup: int | Literal["auto"] = "auto"
    """Tokens to draft by lookup: a fixed number, or as many as pay. 0: none."""
    reference: Sequence[int] = ()
    """Token ids of a text that lookup may draft from, besides the text itself."""
    logprobs: int | None = None
    """Give log-probabilities, and of this many alternatives. None: neither."""
    cancel: threading.Event | None = None
    """Set it, from any thread, to end generation after the pass under way."""
    on_token: Callable[[Piece], None] | None = None

    def __post_init__(self) -> None:
        whole("max_new_tokens", self.max_new_tokens, 0)
        if self.max_time is not None:
            number("max_time", self.max_time, 0, math.inf, open_low=True)
        if self.overflow not in get_args(Overflow):
            raise OptionError(
                f"overflow is {self.overflow!r}", f"choose one of {', '.join(get_args(Overflow))}"
            )
        if self.lookup != "auto":
            whole("lookup", self.lookup, 0, 1024)
        if self.logprobs is not None:
            whole("logprobs", self.logprobs, 0)
        if self.cancel is not None and not hasattr(self.cancel, "is_set"):
            raise OptionError(f"cancel is {self.cancel!r}", "give a threading.Event")
        if self.on_token is not None and not callable(self.on_token):
            raise OptionError(f"on_token is {self.on_token!r}", "give a function of a Piece")
        Stopper(self.stop)


# What a model file may set as the default of an option.
DEFAULTS_FROM_FILE = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "repeat_last_n",
    "frequency_penalty", "presence_penalty", "banned_tokens", "max_new_tokens", "stop",
)  # fmt: skip


LIMIT_OPTIONS = tuple(Limits.__dataclass_fields__)


def split_options(options: dict[str, Any]) -> tuple[Sampling, Limits]:
    """Sampling and limits from one set of keyword options. Raises OptionError for an unknown one."""
    if unknown := sorted(set(options) - set(SAMPLING_OPTIONS) - set(LIMIT_OPTIONS)):
        known = ", ".join(sorted({*SAMPLING_OPTIONS, *LIMIT_OPTIONS}))
        raise OptionError(f"unknown option {unknown[0]!r}", f"known are {known}")
    sampling = {name: value for name, value in options.items() if name in SAMPLING_OPTIONS}
    limits = {name: value for name, value in options.items() if name in LIMIT_OPTIONS}
    return Sampling(**sampling), Limits(**limits)
