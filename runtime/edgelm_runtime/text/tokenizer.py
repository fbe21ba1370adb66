"""Text to token ids and back, by tiktoken alone, from data that travels inside the model file.

A tokenizer is: byte strings in order of merge priority (tiktoken's ranks), one regular expression that
cuts text into pieces before merging, special tokens, and the model's id for each of them. Ranks and ids
are kept apart since models number their tokens freely (specials first, holes, one unknown character as
several byte tokens). What imported models need beyond that is data too: text normalised to NFC first,
tokens that are matched before any merging, ids that text never becomes, a space put in front. The same
JSON is a saved tokenizer file and the `edgelm.tokenizer` entry of a model file.

Special-token text in ordinary text is ordinary text. Only callers that name a special token in
`allowed_special` get its id.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from edgelm_runtime.errors import OptionError, TokenizerError
from edgelm_runtime.text.byte_pairs import BytePairs
from edgelm_runtime.text.named_tokens import NamedTokens, Strip
from edgelm_runtime.text.tokenizer_json import arguments, saved_values
from edgelm_runtime.text.tokenizer_parts import allowed_names, check_parts
from edgelm_runtime.validation import is_whole, shown

END_OF_TEXT = "<|endoftext|>"

# Line breaks take the indentation after them, so that a statement starts with the same token at any
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


PrefixSpace = Literal["never", "first", "always", "each"]
# Where a stretch of text stands: at the start of the whole, after a named token, or after another text.
Place = Literal["start", "between", "continuing"]


class Tokenizer:
    """Encodes and decodes text. Immutable; safe to share between threads.

    `tokens[r]` are the bytes of rank r. `ids[r]` is what the model calls it: one id, several where a
    piece has none of its own, or an empty list where the model cannot express it (default: r itself).
    `special` maps special-token text to its id. What imported vocabularies add:

    - `added`: tokens that ordinary text becomes wherever they stand, the longest first, before merging.
    - `normalized`: those of `added` that are looked for after the text was normalised, normalised themselves.
    - `strip`: named tokens (added or special) that swallow white space on their "left", "right" or "both" sides.
    - `decode_only`: bytes of ids that text never becomes, but that a model may emit.
    - `normalization`: "NFC" composes characters first; "" leaves text alone.
    - `space_symbol`: a character that counts as a space ("\u2581" in SentencePiece vocabularies).
    - `prefix_space`: a space before the text ("first": where there is none yet), before every stretch of text
      between named tokens as well ("always"), or before each of those that begins without one ("each").
    - `drop_unknown`: characters that the model cannot express are left out instead of being an error.

    Raises TokenizerError where two tokens share their bytes or a single byte has no token.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        pattern: str = DEFAULT_PATTERN,
        special: Mapping[str, int] | None = None,
        ids: Sequence[int | Sequence[int]] | None = None,
        *,
        added: Mapping[str, int] | None = None,
        normalized: Collection[str] = (),
        strip: Mapping[str, Strip] | None = None,
        decode_only: Mapping[int, bytes] | None = None,
        normalization: Literal["", "NFC"] = "",
        space_symbol: str = "",
        prefix_space: PrefixSpace = "never",
        drop_unknown: bool = False,
    ) -> None:
        check_parts(
            tokens=tokens, pattern=pattern, special=special, ids=ids, added=added, normalized=normalized, strip=strip,
            decode_only=decode_only, space_symbol=space_symbol, drop_unknown=drop_unknown,
        )  # fmt: skip
        self.tokens = list(tokens)
        self.pattern = pattern
        self.special = dict(special or {})
        self.ids = list(ids) if ids is not None else None
        self.added = dict(added or {})
        self.normalized = sorted(normalized)
        self.strip = dict(strip or {})
        self.decode_only = dict(decode_only or {})
        self.normalization = normalization
        self.space_symbol = space_symbol
        self.prefix_space = prefix_space
        self.drop_unknown = drop_unknown
        if normalization not in ("", "NFC") or prefix_space not in get_args(PrefixSpace):
            raise TokenizerError(
                f"the tokenizer asks for normalization {shown(normalization)}, prefix space {shown(prefix_space)}",
                "update edgelm",
            )
        self._table = self._id_table()
        self._gaps = frozenset(rank for rank, entry in enumerate(self._table) if not entry)
        self._named = {**self.added, **self.special}
        self._check_named()
        self._cuts: dict[frozenset[str], NamedTokens] = {}
        forms = {self._normal(name, "between"): self.added[name] for name in self.normalized}
        self._normal_ids = forms
        self._normal_cut = NamedTokens(forms, self.strip)
        every_id = [token_id for entry in self._table for token_id in entry]
        every_id += [*self._named.values(), *self.decode_only]
        self.vocab_size = 1 + max(every_id)
        self._pairs = BytePairs(self.tokens, pattern)

    def _check_named(self) -> None:
        """Raise TokenizerError where `normalized` or `strip` name other tokens than there are."""
        unknown = {*self.normalized} - {*self.added} | {*self.strip} - {*self._named}
        if unknown or not {*self.strip.values()} <= {*get_args(Strip)}:
            raise TokenizerError(
                f"the tokenizer gives habits to tokens that it lacks: {sorted(map(str, unknown))[:3]}",
                "make it again",
            )

    def _id_table(self) -> list[tuple[int, ...]]:
        """The model's ids of each rank."""
        if self.ids is None:
            return [(rank,) for rank in range(len(self.tokens))]
        if len(self.ids) != len(self.tokens):
            raise TokenizerError(
                f"the tokenizer has {len(self.tokens)} tokens and {len(self.ids)} ids", "make it again"
            )
        return [(entry,) if isinstance(entry, int) else tuple(entry) for entry in self.ids]

    @cached_property
    def _bytes(self) -> list[bytes]:
        """The bytes of each token id; empty for ids that stand for nothing."""
        table = [b""] * self.vocab_size
        for token_id, token in self.decode_only.items():
            table[token_id] = token
        for token, entry in zip(self.tokens, self._table, strict=True):
            if len(entry) == 1:
                table[entry[0]] = token
        for text, token_id in self._named.items():
            plain = text.replace(self.space_symbol, " ") if self.space_symbol else text
            table[token_id] = plain.encode()
        return table

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of all special tokens."""
        return frozenset(self.special.values())

    def holes(self, rows: int) -> tuple[int, ...]:
        """The ids of a model with `rows` of them that stand for no text at all, and must never be chosen."""
        return (*(hole for hole in self._holes if hole < rows), *range(self.vocab_size, rows))

    @cached_property
    def _holes(self) -> tuple[int, ...]:
        return tuple(token_id for token_id, token in enumerate(self._bytes) if not token)

    @property
    def end_of_text(self) -> int | None:
        """Id of `<|endoftext|>`, which stands between documents, where there is one."""
        return self.special.get(END_OF_TEXT)

    def encode(
        self,
        text: str,
        allowed_special: Collection[str] | str = (),
        *,
        continues: bool = False,
        stand_ins: Mapping[str, str] | None = None,
    ) -> list[int]:
        """Token ids of `text`. Special tokens named in `allowed_special` ("all": every one) become their ids.

        `continues`: the text follows another, so that it gets no space in front of its own. `stand_ins`: single
        characters that stand for text which is ordinary whatever it spells.

        Raises OptionError for a special token that the model does not have.
        """
        if not isinstance(text, str):
            raise OptionError(f"the text is {shown(text)}", "give a string")
        allowed = allowed_names(allowed_special, self.special)
        meant = str.maketrans(dict(stand_ins)) if stand_ins else None
        found: list[int] = []
        start = 0
        for end, next_start, token_id in self._named_tokens(text, frozenset(allowed)):
            stretch = text[start:end].translate(meant) if meant else text[start:end]
            place: Place = "between" if start else "continuing" if continues else "start"
            found += self._encode_stretch(stretch, place)
            found += token_id
            start = next_start
        return found

    def _named_tokens(self, text: str, allowed: frozenset[str]) -> Iterator[tuple[int, int, list[int]]]:
        """(start, end, [id]) of each named token in `text`, and of its end, without an id."""
        if allowed not in self._cuts:
            names = {*self.added, *allowed} - {*self.normalized}
            self._cuts[allowed] = NamedTokens(names, self.strip)
        for start, end, name in self._cuts[allowed].places(text):
            yield start, end, [self._named[name]]
        yield len(text), len(text), []

    def _encode_stretch(self, text: str, place: Place) -> list[int]:
        """Ids of text that holds no named token, except those of `normalized`."""
        if not text:
            return []
        text = self._normal(text, place)
        found: list[int] = []
        done = 0
        for start, end, form in self._normal_cut.places(text):
            found += self._merged(text[done:start], "between" if done else place)
            found.append(self._normal_ids[form])
            done = end
        return found + self._merged(text[done:], "between" if done else place)

    def _normal(self, text: str, place: Place) -> str:
        """Normalised text, with the space in front that is part of normalising ("always")."""
        if self.normalization:
            text = unicodedata.normalize(self.normalization, text)
        if self.space_symbol:
            text = text.replace(self.space_symbol, " ")
        return " " + text if self.prefix_space == "always" and place != "continuing" else text

    def _merged(self, text: str, place: Place) -> list[int]:
        """Ids of normalised text without any named token."""
        if not text:
            return []
        spaced = self.prefix_space == "each" or (self.prefix_space == "first" and place == "start")
        if spaced and place != "continuing" and not text.startswith(" "):
            text = " " + text
        ranks = self._pairs.ranks(text)
        if self.ids is None:
            return ranks
        table = self._table
        if not self._gaps.isdisjoint(ranks):
            ranks = self._pairs.ranks(self._without_unknown(text))
        return [token_id for rank in ranks for token_id in table[rank]]

    def _without_unknown(self, text: str) -> str:
        """The text less the characters that have no id. Raises OptionError where that is not wanted."""
        unknown = [c for c in set(text) if not self._gaps.isdisjoint(self._pairs.ranks(c))]
        if not self.drop_unknown:
            first = min(unknown, key=text.index)
            raise OptionError(
                f"the model's vocabulary has nothing for {shown(first)}", "leave it out of the text"
            )
        return text.translate({ord(character): None for character in unknown})

    def decode_bytes(self, ids: Iterable[int], skip_special: bool = False) -> bytes:
        """The bytes of `ids`; those of special tokens are left out with `skip_special`.

        Raises OptionError for an id outside the vocabulary.
        """
        table, hidden = self._bytes, self.special_ids if skip_special else frozenset()
        parts = []
        # An array or a tensor gives plain numbers at once; its own items would not be found in a set.
        every: Any = np.asarray(ids).tolist() if hasattr(ids, "__array__") else ids
        for token_id in every if isinstance(every, Iterable) else (every,):
            if not isinstance(token_id, int) and getattr(token_id, "ndim", 1) == 0:
                token_id = token_id.item()  # of numpy or PyTorch, in a list
            if not is_whole(token_id, 0, len(table) - 1):
                raise OptionError(
                    f"token id {shown(token_id)} is outside the vocabulary of {len(table)}",
                    f"give ids from 0 to {len(table) - 1}",
                )
            if token_id not in hidden:
                parts.append(table[token_id])
        return b"".join(parts)

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of `ids`. Bytes that are not UTF-8 become U+FFFD, as in `bytes.decode`."""
        text = self.decode_bytes(ids, skip_special).decode(errors="replace")
        # Byte-level vocabularies keep the space that they have put in front ("each" without a symbol for it).
        kept = self.prefix_space == "never" or (self.prefix_space == "each" and not self.space_symbol)
        return text if kept else text.removeprefix(" ")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` reads them back."""
        return saved_values(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Tokenizer:
        """Build from the values of `to_dict`. Raises TokenizerError where they are not such."""
        try:
            return cls(**arguments(values))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TokenizerError(f"not a saved tokenizer: {shown(error)}", "save it again") from error

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all that decides how text becomes ids."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()
