"""What generation gives: pieces while it runs, a `Generation` at its end, and counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


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


FinishReason = Literal["stop", "length", "end", "context", "time", "cancelled"]


@dataclass(frozen=True)
class Piece:
    """What one token adds. The last piece of a text carries `finish_reason` and any text held back.

    `token_id` is None in a last piece that stands for no token of the text (an end token, a stop by time).
    `logprob` is the natural log-probability under the unmodified model, where asked for, and
    `top_logprobs` the N most likely tokens with theirs; an end token, `end_id`, has them too.
    """

    text: str
    token_id: int | None
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    finish_reason: FinishReason | None = None
    row: int = 0
    end_id: int | None = None
