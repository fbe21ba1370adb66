"""SentencePiece-style vocabularies with byte fallback (Llama 2, Mistral, TinyLlama, Gemma): pieces are characters.

They are served from bytes by ranking, in front of all pieces, the beginnings of the UTF-8 form of every known
character: then characters come together first, whatever follows, since no other rank begins inside a character.
A beginning whose character never comes, and a byte without a piece, are the ids of their byte-fallback tokens.
The text is cut before runs of spaces if no piece reaches across.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

from edgelm_runtime.errors import TokenizerError

if TYPE_CHECKING:
    from edgelm_runtime.text.huggingface.pretokenizers import Cut
    from edgelm_runtime.text.huggingface.vocabulary import Vocabulary
    from edgelm_runtime.text.tokenizer import PrefixSpace, Tokenizer

SPACE_SYMBOL = "\u2581"
# Bytes that no UTF-8 text holds.
NEVER = {0xC0, 0xC1, *range(0xF5, 0x100)}


def sentencepiece_tokenizer(vocabulary: Vocabulary, cut: Cut) -> Tokenizer:
    """The tokenizer of such a vocabulary. Raises TokenizerError where it lacks a byte, or normalises further."""
    prefix = _prefix_of_normalizer(vocabulary)
    ids = vocabulary.ids
    fallback = [_byte_id(vocabulary, byte) for byte in range(256)]
    pieces = [piece for piece in vocabulary.reachable() if " " not in piece]
    characters = [piece for piece in ids if len(piece) == 1 and piece != " "]
    written = {_plain_text(piece).encode(): ids[piece] for piece in characters}
    beginnings = sorted({form[:end] for form in written for end in range(2, len(form))})
    long = sorted(form for form in written if len(form) > 1)
    tokens = [bytes([byte]) for byte in range(256)] + beginnings + long
    table: list[int | list[int]] = [
        written[bytes([byte])] if bytes([byte]) in written else fallback[byte] for byte in range(256)
    ]
    table += [[i for byte in form for i in fallback[byte]] for form in beginnings]
    table += [written[form] for form in long]
    tokens += [_plain_text(piece).encode() for piece in pieces]
    table += [ids[piece] for piece in pieces]
    forms = {piece: _plain_text(piece).encode() for piece in ids}
    forms |= {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
    return vocabulary.tokenizer(
        tokens,
        [entry[0] if isinstance(entry, list) and len(entry) == 1 else entry for entry in table],
        forms,
        pattern=_cut_at_spaces(pieces),
        space_symbol=SPACE_SYMBOL,
        prefix_space=cut.prefix_space if cut.prefix_space != "never" else prefix,
    )


def _byte_id(vocabulary: Vocabulary, byte: int) -> list[int]:
    name = f"<0x{byte:02X}>"
    if name not in vocabulary.ids and byte not in NEVER:
        raise TokenizerError(f"{vocabulary.source} lacks the byte token {name}", "this cannot be imported")
    return [vocabulary.ids[name]] if name in vocabulary.ids else []


def _prefix_of_normalizer(vocabulary: Vocabulary) -> PrefixSpace:
    """Whether the normaliser puts a space in front. Raises TokenizerError where it does more."""
    prefix: PrefixSpace = "never"
    for step in vocabulary.normalizers():
        if step == {"type": "Prepend", "prepend": SPACE_SYMBOL}:
            prefix = "always"
        elif step != {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_SYMBOL}:
            raise TokenizerError(
                f"{vocabulary.source}: normalizer {step.get('type')}", "this cannot be imported"
            )
    return prefix


def _plain_text(piece: str) -> str:
    return piece.replace(SPACE_SYMBOL, " ")


def _cut_at_spaces(pieces: Iterable[str]) -> str:
    """A pattern that cuts before runs of spaces, except after a character from which a piece goes on into the
    spaces (Gemma has one piece like that)."""
    before = {a for piece in pieces for a, b in pairwise(piece) if b == SPACE_SYMBOL != a}
    words = r" *[^ ]+| +"
    if not before:
        return words
    characters = "".join(f"\\x{{{ord(character):x}}}" for character in sorted(before))
    return rf" *(?:[^ ]*[{characters}] +)+[^ ]*|{words}"
