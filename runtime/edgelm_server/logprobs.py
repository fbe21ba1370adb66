"""Log-probabilities in OpenAI's two forms: of completions, and of chats."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any, NamedTuple

from edgelm_runtime.generation.results import Piece
from edgelm_runtime.language_model import LanguageModel
from edgelm_runtime.text.tokenizer import Tokenizer

MOST_ALTERNATIVES = 20
LOWEST = -9999.0  # JSON has no infinity


class Scored(NamedTuple):
    """A token, its log-probability (None: the first of a text), and the likeliest (id, log-probability) there."""

    token_id: int
    logprob: float | None
    top: Sequence[tuple[int, float]] = ()


def scored(piece: Piece, with_end: bool = False) -> list[Scored]:
    """The token of a piece that has one; `with_end`: an end token too."""
    token_id = piece.end_id if with_end and piece.token_id is None else piece.token_id
    if token_id is None or piece.logprob is None:
        return []
    return [Scored(token_id, piece.logprob, piece.top_logprobs)]


def score_prompt(lm: LanguageModel, ids: Sequence[int], alternatives: int) -> list[Scored]:
    """The tokens of a prompt; the first has no log-probability."""
    first = Scored(int(ids[0]), None)
    if len(ids) == 1:
        return [first]
    score = lm.score(ids, top_logprobs=alternatives)
    rest = zip(score.token_ids[1:], score.logprobs.tolist(), score.top_logprobs or (), strict=True)
    return [first, *(Scored(*token) for token in rest)]


class CompletionLogprobs:
    """Makes the `logprobs` of completions, a stretch of one text at a time."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def __call__(self, tokens: Sequence[Scored]) -> dict[str, Any]:
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._tokenizer.decode_bytes((token.token_id,))))
        return {
            "tokens": [token_text(self._tokenizer, token.token_id) for token in tokens],
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "top_logprobs": [self._alternatives(token) for token in tokens],
            "text_offset": offsets,
        }

    def _alternatives(self, token: Scored) -> dict[str, float] | None:
        """Text to log-probability, the token itself included. Of tokens with one text the likeliest counts."""
        if token.logprob is None:
            return None
        every = sorted({(token.token_id, token.logprob), *token.top}, key=lambda pair: pair[1])
        return {token_text(self._tokenizer, token_id): max(value, LOWEST) for token_id, value in every}


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
