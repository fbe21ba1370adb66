"""What a tokenizer.json says of its tokens: pieces, merges, added and special tokens with their habits."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from edgelm_runtime.errors import TokenizerError
from edgelm_runtime.text.huggingface.pretokenizers import flat
from edgelm_runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edgelm_runtime.text.named_tokens import Strip

EVERY_ID = 1 << 31


class Vocabulary:
    """The tokens of one tokenizer.json. Ids from `rows` on are unknown to the model and left out.

    Raises TokenizerError for a model other than BPE, and for habits that cannot be served.
    """

    def __init__(self, values: Mapping[str, Any], source: str, rows: int | None = None) -> None:
        self.values, self.source = values, source
        self.model: Mapping[str, Any] = values["model"]
        self.rows = EVERY_ID if rows is None else rows
        _refuse_unknown(self.model, source)
        self.ids: dict[str, int] = dict(self.model["vocab"])
        pairs = [_pair(merge) for merge in self.model.get("merges") or []]
        self._rank = {pair: rank for rank, pair in enumerate(pairs)}
        self._merged = list(dict.fromkeys("".join(pair) for pair in pairs))
        self.special: dict[str, int] = {}
        self.added: dict[str, int] = {}
        self.normalized: list[str] = []
        self.strip: dict[str, Strip] = {}
        for token in values.get("added_tokens") or []:
            if token["id"] < self.rows:
                self._take(token)

    def _take(self, token: Mapping[str, Any]) -> None:
        name = token["content"]
        (self.special if token["special"] else self.added)[name] = token["id"]
        # Without a normaliser it makes no difference. Special tokens come from the program alone, so that what a text
        # spells decides where they stand, not what normalising makes of it.
        if not token["special"] and token.get("normalized", True) and self.normalizers():
            self.normalized.append(name)
        if token.get("single_word"):
            raise TokenizerError(f"{self.source}: token {name!r} with single_word", "this cannot be imported")
        sides: dict[tuple[bool, bool], Strip] = {
            (True, False): "left",
            (False, True): "right",
            (True, True): "both",
        }
        if side := sides.get((bool(token.get("lstrip")), bool(token.get("rstrip")))):
            self.strip[name] = side

    def reachable(self) -> list[str]:
        """Pieces of several characters that text can become, by merge priority.

        What a model ranks beyond its merges (`ignore_merges`) comes last, in the order of ids.
        """
        rest = sorted(self.ids.keys() - set(self._merged), key=self.ids.__getitem__)
        candidates = [piece for piece in (*self._merged, *rest) if len(piece) > 1 and piece in self.ids]
        if self.model.get("ignore_merges"):
            return candidates
        return [piece for piece in candidates if self._becomes_one(piece)]

    def _becomes_one(self, piece: str) -> bool:
        """Whether merging its characters, the pair of lowest rank first, makes the piece."""
        parts = list(piece)
        if any(part not in self.ids for part in parts):
            return False
        rank = self._rank
        while len(parts) > 1:
            ranks = [rank.get((a, b), EVERY_ID) for a, b in itertools.pairwise(parts)]
            if (best := min(ranks)) == EVERY_ID:
                return False
            at = ranks.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return True

    def tokenizer(
        self, tokens: list[bytes], ids: list[int | list[int]], forms: Mapping[str, bytes], **options: Any
    ) -> Tokenizer:
        """The tokenizer with these ranks, and everything that the vocabulary says itself.

        `forms` are the bytes of each piece. Raises TokenizerError where an id is beyond the model's rows.
        """
        taken = {token_id for token_id in ids if isinstance(token_id, int)}
        if beyond := sorted(token_id for token_id in taken if token_id >= self.rows):
            raise TokenizerError(
                f"{self.source} has token id {beyond[-1]}, the model only {self.rows} rows",
                "give the model's own tokenizer with --tokenizer",
            )
        named = {*self.special.values(), *self.added.values()}
        return Tokenizer(
            tokens,
            special=self.special,
            ids=None if ids == list(range(len(ids))) else ids,
            added=self.added,
            normalized=self.normalized,
            strip=self.strip,
            decode_only={
                token_id: forms[piece]
                for piece, token_id in self.ids.items()
                if token_id not in taken and token_id not in named and token_id < self.rows
            },
            normalization=self._normalization(),
            **options,
        )

    def normalizers(self) -> list[Mapping[str, Any]]:
        """The steps of the normaliser."""
        return flat(self.values.get("normalizer"), "normalizers")

    def _normalization(self) -> Literal["", "NFC"]:
        kinds = [step["type"] for step in self.normalizers() if step["type"] not in ("Prepend", "Replace")]
        if kinds not in ([], ["NFC"]):
            raise TokenizerError(f"{self.source}: normalizer {', '.join(kinds)}", "only NFC can be imported")
        return "NFC" if kinds else ""


def _pair(merge: str | Iterable[str]) -> tuple[str, str]:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right


def _refuse_unknown(model: Mapping[str, Any], source: str) -> None:
    # Files of 2020 (GPT-2's own) leave the type out; merges are what only BPE has.
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind != "BPE":
        raise TokenizerError(f"{source} holds a {kind} tokenizer", "only BPE can be imported")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise TokenizerError(f"{source}: BPE with {name} {model[name]!r}", "this cannot be imported")
