"""A byte-level BPE vocabulary trained on the person's own text, as a tiktoken tokenizer.

Hugging Face `tokenizers` counts and merges: it is maintained by many, deterministic, and importing
models needs it anyway, where rustbpe would be one dependency more. Its merges become tiktoken ranks: the
256 bytes in byte order, then every merged token in the order of its making.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenizers import Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Trainee

from edgelm.data.documents import Piece, Reading, read_piece
from edgelm_runtime.errors import ConfigError
from edgelm_runtime.text.huggingface.byte_level import BYTE_OF
from edgelm_runtime.text.tokenizer import DEFAULT_PATTERN, END_OF_TEXT, Tokenizer

LEAST_VOCABULARY = 257
"""All bytes, and end-of-text."""

SAMPLE_BYTES = 64 << 20
"""More text than this hardly changes the merges, and memory grows with the distinct words in it."""


def train_vocabulary(texts: Iterator[str], vocab_size: int, pattern: str = DEFAULT_PATTERN) -> Tokenizer:
    """A tokenizer of at most `vocab_size` ids, end-of-text included, trained on `texts`.

    A pair of tokens is merged only if it occurs at least twice, so a small or repetitive text gets the
    smaller vocabulary that it can support. The same texts give the same tokenizer. Raises ConfigError.
    """
    if vocab_size < LEAST_VOCABULARY:
        raise ConfigError(
            f"vocab_size is {vocab_size}", f"give at least {LEAST_VOCABULARY}: all bytes and end-of-text"
        )
    trainee = Trainee(models.BPE())
    trainee.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    trainee.train_from_iterator(texts, trainer)
    by_id = sorted(trainee.get_vocab().items(), key=lambda item: item[1])
    merged = [_as_bytes(token) for token, _ in by_id if len(token) > 1]
    tokens = [bytes([byte]) for byte in range(256)] + merged
    return Tokenizer(tokens, pattern, special={END_OF_TEXT: len(tokens)})


def sample_texts(pieces: Sequence[Piece], reading: Reading, limit: int = SAMPLE_BYTES) -> Iterator[str]:
    """Texts of evenly spaced pieces, about `limit` bytes in all."""
    total = sum(piece.stop - piece.start for piece in pieces)
    stride = max(total / limit, 1.0)
    for index in range(int(len(pieces) / stride)):
        for passage in read_piece(pieces[int(index * stride)], reading):
            yield passage.text


def _as_bytes(token: str) -> bytes:
    return bytes(BYTE_OF[character] for character in token)
