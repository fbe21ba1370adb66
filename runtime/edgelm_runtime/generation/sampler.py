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

import os
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.errors import NumericsError, OptionError
from edgelm_runtime.generation.filters import filtered, reaching

if TYPE_CHECKING:
    from edgelm_runtime.arrays import Floats, Ids
    from edgelm_runtime.generation.options import Processor, Sampling

LARGEST = float(np.finfo(np.float32).max)


class Grammar(Protocol):
    """What holds a text to a form; see `edgelm_runtime.generation.constraint`."""

    def allowed(self, ids: Ids) -> NDArray[np.bool_]:
        """Which tokens (vocab,) may follow `ids`."""

    def complete(self, ids: Ids) -> bool:
        """Whether nothing can follow `ids`."""


class Sampler:
    """Chooses tokens for one text. `sample` tells apart several texts from the same prompt and seed."""

    def __init__(self, options: Sampling, sample: int = 0, grammar: Grammar | None = None) -> None:
        self.options = options
        self.seed = int.from_bytes(os.urandom(8)) >> 1 if options.seed is None else options.seed
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
        candidates, weights = filtered(logits, options)
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
    return float(int(generator.random_raw()) >> 11) * 2.0**-53
