"""The one generation loop: window, logits, sample, stop, repeat.

Every front end uses it, with any decoder: the command line, the Python interface, PyTorch in the tests.
A `Row` is one text in the making; `run` advances a batch of rows, a pass at a time, and yields a `Piece`
per token. Rows that are finished leave the batch.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.decoder import Decoder
from edgelm_runtime.detokenizer import Detokenizer
from edgelm_runtime.errors import OptionError
from edgelm_runtime.lookup import DraftLength, draft
from edgelm_runtime.sampler import SAMPLING_OPTIONS, Sampler, Sampling, log_softmax, whole
from edgelm_runtime.stopper import Stopper
from edgelm_runtime.tokenizer import Tokenizer

Ids = NDArray[np.int64]
Overflow = Literal["slide", "stop", "error"]
FinishReason = Literal["stop", "length", "end", "context", "time", "cancelled"]

AUTO_DRAFT = 10


class ContextWarning(UserWarning):
    """The text has outgrown the model's context, and earlier tokens are no longer seen."""


@dataclass(frozen=True)
class Piece:
    """What one token adds. The last piece of a text carries `finish_reason` and any text held back.

    `token_id` is None in a last piece that stands for no token of the text (an end token, a stop by time).
    `logprob` is the natural log-probability under the unmodified model, where asked for, and
    `top_logprobs` the N most likely tokens with theirs.
    """

    text: str
    token_id: int | None
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    finish_reason: FinishReason | None = None
    row: int = 0


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
        if self.max_time is not None and not self.max_time > 0:
            raise OptionError(f"max_time is {self.max_time!r}", "give seconds above 0")
        if self.overflow not in get_args(Overflow):
            raise OptionError(
                f"overflow is {self.overflow!r}", f"choose one of {', '.join(get_args(Overflow))}"
            )
        if self.lookup != "auto":
            whole("lookup", self.lookup, 0, 1024)
        if self.logprobs is not None:
            whole("logprobs", self.logprobs, 0)


class Row:
    """One text: its ids, its sampler, and what turns its tokens into pieces."""

    def __init__(
        self,
        prompt: Sequence[int] | Ids,
        sampler: Sampler,
        limits: Limits,
        end_ids: Sequence[int] = (),
        tokenizer: Tokenizer | None = None,
        index: int = 0,
    ) -> None:
        self.index = index
        self.sampler = sampler
        self.limits = limits
        self.finish_reason: FinishReason | None = None
        self.length = self.prompt_length = len(prompt)
        self._buffer = np.empty(len(prompt) + min(limits.max_new_tokens, 4096) + 1, np.int64)
        self._buffer[: self.length] = prompt
        self._end_ids = frozenset(end_ids)
        self._text = _TextStream(tokenizer, limits.stop) if tokenizer is not None else None
        self._reference = np.asarray(limits.reference, np.int64) if len(limits.reference) else None
        automatic = limits.lookup == "auto"
        most = AUTO_DRAFT if automatic else int(limits.lookup)
        self._draft_length = DraftLength(most, fixed=not automatic) if most else None
        self._draft: Ids = self._buffer[:0]
        self.drafted = self.accepted = 0

    @property
    def ids(self) -> Ids:
        """Prompt and generated tokens (T,)."""
        return self._buffer[: self.length]

    @property
    def new_ids(self) -> list[int]:
        """Generated tokens."""
        ids: list[int] = self._buffer[self.prompt_length : self.length].tolist()
        return ids

    def next_window(self, context_length: int) -> tuple[Ids, int]:
        """What the decoder should see now, draft included, and for how many last positions logits are wanted.

        A draft that would push tokens out of the window is cut, since the plain loop would still see them.
        """
        window = self.ids[max(0, self.length - context_length) :]
        self._draft = self._make_draft(window, context_length - len(window))
        return np.concatenate((window, self._draft)), len(self._draft) + 1

    def _make_draft(self, window: Ids, room: int) -> Ids:
        left = self.limits.max_new_tokens - (self.length - self.prompt_length) - 1
        if self._draft_length is None or min(room, left) < 1:
            return window[:0]
        most = min(self._draft_length.next(), room, left)
        return draft(window, most, self._reference) if most else window[:0]

    def accept(self, logits: NDArray[Any], context_length: int) -> Iterator[Piece]:
        """Sample from logits (1 + drafted, vocab) in turn, as long as the draft agrees; yields the pieces."""
        drafted, accepted = self._draft, 0
        for position in range(len(logits)):
            token_id = self.sampler(logits[position], self.ids, self.prompt_length)
            agrees = position < len(drafted) and token_id == drafted[position]
            accepted += agrees
            yield self._append(token_id, logits[position], context_length)
            if self.finish_reason or not agrees:
                break
        self.drafted, self.accepted = len(drafted), accepted
        if self._draft_length is not None:
            self._draft_length.update(len(drafted), accepted)

    def _append(self, token_id: int, logits: NDArray[Any], context_length: int) -> Piece:
        if token_id in self._end_ids:
            return self.finish("end")
        if self.length == len(self._buffer):
            self._buffer = np.concatenate((self._buffer, np.empty_like(self._buffer)))
        self._buffer[self.length] = token_id
        self.length += 1
        text, stopped = self._text.feed(token_id) if self._text else ("", False)
        logprob, top = self._logprobs(token_id, logits)
        if stopped or self.sampler.complete(self.ids):
            self.finish_reason = "stop"
        elif self.length - self.prompt_length >= self.limits.max_new_tokens:
            self.finish_reason = "length"
        elif self.limits.overflow == "stop" and self.length >= context_length:
            self.finish_reason = "context"
        if self.finish_reason and not stopped and self._text:
            text += self._text.flush()
        return Piece(text, token_id, logprob, top, self.finish_reason, self.index)

    def finish(self, reason: FinishReason) -> Piece:
        """End this text without a further token."""
        self.finish_reason = reason
        return Piece(self._text.flush() if self._text else "", None, finish_reason=reason, row=self.index)

    def _logprobs(
        self, token_id: int, logits: NDArray[Any]
    ) -> tuple[float | None, tuple[tuple[int, float], ...]]:
        if self.limits.logprobs is None:
            return None, ()
        every = log_softmax(logits)
        count = min(self.limits.logprobs, len(every))
        top = np.argsort(-every, kind="stable")[:count] if count else []
        ranked = sorted(((int(i), float(every[i])) for i in top), key=lambda pair: (-pair[1], pair[0]))
        return float(every[token_id]), tuple(ranked)


class _TextStream:
    """Tokens to text that may be shown: whole characters, up to a stop string."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._stopper = Stopper(stops)

    def feed(self, token_id: int) -> tuple[str, bool]:
        return self._stopper.feed(self._detokenizer.feed(token_id))

    def flush(self) -> str:
        text, stopped = self._stopper.feed(self._detokenizer.flush())
        return text if stopped else text + self._stopper.flush()


def run(decoder: Decoder, rows: Sequence[Row], limits: Limits, stats: Stats | None = None) -> Iterator[Piece]:
    """Advance `rows` until each is finished, yielding a piece per token; fills `stats` along the way."""
    stats = stats if stats is not None else Stats()
    started = time.perf_counter()
    context = decoder.context_length
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
        windows, counts = zip(*(row.next_window(context) for row in active), strict=True)
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
    row = Row(check_prompt(prompt, decoder.vocab_size), Sampler(sampling), limits, end_ids)
    for _ in run(decoder, [row], limits):
        pass
    return row.new_ids


def check_prompt(ids: Any, vocab_size: int) -> Ids:
    """Token ids (T,) as int64. Raises OptionError where they are none, not whole, or outside the vocabulary."""
    array = np.asarray(ids)
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
