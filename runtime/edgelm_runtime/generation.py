"""The one generation loop: window, logits, sample, stop, repeat.

Every front end uses it, with any decoder: the command line, the Python interface, PyTorch in the tests.
`run` advances a batch of rows, a pass at a time, and yields a `Piece` per token. Rows that are finished
leave the batch.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.decoder import Decoder
from edgelm_runtime.errors import OptionError
from edgelm_runtime.row import FinishReason, Limits, Piece, Row
from edgelm_runtime.sampler import SAMPLING_OPTIONS, Sampler, Sampling

Ids = NDArray[np.int64]


class ContextWarning(UserWarning):
    """The text has outgrown the model's context, and earlier tokens are no longer seen."""


@dataclass
class Stats:
    """Counts of one call. `passes` are runs of the graph, shared by the rows of a batch."""

    prompt_tokens: int = 0
    tokens: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    first_token_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first, over the time after the first; 0 where there is one token or none."""
        rest = self.seconds - self.first_token_seconds
        return (self.tokens - 1) / rest if self.tokens > 1 and rest > 0 else 0.0

    @property
    def accept_rate(self) -> float:
        """Share of drafted tokens that were kept."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass(frozen=True)
class Generation:
    """A finished text. The prompt is not part of it; nor is an end token, or (in `text`) a stop string."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    logprobs: list[float] | None = None
    """Natural log-probability of each token, where asked for."""
    top_logprobs: list[tuple[tuple[int, float], ...]] | None = None
    """The likeliest (token id, log-probability) at each place, where asked for."""
    stats: Stats = field(default_factory=Stats)
    """Counts of the whole call, shared by all texts of a batch."""


def finished(row: Row, pieces: Sequence[Piece], stats: Stats) -> Generation:
    """What `run` made of a row."""
    tokens = [piece for piece in pieces if piece.token_id is not None]
    scored = row.limits.logprobs is not None
    return Generation(
        text="".join(piece.text for piece in pieces),
        token_ids=row.new_ids,
        finish_reason=row.finish_reason or "length",
        logprobs=[piece.logprob for piece in tokens if piece.logprob is not None] if scored else None,
        top_logprobs=[piece.top_logprobs for piece in tokens] if row.limits.logprobs else None,
        stats=stats,
    )


def run(decoder: Decoder, rows: Sequence[Row], limits: Limits, stats: Stats | None = None) -> Iterator[Piece]:
    """Advance `rows` until each is finished, yielding a piece per token; fills `stats` along the way."""
    stats = stats if stats is not None else Stats()
    started = time.perf_counter()
    context = decoder.context_length
    pass_cost: int | None = getattr(decoder, "pass_cost", None)
    stats.prompt_tokens += sum(row.prompt_length for row in rows)
    _check_context(rows, limits, context)
    waiting = [_refusal(row, limits, context) for row in rows]
    for piece in waiting:
        if piece is not None:
            yield _told(piece, limits)
    active = [row for row in rows if row.finish_reason is None]
    while active:
        if reason := _interrupted(limits, started):
            for row in active:
                yield _told(row.finish(reason), limits)
            break
        _tell_sliding(active, limits, context)
        windows, counts = zip(*(row.next_window(context, pass_cost) for row in active), strict=True)
        logits = decoder(windows, counts)
        stats.passes += 1
        for row, row_logits in zip(active, logits, strict=True):
            for piece in row.accept(row_logits, context):
                stats.tokens += piece.token_id is not None
                stats.seconds = time.perf_counter() - started
                stats.first_token_seconds = stats.first_token_seconds or stats.seconds
                yield _told(piece, limits)
            stats.drafted += row.drafted
            stats.accepted += row.accepted
        active = [row for row in active if row.finish_reason is None]
    stats.seconds = time.perf_counter() - started


def _told(piece: Piece, limits: Limits) -> Piece:
    if limits.on_token is not None:
        limits.on_token(piece)
    return piece


def _refusal(row: Row, limits: Limits, context: int) -> Piece | None:
    """The last piece of a row that may not make a single token."""
    if limits.max_new_tokens == 0:
        return row.finish("length")
    if limits.overflow == "stop" and row.length >= context:
        return row.finish("context")
    return None


def _interrupted(limits: Limits, started: float) -> FinishReason | None:
    if limits.cancel is not None and limits.cancel.is_set():
        return "cancelled"
    if limits.max_time is not None and time.perf_counter() - started >= limits.max_time:
        return "time"
    return None


def _check_context(rows: Sequence[Row], limits: Limits, context: int) -> None:
    longest = max((row.prompt_length for row in rows), default=0)
    if limits.overflow == "error" and longest + limits.max_new_tokens > context:
        raise OptionError(
            f"a prompt of {longest} tokens and {limits.max_new_tokens} new ones exceed the context of {context}",
            "shorten the prompt, ask for fewer tokens, or let the window slide",
        )
    if longest > context:
        warnings.warn(
            f"the prompt has {longest} tokens and the model sees {context}: "
            f"the first {longest - context} are left out",
            ContextWarning,
            stacklevel=4,
        )


def _tell_sliding(rows: Sequence[Row], limits: Limits, context: int) -> None:
    if limits.overflow == "slide" and any(row.length == context + 1 > row.prompt_length for row in rows):
        warnings.warn(
            f"the context of {context} tokens is full: the model goes on with the last {context}",
            ContextWarning,
            stacklevel=4,
        )


LIMIT_OPTIONS = tuple(Limits.__dataclass_fields__)


def split_options(options: dict[str, Any]) -> tuple[Sampling, Limits]:
    """Sampling and limits from one set of keyword options. Raises OptionError for an unknown one."""
    if unknown := sorted(set(options) - set(SAMPLING_OPTIONS) - set(LIMIT_OPTIONS)):
        known = ", ".join(sorted({*SAMPLING_OPTIONS, *LIMIT_OPTIONS}))
        raise OptionError(f"unknown option {unknown[0]!r}", f"known are {known}")
    sampling = {name: value for name, value in options.items() if name in SAMPLING_OPTIONS}
    limits = {name: value for name, value in options.items() if name in LIMIT_OPTIONS}
    return Sampling(**sampling), Limits(**limits)


def generate_ids(
    decoder: Decoder, prompt: Sequence[int], end_ids: Sequence[int] = (), **options: Any
) -> list[int]:
    """Token ids that continue `prompt` (at least one id). `options` are those of `Sampling` and `Limits`.

    Raises OptionError for an option or id that cannot be used, NumericsError for logits that are not finite.
    """
    sampling, limits = split_options(options)
    sampling.check_ids(decoder.vocab_size)
    if len(limits.reference):
        check_prompt(limits.reference, decoder.vocab_size)
    row = Row(check_prompt(prompt, decoder.vocab_size), Sampler(sampling), limits, end_ids)
    for _ in run(decoder, [row], limits):
        pass
    return row.new_ids


def check_prompt(ids: Any, vocab_size: int) -> Ids:
    """Token ids (T,) as int64. Raises OptionError where they are none, not whole, or outside the vocabulary."""
    try:
        array = np.asarray(ids)
    except ValueError:
        raise OptionError("token ids are nested lists", "give one flat list per prompt") from None
    if array.ndim != 1:
        raise OptionError(f"token ids have shape {array.shape}", "give one flat list per prompt")
    if not len(array):
        raise OptionError("the prompt is empty", "give at least one token")
    if not np.issubdtype(array.dtype, np.integer):
        raise OptionError(f"token ids are {array.dtype}", "give whole numbers")
    outside = array[(array < 0) | (array >= vocab_size)]
    if len(outside):
        raise OptionError(
            f"token id {outside[0]} is outside the vocabulary of {vocab_size}",
            f"give ids from 0 to {vocab_size - 1}",
        )
    return array.astype(np.int64)
