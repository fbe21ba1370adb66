"""Pieces of text from tokens that cut characters apart."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from edgelm_runtime import Tokenizer, byte_tokenizer
from edgelm_runtime.text.detokenizer import Detokenizer

BYTES = byte_tokenizer()
# Tokens that end inside characters and begin there, besides single bytes and a special token.
EURO = "\u20ac".encode()
TOKENIZER = Tokenizer(
    [*(bytes([byte]) for byte in range(256)), EURO[:2], EURO[1:], b"a" + EURO[:1], b"\xf0\x9f"],
    special={"<|endoftext|>": 260},
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=40))
def test_pieces_together_are_what_decode_gives(ids: list[int]) -> None:
    detokenizer = Detokenizer(TOKENIZER)
    text = "".join(detokenizer.feed(token_id) for token_id in ids) + detokenizer.flush()
    assert text == TOKENIZER.decode(ids, skip_special=True)


@settings(deadline=None)
@given(st.text())
def test_text_comes_in_whole_characters_and_as_soon_as_they_are_complete(text: str) -> None:
    text = text.encode(errors="replace").decode()
    detokenizer = Detokenizer(BYTES)
    seen = b""
    given_text = ""
    for byte in text.encode():
        seen += bytes([byte])
        given_text += detokenizer.feed(byte)
        assert given_text == seen.decode(errors="ignore")
    assert detokenizer.flush() == ""


def test_a_character_that_is_never_completed_is_flushed_once() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    assert [detokenizer.feed(256), detokenizer.flush(), detokenizer.flush()] == ["", "\ufffd", ""]


def test_special_tokens_are_no_text_and_a_leading_space_stays() -> None:
    special = TOKENIZER.special["<|endoftext|>"]
    assert Detokenizer(TOKENIZER).feed(special) == ""
    spaced = Tokenizer([bytes([byte]) for byte in range(256)], prefix_space="always")
    assert Detokenizer(spaced).feed(ord(" ")) == " "
