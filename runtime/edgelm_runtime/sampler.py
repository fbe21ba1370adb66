"""From logits to a token: a pure function of (logits, seed, sample, position).

Order, documented once and never varied: `processor`, `logit_bias`, penalties (`repeat_penalty`,
`frequency_penalty`, `presence_penalty`), `banned_tokens`, constraint, `temperature`, `top_k`, `typical_p`,
`top_p`, `min_p`, draw. `forced_tokens` come before everything else. Names and meanings are those of
llama.cpp and transformers. Every filter leaves at least one candidate; of equal tokens the lower id goes
first, so that a filter's choice does not depend on how numpy partitions.

The draw inverts the cumulative distribution in order of token ids at one uniform number, which Philox (a
counter-based generator, Salmon et al. 2011) makes from the seed, the sample's index and the token's
position. So the same seed gives the same text in any batch, with or without streaming, lookup or a cache, and
tiny differences between two implementations' logits all but never change a token.

Logits are float32 throughout.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.errors import NumericsError, OptionError
from edgelm_runtime.filters import filtered, largest, reaching

Floats = NDArray[np.floating[Any]]
Ids = NDArray[np.int64]
LARGEST = float(np.finfo(np.float32).max)
Processor = Callable[[Ids, Floats], Floats]
"""(ids so far (T,), logits (vocab,)) -> logits (vocab,). It may change both; -inf forbids a token."""


class Grammar(Protocol):
    """What holds a text to a form; see `edgelm_runtime.constraint`."""

    def allowed(self, ids: Ids) -> NDArray[np.bool_]:
        """Which tokens (vocab,) may follow `ids`."""

    def complete(self, ids: Ids) -> bool:
        """Whether nothing can follow `ids`."""


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


class Sampler:
    """Chooses tokens for one text. `sample` tells apart several texts from the same prompt and seed."""

    def __init__(self, options: Sampling, sample: int = 0, grammar: Grammar | None = None) -> None:
        self.options = options
        self.seed = secrets.randbits(63) if options.seed is None else options.seed
        self._key = (self.seed, sample)
        self._grammar = grammar

    def complete(self, ids: Ids) -> bool:
        """Whether a constraint leaves nothing to follow `ids`."""
        return self._grammar is not None and self._grammar.complete(ids)

    def __call__(self, logits: Floats, ids: Ids, prompt_length: int) -> int:
        """The token that follows `ids` (T,), of which `prompt_length` are the prompt, given logits (vocab,).

        Raises NumericsError where logits are NaN or infinite.
        """
        options = self.options
        made = len(ids) - prompt_length
        logits = np.asarray(logits, np.float32)
        if not np.isfinite(logits).all():
            raise NumericsError(
                f"the model's logits for token {made + 1} are not finite",
                "check the model with `edgelm verify`",
            )
        if made < len(options.forced_tokens):
            return int(options.forced_tokens[made])
        logits = self._adjusted(logits, ids)
        if options.greedy:
            return int(logits.argmax())
        candidates, weights = filtered(
            logits,
            temperature=options.temperature,
            top_k=options.top_k,
            typical_p=options.typical_p,
            top_p=options.top_p,
            min_p=options.min_p,
        )
        index = 0 if len(weights) == 1 else _drawn(weights, uniform(self._key, len(ids)))
        return index if candidates is None else int(candidates[index])

    def _adjusted(self, logits: Floats, ids: Ids) -> Floats:
        """Logits after everything that changes or forbids single tokens; some are finite, none is above."""
        options = self.options
        if options.processor is not None:
            logits = _processed(options.processor, logits, ids)
        if options.logit_bias:
            named = list(options.logit_bias)
            logits = _replaced(logits, named, logits[named] + np.array([*options.logit_bias.values()], float))
        logits = _penalised(logits, ids, options)
        if len(options.banned_tokens):
            logits = _replaced(logits, list(options.banned_tokens), -np.inf)
        if self._grammar is not None:
            logits = np.where(self._grammar.allowed(ids), logits, np.float32(-np.inf))
        if logits.max() == -np.inf:
            raise OptionError("the options forbid every token", "allow at least one")
        return logits


def _processed(processor: Processor, logits: Floats, ids: Ids) -> Floats:
    result = np.asarray(processor(ids.copy(), logits.copy()))
    if result.shape != logits.shape or not np.issubdtype(result.dtype, np.floating):
        raise OptionError(
            f"processor returned {result.dtype} of shape {result.shape}",
            f"return floats of shape {logits.shape}",
        )
    if not result.max() <= LARGEST:
        raise NumericsError(
            "processor returned NaN, or a number above float32's", "return numbers, or -inf to forbid a token"
        )
    return result.astype(np.float32)


def _replaced(logits: Floats, ids: Any, values: Any) -> Floats:
    """A copy of `logits` with `values` at `ids`, held inside float32's range; -inf stays."""
    values = np.where(np.isneginf(values), -np.inf, np.clip(values, -LARGEST, LARGEST))
    logits = logits.copy()
    logits[ids] = values
    return logits


def _penalised(logits: Floats, ids: Ids, options: Sampling) -> Floats:
    if options.repeat_penalty == 1 and not options.frequency_penalty and not options.presence_penalty:
        return logits
    recent = ids if options.repeat_last_n < 0 else ids[len(ids) - min(options.repeat_last_n, len(ids)) :]
    seen, counts = np.unique(recent, return_counts=True)
    chosen = logits[seen].astype(np.float64)
    factor = options.repeat_penalty
    with np.errstate(over="ignore"):
        chosen = np.where(chosen > 0, chosen / factor, chosen * factor)
        chosen = chosen - options.frequency_penalty * counts - options.presence_penalty
    # A forbidden token stays forbidden; a merely penalised one does not become it.
    chosen = np.where(np.isneginf(logits[seen]), -np.inf, np.maximum(chosen, -LARGEST))
    return _replaced(logits, seen, chosen)


def _drawn(weights: Floats, fraction: float) -> int:
    """Index at which the running sum of `weights` passes `fraction` of the total; its weight is never 0."""
    return reaching(weights, fraction * float(weights.sum(dtype=np.float64)), beyond=True)


def uniform(key: tuple[int, int], position: int) -> float:
    """A number in [0, 1) that depends on (seed, sample) and position alone."""
    generator = np.random.Philox(key=np.array(key, dtype=np.uint64), counter=position)
    return float(generator.random_raw() >> np.uint64(11)) * 2.0**-53


def top_logprobs(logits: Floats, token_id: int, count: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Natural log-probability of `token_id` given logits (vocab,), and the `count` likeliest ids with theirs,
    best first."""
    every = log_softmax(logits)
    top = largest(every, count) if 0 < count < len(every) else np.arange(len(every))[:count]
    best = top[np.argsort(-every[top], kind="stable")]
    return float(every[token_id]), tuple((int(index), float(every[index])) for index in best)


def log_softmax(logits: Floats) -> NDArray[np.float64]:
    """Natural log-probabilities over the last axis, in double precision."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide


def whole(name: str, value: object, low: int, high: float = math.inf) -> None:
    """Raise OptionError unless `value` is a whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        bound = f"from {low} to {high}" if high < math.inf else f"of at least {low}"
        raise OptionError(f"{name} is {value!r}", f"give a whole number {bound}")


def number(name: str, value: object, low: float, high: float, open_low: bool = False) -> None:
    """Raise OptionError unless `value` is a finite number from `low`, itself included or not, to `high`."""
    if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
        plain = float(value)
        if math.isfinite(plain) and low <= plain <= high and not (open_low and plain == low):
            return
    if low == -math.inf:
        raise OptionError(f"{name} is {value!r}", "give a finite number")
    if high == math.inf:
        bound = f"above {low}" if open_low else f"of at least {low}"
    else:
        bound = f"{'above' if open_low else 'from'} {low} up to {high}"
    raise OptionError(f"{name} is {value!r}", f"give a number {bound}")
