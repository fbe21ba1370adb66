"""Hugging Face's tokenizer.json as a tokenizer of the runtime: BPE turned into tiktoken ranks.

tiktoken merges whatever neighbours join to the bytes of lowest rank; tokenizer.json lists the pairs. The
two agree where ranks follow the merges and every piece is reachable by its own merges; pieces that are
not (`BPE.tokenize` of the piece gives something else) can never come from text and only decode.

Two kinds of vocabulary:
- byte-level (GPT-2, Llama 3, Qwen, SmolLM): pieces are bytes; the pre-tokenizer becomes one pattern.
- SentencePiece-style with byte fallback (Llama 2, Mistral, TinyLlama, Gemma): pieces are characters. They
  are served from bytes by ranking, in front of all pieces, the beginnings of the UTF-8 form of every
  known character: then characters come together first, whatever follows, since no other rank begins
  inside a character. A beginning whose character never comes, and a byte without a piece, are the ids
  of their byte-fallback tokens. The text is cut before runs of spaces if no piece reaches across.

Whether this holds is checked on import, see check.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import tokenizers

from edgelm.importers.files.safe_files import read_json
from edgelm.importers.tokenizers.check import check_tokenizer
from edgelm.importers.tokenizers.pretokenizers import pattern_of
from edgelm_runtime.errors import TokenizerError
from edgelm_runtime.text.tokenizer import PrefixSpace, Tokenizer

SPACE_SYMBOL = "\u2581"


@dataclass(frozen=True)
class ImportedTokenizer:
    """A tokenizer, and the ids that its program puts before every text."""

    tokenizer: Tokenizer
    bos_id: int | None = None


def read_tokenizer_json(path: Path, rows: int | None = None) -> ImportedTokenizer:
    """The tokenizer of a tokenizer.json; ids from `rows` on are unknown to the model and left out.

    Raises TokenizerError for kinds that cannot be served, and where the result differs.
    """
    return convert(read_json(path), str(path), rows)


def convert(values: Mapping[str, Any], source: str, rows: int | None = None) -> ImportedTokenizer:
    """The same for the JSON values themselves."""
    try:
        reference = tokenizers.Tokenizer.from_str(json.dumps(values))
        model = values["model"]
        vocab: dict[str, int] = reference.get_vocab(with_added_tokens=False)
        merges = [tuple(m.split(" ", 1)) if isinstance(m, str) else tuple(m) for m in model.get("merges", [])]
        added_tokens = list(values.get("added_tokens") or [])
        _refuse_unknown(model, added_tokens, source)
        tokenizer = _Conversion(values, reference, vocab, merges, rows, source).tokenizer()
        check_tokenizer(reference, tokenizer, source)
    except TokenizerError:
        raise
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # `tokenizers` raises plain Exceptions, and panics for odd figures
        raise TokenizerError(f"cannot read the tokenizer {source}: {error}", "get the file again") from error
    return ImportedTokenizer(tokenizer, _bos(reference, source))


def _refuse_unknown(model: Mapping[str, Any], added_tokens: Iterable[Mapping[str, Any]], source: str) -> None:
    if model.get("type") != "BPE":
        raise TokenizerError(f"{source} holds a {model.get('type')} tokenizer", "only BPE can be imported")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise TokenizerError(f"{source}: BPE with {name} {model[name]!r}", "this cannot be imported")
    for token in added_tokens:
        # A mask is of no use to a model that continues text, and is the one token with this habit.
        strips = [flag for flag in ("lstrip", "rstrip", "single_word") if token.get(flag)]
        if strips and "mask" not in token["content"]:
            raise TokenizerError(
                f"{source}: token {token['content']!r} with {strips[0]}", "this cannot be imported"
            )


def _bos(reference: tokenizers.Tokenizer, source: str) -> int | None:
    """The id that the post-processor puts in front of a text."""
    plain = reference.encode("a", add_special_tokens=False).ids
    whole = reference.encode("a", add_special_tokens=True).ids
    front = whole[: len(whole) - len(plain)] if whole[-len(plain) :] == plain else None
    if front is None:  # something follows the text: an end-of-text, which generation must not have
        front = whole[: whole.index(plain[0])] if plain[0] in whole else []
    if len(front) > 1:
        raise TokenizerError(
            f"{source} puts {len(front)} tokens before every text", "this cannot be imported"
        )
    return front[0] if front else None


class _Conversion:
    """The steps from tokenizer.json to `Tokenizer`, with what they share."""

    def __init__(
        self,
        values: Mapping[str, Any],
        reference: tokenizers.Tokenizer,
        vocab: dict[str, int],
        merges: list[tuple[str, ...]],
        rows: int | None,
        source: str,
    ) -> None:
        self.values, self.reference, self.vocab, self.source = values, reference, vocab, source
        self.rows = rows if rows is not None else 1 << 31
        self.merged = list(dict.fromkeys("".join(pair) for pair in merges))
        self.special: dict[str, int] = {}
        self.added: dict[str, int] = {}
        for token in values.get("added_tokens") or []:
            if token["id"] < self.rows:
                (self.special if token["special"] else self.added)[token["content"]] = token["id"]

    def tokenizer(self) -> Tokenizer:
        stages = pattern_of(self.values.get("pre_tokenizer"), self.source)
        if stages.byte_level:
            return self._byte_level(stages.pattern)
        if not self.values["model"].get("byte_fallback"):
            raise TokenizerError(
                f"{self.source} is neither byte-level nor has a byte fallback",
                "such a BPE cannot be imported",
            )
        return self._sentencepiece(stages.prefix_space)

    def reachable(self) -> list[str]:
        """Pieces of several characters that text can become, by merge priority.

        What a model ranks beyond its merges (`ignore_merges`) comes last, in the order of ids.
        """
        tokenize = self.reference.model.tokenize
        rest = sorted(self.vocab.keys() - set(self.merged), key=self.vocab.__getitem__)
        candidates = [piece for piece in (*self.merged, *rest) if len(piece) > 1 and piece in self.vocab]
        return [
            piece for piece in candidates if [token.id for token in tokenize(piece)] == [self.vocab[piece]]
        ]

    def _byte_level(self, pattern: str) -> Tokenizer:
        unknown = self.values["model"].get("unk_token")
        gap: list[int] = [self.vocab[unknown]] if unknown is not None else []
        pieces = self.reachable()
        tokens = [bytes([byte]) for byte in range(256)] + [_from_symbols(piece) for piece in pieces]
        ids: list[int | list[int]] = [self.vocab.get(SYMBOL_OF[byte], gap) for byte in range(256)]
        ids += [self.vocab[piece] for piece in pieces]
        return self._made(tokens, ids, {piece: _from_symbols(piece) for piece in self.vocab}, pattern=pattern)

    def _sentencepiece(self, prefix: PrefixSpace) -> Tokenizer:
        normalizer_prefix = self._sentencepiece_normalizer()
        fallback = [self.vocab[f"<0x{byte:02X}>"] for byte in range(256)]
        pieces = [piece for piece in self.reachable() if " " not in piece]
        characters = [piece for piece in self.vocab if len(piece) == 1 and piece != " "]
        written = {_plain_text(piece).encode(): self.vocab[piece] for piece in characters}
        beginnings = sorted({form[:end] for form in written for end in range(2, len(form))})
        long = sorted(form for form in written if len(form) > 1)
        tokens = [bytes([byte]) for byte in range(256)] + beginnings + long
        ids: list[int | list[int]] = [written.get(bytes([byte]), fallback[byte]) for byte in range(256)]
        ids += [[fallback[byte] for byte in form] for form in beginnings] + [written[form] for form in long]
        tokens += [_plain_text(piece).encode() for piece in pieces]
        ids += [self.vocab[piece] for piece in pieces]
        forms = {piece: _plain_text(piece).encode() for piece in self.vocab}
        forms |= {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
        return self._made(
            tokens,
            ids,
            forms,
            pattern=_cut_at_spaces(pieces),
            space_symbol=SPACE_SYMBOL,
            prefix_space=prefix if prefix != "never" else normalizer_prefix,
        )

    def _sentencepiece_normalizer(self) -> PrefixSpace:
        """Whether the normaliser puts a space in front. Raises TokenizerError where it does more."""
        steps = _flat(self.values.get("normalizer"), "normalizers")
        prefix: PrefixSpace = "never"
        for step in steps:
            if step == {"type": "Prepend", "prepend": SPACE_SYMBOL}:
                prefix = "always"
            elif step != {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_SYMBOL}:
                raise TokenizerError(
                    f"{self.source}: normalizer {step.get('type')}", "this cannot be imported"
                )
        return prefix

    def _made(
        self, tokens: list[bytes], ids: list[int | list[int]], forms: Mapping[str, bytes], **options: Any
    ) -> Tokenizer:
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
            decode_only={
                token_id: forms[piece]
                for piece, token_id in self.vocab.items()
                if token_id not in taken and token_id not in named and token_id < self.rows
            },
            normalization=self._normalization(),
            drop_unknown=not all(entry != [] for entry in ids),
            **options,
        )

    def _normalization(self) -> Literal["", "NFC"]:
        steps = _flat(self.values.get("normalizer"), "normalizers")
        kinds = [step["type"] for step in steps if step["type"] not in ("Prepend", "Replace")]
        if kinds not in ([], ["NFC"]):
            raise TokenizerError(f"{self.source}: normalizer {', '.join(kinds)}", "only NFC can be imported")
        return "NFC" if kinds else ""


def _flat(step: Mapping[str, Any] | None, inner: str) -> list[Mapping[str, Any]]:
    """The steps of a `Sequence`, or the one step that is none."""
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [leaf for part in step[inner] for leaf in _flat(part, inner)]
    return [step]


def _plain_text(piece: str) -> str:
    return piece.replace(SPACE_SYMBOL, " ")


def _cut_at_spaces(pieces: Iterable[str]) -> str:
    """A pattern that cuts before runs of spaces, except behind a character after which a piece goes on
    into the spaces (Gemma has one piece like that)."""
    behind = {a for piece in pieces for a, b in pairwise(piece) if b == SPACE_SYMBOL != a}
    words = r" *[^ ]+| +"
    if not behind:
        return words
    characters = "".join(f"\\x{{{ord(character):x}}}" for character in sorted(behind))
    return rf" *(?:[^ ]*[{characters}] +)+[^ ]*|{words}"


def _byte_symbols() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes (`bytes_to_unicode`): printable Latin-1 stands for itself, the
    others follow from U+0100 on."""
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF = _byte_symbols()
SYMBOL_OF = {byte: symbol for symbol, byte in BYTE_OF.items()}


def _from_symbols(piece: str) -> bytes:
    """The bytes of a byte-level piece; text that is not written in stand-ins is taken as it is."""
    if all(symbol in BYTE_OF for symbol in piece):
        return bytes(BYTE_OF[symbol] for symbol in piece)
    return piece.encode()
