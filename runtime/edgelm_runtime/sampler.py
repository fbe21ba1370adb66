"""From logits to a token: a pure function of (logits, seed, sample, position).

Order, documented once and never varied: `processor`, `logit_bias` and `banned_tokens`, penalties
(`repeat_penalty`, `frequency_penalty`, `presence_penalty`), constraint, `temperature`, `top_k`,
`typical_p`, `top_p`, `min_p`, draw. `forced_tokens` come before everything else. Names and meanings
are those of llama.cpp and transformers.

The draw inverts the cumulative distribution in order of token ids at one uniform number, which Philox (a
counter-based generator, Salmon et al. 2011) makes from the seed, the sample's index and the token's
position. So the same seed gives the same text in any batch, with or without streaming, lookup or a cache, and
tiny differences between two implementations' logits all but never change a token.

No step sorts the whole vocabulary, except `typical_p`, which ranks by surprise.
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

Floats = NDArray[np.floating[Any]]
Ids = NDArray[np.int64]
Processor = Callable[[Ids, Floats], Floats]
"""(ids so far (T,), logits (vocab,)) -> logits (vocab,)."""


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
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids."""
    banned_tokens: Sequence[int] = ()
    forced_tokens: Sequence[int] = ()
    """Ids that the output begins with."""
    seed: int | None = None
    """None: a new one each time."""
    processor: Processor | None = None

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0, math.inf)
        _number("top_p", self.top_p, 0, 1, open_low=True)
        _number("typical_p", self.typical_p, 0, 1, open_low=True)
        _number("min_p", self.min_p, 0, 1)
        _number("repeat_penalty", self.repeat_penalty, 0, math.inf, open_low=True)
        _number("frequency_penalty", self.frequency_penalty, -math.inf, math.inf)
        _number("presence_penalty", self.presence_penalty, -math.inf, math.inf)
        whole("top_k", self.top_k, 0)
        whole("repeat_last_n", self.repeat_last_n, -1)
        if self.seed is not None:
            whole("seed", self.seed, 0, 2**64 - 1)
        for name in ("banned_tokens", "forced_tokens"):
            for token_id in getattr(self, name):
                whole(f"a token id in {name}", token_id, 0)
        for token_id, bias in self.logit_bias.items():
            whole("a token id in logit_bias", token_id, 0)
            if not isinstance(bias, (int, float)) or math.isnan(bias) or bias == math.inf:
                raise OptionError(f"logit_bias of {token_id} is {bias!r}", "give a finite number or -inf")
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
        candidates, weights = _filtered(logits, options)
        if len(candidates) == 1:
            return int(candidates[0])
        cumulative = np.cumsum(weights, dtype=np.float64)
        point = uniform(self._key, len(ids)) * cumulative[-1]
        return int(candidates[min(int(np.searchsorted(cumulative, point, "right")), len(candidates) - 1)])

    def _adjusted(self, logits: Floats, ids: Ids) -> Floats:
        """Logits after everything that changes or forbids single tokens."""
        options = self.options
        original = logits
        if options.processor is not None:
            logits = np.asarray(options.processor(ids, logits.copy()))
            if logits.shape != original.shape or not np.issubdtype(logits.dtype, np.floating):
                raise OptionError(
                    f"processor returned {logits.dtype} of shape {logits.shape}",
                    f"return floats of shape {original.shape}",
                )
            if np.isnan(logits).any():
                raise NumericsError("processor returned NaN", "return numbers, or -inf to forbid a token")
        if options.logit_bias or options.banned_tokens:
            logits = logits.copy()
            for token_id, bias in options.logit_bias.items():
                logits[token_id] += bias
            logits[list(options.banned_tokens)] = -np.inf
        logits = _penalised(logits, ids, options)
        if self._grammar is not None:
            logits = np.where(self._grammar.allowed(ids), logits, -np.inf)
        if logits.max() == -np.inf:
            raise OptionError("the options forbid every token", "allow at least one")
        return logits


def _penalised(logits: Floats, ids: Ids, options: Sampling) -> Floats:
    if options.repeat_penalty == 1 and not options.frequency_penalty and not options.presence_penalty:
        return logits
    recent = ids if options.repeat_last_n < 0 else ids[len(ids) - min(options.repeat_last_n, len(ids)) :]
    seen, counts = np.unique(recent, return_counts=True)
    logits = logits.copy()
    chosen = logits[seen]
    factor = options.repeat_penalty
    chosen = np.where(chosen > 0, chosen / factor, chosen * factor)
    logits[seen] = chosen - options.frequency_penalty * counts - options.presence_penalty
    return logits


def _filtered(logits: Floats, options: Sampling) -> tuple[Ids, Floats]:
    """Candidates in order of their ids, and their unnormalised probabilities (at most 1)."""
    scaled = (logits - logits.max()) / options.temperature
    ids: Ids = np.arange(len(scaled))
    if 0 < options.top_k < len(scaled):
        ids = np.sort(np.argpartition(scaled, -options.top_k)[-options.top_k :])
    weights = np.exp(scaled[ids])
    if options.typical_p < 1:
        ids, weights = _kept(ids, weights, _typical(weights, options.typical_p))
    if options.top_p < 1:
        ids, weights = _kept(ids, weights, _nucleus(weights, options.top_p))
    if options.min_p > 0:
        ids, weights = _kept(ids, weights, np.flatnonzero(weights >= options.min_p * weights.max()))
    return ids, weights


def _kept(ids: Ids, weights: Floats, kept: Ids) -> tuple[Ids, Floats]:
    return ids[kept], weights[kept]


def _nucleus(weights: Floats, top_p: float) -> Ids:
    """Indices, ascending, of the fewest largest weights that reach `top_p` of the sum; never none.

    Only the largest 256 are ordered, four times more at each try, since they all but always suffice.
    """
    goal = top_p * weights.sum(dtype=np.float64)
    size = min(256, len(weights))
    while True:
        top = np.argpartition(weights, -size)[-size:] if size < len(weights) else np.arange(size)
        # Equal weights in order of ids, so that the choice does not depend on the partition.
        top = top[np.lexsort((top, -weights[top]))]
        cumulative = np.cumsum(weights[top], dtype=np.float64)
        if cumulative[-1] >= goal or size == len(weights):
            return np.sort(top[: int(np.searchsorted(cumulative, goal)) + 1])
        size = min(4 * size, len(weights))


def _typical(weights: Floats, typical_p: float) -> Ids:
    """Indices, ascending, of the tokens whose surprise is nearest to the entropy (Meister et al. 2022)."""
    probabilities = weights / weights.sum(dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        surprise = -np.log(probabilities)
        entropy = float(np.nansum(probabilities * surprise))
        distance = np.abs(surprise - entropy)
    order = np.argsort(distance, kind="stable")
    cumulative = np.cumsum(probabilities[order], dtype=np.float64)
    return np.sort(order[: int(np.searchsorted(cumulative, typical_p * cumulative[-1])) + 1])


def uniform(key: tuple[int, int], position: int) -> float:
    """A number in [0, 1) that depends on (seed, sample) and position alone."""
    generator = np.random.Philox(key=np.array(key, dtype=np.uint64), counter=position)
    return float(generator.random_raw() >> np.uint64(11)) * 2.0**-53


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


def _number(name: str, value: object, low: float, high: float, open_low: bool = False) -> None:
    if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number) and low <= number <= high and not (open_low and number == low):
            return
    if low == -math.inf:
        raise OptionError(f"{name} is {value!r}", "give a finite number")
    if high == math.inf:
        bound = f"above {low}" if open_low else f"of at least {low}"
    else:
        bound = f"{'above' if open_low else 'from'} {low} up to {high}"
    raise OptionError(f"{name} is {value!r}", f"give a number {bound}")
