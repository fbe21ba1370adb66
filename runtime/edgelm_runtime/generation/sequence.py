"""One text in the making: its ids, its limits, and the pieces that its tokens become."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.errors import OptionError
from edgelm_runtime.generation.logprobs import top_logprobs
from edgelm_runtime.generation.prompt_lookup import DraftLength, draft
from edgelm_runtime.generation.results import FinishReason, Generation, Piece, Stats
from edgelm_runtime.text.detokenizer import Detokenizer
from edgelm_runtime.text.stop_strings import Stopper
from edgelm_runtime.validation import shown

if TYPE_CHECKING:
    from edgelm_runtime.arrays import Ids
    from edgelm_runtime.generation.options import Limits
    from edgelm_runtime.generation.sampler import Sampler
    from edgelm_runtime.text.tokenizer import Tokenizer

AUTO_DRAFT = 16


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
        if limits.stop and tokenizer is None:
            raise OptionError(f"stop is {shown(limits.stop)}", "stop strings need a model with a tokenizer")
        self._text = _TextStream(tokenizer, limits) if tokenizer is not None else None
        self._reference = np.asarray(limits.reference, np.int64) if len(limits.reference) else None
        automatic = limits.lookup == "auto"
        most = AUTO_DRAFT if automatic else int(limits.lookup)
        self._draft_length = DraftLength(most, fixed=not automatic) if most else None
        self._draft: Ids = self._buffer[:0]
        self._pass_cost = 0
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

    def next_window(
        self, context_length: int, pass_cost: int | None = None, drafting: bool = True
    ) -> tuple[Ids, int]:
        """What the decoder should see now, draft included, and for how many last positions logits are wanted.

        `pass_cost` is what a pass costs the decoder, in tokens that it is fed (default: the window).
        A draft that would push tokens out of the window is cut, since the plain loop would still see them.
        """
        window = self.ids[max(0, self.length - context_length) :]
        self._pass_cost = pass_cost if pass_cost is not None else len(window)
        room = context_length - len(window) if drafting else 0
        self._draft = self._make_draft(window, room)
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
            agrees = position < len(drafted) and token_id == int(drafted[position])
            accepted += agrees
            yield self._append(token_id, logits[position], context_length)
            if self.finish_reason or not agrees:
                break
        self.drafted, self.accepted = len(drafted), accepted
        if self._draft_length is not None:
            self._draft_length.update(self._pass_cost, len(drafted), accepted)

    def _append(self, token_id: int, logits: NDArray[Any], context_length: int) -> Piece:
        wanted = self.limits.logprobs
        logprob, top = top_logprobs(logits, token_id, wanted) if wanted is not None else (None, ())
        if token_id in self._end_ids:
            return replace(self.finish("end"), end_id=token_id, logprob=logprob, top_logprobs=top)
        if self.length == len(self._buffer):
            self._buffer = np.concatenate((self._buffer, np.empty_like(self._buffer)))
        self._buffer[self.length] = token_id
        self.length += 1
        text, stopped = self._text.feed(token_id) if self._text else ("", False)
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


class _TextStream:
    """Tokens to text that may be shown: whole characters, up to a stop string."""

    def __init__(self, tokenizer: Tokenizer, limits: Limits) -> None:
        self._detokenizer = Detokenizer(tokenizer, limits.keep_special)
        self._stopper = Stopper(limits.stop)

    def feed(self, token_id: int) -> tuple[str, bool]:
        return self._stopper.feed(self._detokenizer.feed(token_id))

    def flush(self) -> str:
        text, stopped = self._stopper.feed(self._detokenizer.flush())
        return text if stopped else text + self._stopper.flush()


def finished(row: Row, pieces: Sequence[Piece], stats: Stats) -> Generation:
    """What generation made of a row."""
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
