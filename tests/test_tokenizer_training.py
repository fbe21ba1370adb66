"""The tokenizer that training makes: deterministic, complete, honest about its size, safe on any text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from edgelm.data.vocabulary import train_vocabulary
from edgelm_runtime.errors import ConfigError
from edgelm_runtime.text.tokenizer import DEFAULT_PATTERN, END_OF_TEXT, Tokenizer

MIXED = (
    "def read_json(path):\n    with open(path) as file:\n\t\treturn json.load(file)  # élan\r\n\r\n"
    "Straße, 12345 km; naïve 'quotes' it's we'll … ١٢٣ 東京都は日本の首都です。 Привет, мир!\n\n\n"
    "👩‍👩‍👧 🙂🙂 e\u0301 \u00a0 \u3000 \u2028 \x85 \x00\x1f a\u200bb    x==1!=2->3//4 ____ ^^^^ ~~~~\n    "
)
EQUAL = [" ", "\n", "\t", "\r\n", "a", "^", "7", "é", "\u3000", "🙂", "\u0301", "a ", " \n"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_vocabulary(iter([MIXED] * 3), 400)


def split(text: str) -> list[str]:
    pieces = pre_tokenizers.Split(Regex(DEFAULT_PATTERN), "isolated").pre_tokenize_str(text)
    return [piece for piece, _ in pieces]


def test_the_same_text_gives_the_same_tokenizer_in_every_process() -> None:
    program = (
        "import sys; from edgelm.data.vocabulary import train_vocabulary;"
        "print(train_vocabulary(iter([open(sys.argv[1], encoding='utf-8').read()]), 1000).digest)"
    )

    def digest(**changes: str) -> str:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **changes}
        command = [sys.executable, "-c", program, __file__]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    one = digest(PYTHONHASHSEED="1", RAYON_NUM_THREADS="1")
    assert len(one.strip()) == 64
    assert one == digest(PYTHONHASHSEED="2", RAYON_NUM_THREADS="4")


@pytest.mark.parametrize(
    ("text", "asked", "most", "least"),
    [
        ("", 5000, 257, 257),
        ("abc", 5000, 257, 257),
        ("ababab" * 10, 5000, 275, 259),
        (MIXED * 3, 300, 300, 300),
        (Path(__file__).read_text(encoding="utf-8"), 10_000, 2500, 600),
    ],
)
def test_the_vocabulary_is_what_the_text_supports(text: str, asked: int, most: int, least: int) -> None:
    made = train_vocabulary(iter([text]), asked)
    assert least <= made.vocab_size <= most
    assert made.vocab_size == len(made.tokens) + 1
    assert made.special == {END_OF_TEXT: made.vocab_size - 1}
    assert made.tokens[:256] == [bytes([byte]) for byte in range(256)]


def test_too_small_a_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigError, match="vocab_size is 256"):
        train_vocabulary(iter(["text"]), 256)


def test_training_and_tiktoken_cut_text_alike() -> None:
    """With every piece that the trainer sees as a token, tiktoken must find exactly these pieces."""
    pieces = split(MIXED)
    assert "".join(pieces) == MIXED
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += sorted({piece.encode() for piece in pieces} - set(tokens))
    ids = Tokenizer(tokens).encode(MIXED)
    assert [tokens[token_id].decode(errors="replace") for token_id in ids] == pieces


def test_common_words_become_tokens(tokenizer: Tokenizer) -> None:
    text = MIXED.partition("#")[0]
    assert len(tokenizer.encode(text)) < len(text) / 2


@settings(max_examples=200)
@given(st.text())
def test_text_of_any_kind_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("end", ["", "x"])
@pytest.mark.parametrize("unit", EQUAL, ids=ascii)
def test_a_million_equal_characters_come_back(tokenizer: Tokenizer, unit: str, end: str) -> None:
    """A pattern or a merge without bounds would not finish; pieces of at most 144 characters do."""
    text = unit * (1_000_000 // len(unit)) + end
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert max(len(piece) for piece in split(text[-1000:])) <= 64 + 16 + 64


def test_special_tokens_in_text_are_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(f"a{END_OF_TEXT}b")
    assert tokenizer.end_of_text not in ids
    assert tokenizer.decode(ids) == f"a{END_OF_TEXT}b"
