"""Byte-level vocabularies (GPT-2, Llama 3, Qwen, SmolLM): pieces are bytes, written in printable stand-ins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgelm_runtime.errors import TokenizerError

if TYPE_CHECKING:
    from edgelm_runtime.text.huggingface.pretokenizers import Cut
    from edgelm_runtime.text.huggingface.vocabulary import Vocabulary
    from edgelm_runtime.text.tokenizer import Tokenizer


def byte_level_tokenizer(vocabulary: Vocabulary, cut: Cut) -> Tokenizer:
    """The tokenizer of a byte-level vocabulary. Raises TokenizerError where its unknown token cannot be served."""
    ids, model = vocabulary.ids, vocabulary.model
    lacking = [byte for byte in range(256) if SYMBOL_OF[byte] not in ids]
    unknown = model.get("unk_token")
    # Without an unknown token such bytes are dropped; one that has no id is an error when it is needed.
    gap: list[int] = [ids[unknown]] if unknown in ids else []
    if gap and len(lacking) > 0 and model.get("fuse_unk"):
        raise TokenizerError(
            f"{vocabulary.source} fuses unknown bytes ({len(lacking)} are lacking)", "this cannot be imported"
        )
    pieces = vocabulary.reachable()
    tokens = [bytes([byte]) for byte in range(256)] + [from_symbols(piece) for piece in pieces]
    table: list[int | list[int]] = [ids.get(SYMBOL_OF[byte], gap) for byte in range(256)]
    table += [ids[piece] for piece in pieces]
    return vocabulary.tokenizer(
        tokens,
        table,
        {piece: from_symbols(piece) for piece in ids},
        pattern=cut.pattern,
        prefix_space=cut.prefix_space,
        drop_unknown=unknown is None and bool(lacking),
    )


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


def from_symbols(piece: str) -> bytes:
    """The bytes of a byte-level piece; text that is not written in stand-ins is taken as it is."""
    if all(symbol in BYTE_OF for symbol in piece):
        return bytes(BYTE_OF[symbol] for symbol in piece)
    return piece.encode()
