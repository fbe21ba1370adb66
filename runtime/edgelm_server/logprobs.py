"""Log-probabilities in OpenAI's two forms: of completions, and of chats."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from edgelm_runtime.generation.results import Piece
from edgelm_runtime.language_model import LanguageModel
from edgelm_runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edgelm_server.texts import Job

MOST_ALTERNATIVES = 20
LOWEST = -9999.0  # JSON has no infinity


class Scored(NamedTuple):
    """A token, where its text begins, its log-probability (None: the first of a text), and the likeliest
    (id, log-probability) there."""

    token_id: int
    begin: int
    logprob: float | None
    top: Sequence[tuple[int, float]] = ()


class ShownTokens:
    """The scored tokens of a text in the making, each given out when its text is shown.

    So log-probabilities and text always say the same: tokens of a stop string, or of a call that is taken out of the
    text, never appear. A token that a stop string begins in the middle of is shown as far as it goes, and counts.
    """

    def __init__(self, tokenizer: Tokenizer, job: Job, begin: int = 0, with_end: bool = False) -> None:
        """`begin` is where the first token's text begins; `with_end`: a token that ends the text is given too."""
        self._tokenizer = tokenizer
        self._skip_special = not job.options.get("keep_special", False)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._end = begin
        self._with_end = with_end
        self._waiting: deque[Scored] = deque()

    def add(self, piece: Piece) -> None:
        """Take in what a piece adds."""
        token_id = piece.end_id if self._with_end and piece.token_id is None else piece.token_id
        if token_id is None or piece.logprob is None:
            return
        self._waiting.append(Scored(token_id, self._end, piece.logprob, piece.top_logprobs))
        if piece.token_id is not None:
            data = self._tokenizer.decode_bytes((token_id,), skip_special=self._skip_special)
            self._end += len(self._decoder.decode(data))

    def until(self, shown: int, last: bool) -> list[Scored]:
        """Those that begin before `shown`; with the `last` of a text that is shown as a whole, all that are left."""
        given = []
        while self._waiting and (self._waiting[0].begin < shown or (last and shown >= self._end)):
            given.append(self._waiting.popleft())
        return given


def score_prompt(lm: LanguageModel, ids: Sequence[int], text: str, alternatives: int) -> list[Scored]:
    """The tokens of a prompt, whose text is `text`; the first has no log-probability."""
    data = [lm.tokenizer.decode_bytes((int(token_id),)) for token_id in ids]
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    lengths = [len(decoder.decode(part)) for part in data]
    # A begin token that the model wants stands before the text and has no place in it.
    begins = np.cumsum([len(text) - sum(lengths), *lengths[:-1]]).clip(0).tolist()
    if len(ids) == 1:
        return [Scored(int(ids[0]), begins[0], None)]
    score = lm.score(ids, top_logprobs=alternatives)
    return [
        Scored(*token)
        for token in zip(
            score.token_ids,
            begins,
            [None, *score.logprobs.tolist()],
            [(), *(score.top_logprobs or ())],
            strict=True,
        )
    ]


def completion_logprobs(tokenizer: Tokenizer, tokens: Sequence[Scored]) -> dict[str, Any]:
    """The `logprobs` of a completion's choice, or of a chunk of it."""
    return {
        "tokens": [token_text(tokenizer, token.token_id) for token in tokens],
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [_alternatives(tokenizer, token) for token in tokens],
        "text_offset": [token.begin for token in tokens],
    }


def _alternatives(tokenizer: Tokenizer, token: Scored) -> dict[str, float] | None:
    """Text to log-probability, the token itself included. Of tokens with one text the likeliest counts."""
    if token.logprob is None:
        return None
    every = sorted({(token.token_id, token.logprob), *token.top}, key=lambda pair: pair[1])
    return {token_text(tokenizer, token_id): max(value, LOWEST) for token_id, value in every}


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[Scored]) -> dict[str, Any]:
    """The `logprobs` of a chat's choice, or of a chunk of it."""

    def entry(token_id: int, logprob: float | None) -> dict[str, Any]:
        return {
            "token": token_text(tokenizer, token_id),
            "logprob": _finite(logprob),
            "bytes": list(tokenizer.decode_bytes((token_id,))),
        }

    content = [
        {**entry(token.token_id, token.logprob), "top_logprobs": [entry(*pair) for pair in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token's text; `bytes:\\xe2\\x82` where it is only a part of a character."""
    data = tokenizer.decode_bytes((token_id,))
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LOWEST)
