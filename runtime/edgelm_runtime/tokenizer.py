"""Text to token ids and back, by tiktoken alone, from data that travels inside the model file.

A tokenizer is: byte strings in order of merge priority (tiktoken's ranks), one regular expression that
cuts text into pieces before merging, special tokens, and the model's id for each of them. Ranks and ids
are kept apart since models number their tokens freely (specials first, holes, one unknown character as
several byte tokens). The same JSON is a saved tokenizer file and the `edgelm.tokenizer` entry of a
model file.

Special-token text in ordinary text is ordinary text. Only callers that name a special token in
`allowed_special` get its id.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tiktoken

from edgelm_runtime.errors import OptionError, TokenizerError

END_OF_TEXT = "<|endoftext|>"

# Line breaks take the indentation behind them, so that a statement starts with the same token at any
# depth; words take one character before them (a space, a dot, a bracket); every repetition has a bound,
# since BPE is slow on one enormous piece and a regular expression on one enormous run.
DEFAULT_PATTERN = (
    r"[ \t]{0,64}[\r\n]{1,16}[ \t]{0,64}"
    r"|[^\s\p{L}\p{N}]?\p{L}{1,32}"
    r"|[ ]?\p{L}{1,32}"
    r"|\p{N}{1,3}"
    r"|[ ]?[^\s\p{L}\p{N}]{1,32}"
    r"|\s{1,64}(?!\S)|\s{1,64}"
)


class Tokenizer:
    """Encodes and decodes text. Immutable; safe to share between threads.

    `tokens[r]` are the bytes of rank r. `ids[r]` is what the model calls it: one id, or several where a
    piece has none of its own (default: r itself). `special` maps special-token text to its id.
    `prefix_space` puts a space before the text, as SentencePiece vocabularies do.

    Raises TokenizerError where two tokens share an id or a single byte has no token.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        pattern: str = DEFAULT_PATTERN,
        special: Mapping[str, int] | None = None,
        ids: Sequence[int | Sequence[int]] | None = None,
        prefix_space: bool = False,
    ) -> None:
        self.tokens = list(tokens)
        self.pattern = pattern
        self.special = dict(special or {})
        self.ids = list(ids) if ids is not None else None
        self.prefix_space = prefix_space
        ranks = {token: rank for rank, token in enumerate(self.tokens)}
        if len(ranks) != len(self.tokens):
            raise TokenizerError("the tokenizer lists the same bytes twice", "make the tokenizer again")
        if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
            raise TokenizerError(
                f"the tokenizer has no token for byte {missing[0]:#04x}", "all 256 bytes must be present"
            )
        # Specials get tiktoken ranks behind all others; the table turns ranks into the model's ids.
        table: list[tuple[int, ...]] = [
            (entry,) if isinstance(entry, int) else tuple(entry)
            for entry in (self.ids if self.ids is not None else range(len(self.tokens)))
        ]
        if len(table) != len(self.tokens):
            raise TokenizerError(
                f"the tokenizer has {len(self.tokens)} tokens and {len(table)} ids", "make it again"
            )
        special_ranks = {text: len(table) + index for index, text in enumerate(self.special)}
        self._table = table + [(token_id,) for token_id in self.special.values()]
        self._plain = self.ids is None and all(special_ranks[t] == i for t, i in self.special.items())
        self.vocab_size = 1 + max(token_id for entry in self._table for token_id in entry)
        try:
            self._encoding = tiktoken.Encoding(
                "edgelm", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special_ranks
            )
        except ValueError as error:
            raise TokenizerError(f"the tokenizer's pattern is not usable: {error}") from error

    @cached_property
    def _bytes(self) -> list[bytes]:
        """The bytes of each token id; empty for ids that stand for nothing."""
        table = [b""] * self.vocab_size
        for token, entry in zip(self.tokens, self._table, strict=False):
            if len(entry) == 1:
                table[entry[0]] = token
        for text, token_id in self.special.items():
            table[token_id] = text.encode()
        return table

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of all special tokens."""
        return frozenset(self.special.values())

    @property
    def end_of_text(self) -> int | None:
        """Id of `<|endoftext|>`, which stands between documents, where there is one."""
        return self.special.get(END_OF_TEXT)

    def encode(self, text: str, allowed_special: Collection[str] | str = ()) -> list[int]:
        """Token ids of `text`. Special tokens named in `allowed_special` ("all": every one) become their ids.

        Raises OptionError for a special token that the model does not have.
        """
        allowed = set(self.special) if allowed_special == "all" else _as_set(allowed_special)
        if unknown := sorted(allowed - set(self.special)):
            known = ", ".join(sorted(self.special)) or "none"
            raise OptionError(f"unknown special token {unknown[0]!r}", f"the model has: {known}")
        if self.prefix_space and text:
            text = " " + text
        if allowed:
            ranks = self._encoding.encode(text, allowed_special=allowed, disallowed_special=())
        else:
            ranks = self._encoding.encode_ordinary(text)
        if self._plain:
            return ranks
        table = self._table
        return [token_id for rank in ranks for token_id in table[rank]]

    def decode_bytes(self, ids: Iterable[int], skip_special: bool = False) -> bytes:
        """The bytes behind `ids`; those of special tokens are left out with `skip_special`.

        Raises OptionError for an id outside the vocabulary.
        """
        table, hidden = self._bytes, self.special_ids if skip_special else frozenset()
        parts = []
        for token_id in ids:
            if not 0 <= token_id < len(table):
                raise OptionError(
                    f"token id {token_id} is outside the vocabulary of {len(table)}",
                    f"give ids from 0 to {len(table) - 1}",
                )
            if token_id not in hidden:
                parts.append(table[token_id])
        return b"".join(parts)

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text behind `ids`. Bytes that are not UTF-8 become U+FFFD, as in `bytes.decode`."""
        text = self.decode_bytes(ids, skip_special).decode(errors="replace")
        return text.removeprefix(" ") if self.prefix_space else text

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` reads them back."""
        values: dict[str, Any] = {
            "pattern": self.pattern,
            "tokens": [base64.b64encode(token).decode() for token in self.tokens],
            "special": self.special,
        }
        if self.ids is not None:
            values["ids"] = [entry if isinstance(entry, int) else list(entry) for entry in self.ids]
        if self.prefix_space:
            values["prefix_space"] = True
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Tokenizer:
        """Build from the values of `to_dict`. Raises TokenizerError where they are not such."""
        try:
            return cls(
                tokens=[base64.b64decode(token) for token in values["tokens"]],
                pattern=values["pattern"],
                special=values["special"],
                ids=values.get("ids"),
                prefix_space=values.get("prefix_space", False),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise TokenizerError(f"not a saved tokenizer: {error!r}", "save the tokenizer again") from error

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all that decides how text becomes ids."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()


def byte_tokenizer() -> Tokenizer:
    """One token per byte, and end-of-text: 257 ids for any text, with nothing to train."""
    return Tokenizer([bytes([byte]) for byte in range(256)], special={END_OF_TEXT: 256})


def named_tokenizer(name: str) -> Tokenizer:
    """A public tiktoken encoding (`gpt2`, `cl100k_base`, ...), downloaded by tiktoken on first use.

    Raises TokenizerError for an unknown name, and where its ranks are not cached and cannot be fetched.
    """
    if name not in tiktoken.list_encoding_names():
        known = ", ".join(["bytes", *tiktoken.list_encoding_names()])
        raise TokenizerError(
            f"no tokenizer file or encoding {name!r}", f"give a saved file or one of: {known}"
        )
    try:
        encoding = tiktoken.get_encoding(name)
    except Exception as error:  # whatever the HTTP client raises
        raise TokenizerError(
            f"the ranks of {name!r} are not on this machine and cannot be downloaded ({type(error).__name__})",
            "point TIKTOKEN_CACHE_DIR at a folder that has them, or give a saved tokenizer.json",
        ) from error
    by_rank = sorted(encoding._mergeable_ranks.items(), key=lambda item: item[1])
    ids = [rank for _, rank in by_rank]
    return Tokenizer(
        [token for token, _ in by_rank],
        encoding._pat_str,
        encoding._special_tokens,
        None if ids == list(range(len(ids))) else ids,
    )


def load_tokenizer(source: str | Path) -> Tokenizer:
    """`bytes`, a saved tokenizer file (or a folder with `tokenizer.json`), or a named tiktoken encoding.

    Raises TokenizerError where it is none of them.
    """
    if str(source) == "bytes":
        return byte_tokenizer()
    path = Path(source)
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        return named_tokenizer(str(source))
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TokenizerError(
            f"cannot read the tokenizer {path}: {error}", "give a saved tokenizer file"
        ) from error
    if not isinstance(values, dict):
        raise TokenizerError(f"{path} is not a saved tokenizer", "give a file that edgelm saved")
    return Tokenizer.from_dict(values)


def _as_set(names: Collection[str] | str) -> set[str]:
    return {names} if isinstance(names, str) else set(names)
