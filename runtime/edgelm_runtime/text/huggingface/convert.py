"""Hugging Face's tokenizer.json as a tokenizer of the runtime: BPE turned into tiktoken ranks.

tiktoken merges whatever neighbours join to the bytes of lowest rank; tokenizer.json lists the pairs. The two
agree where ranks follow the merges and every piece is reachable by its own merges; pieces that are not can never
come from text and only decode. Whether a conversion holds is checked against the `tokenizers` library
(check.py), except for the form that GPT-2, Llama 3, Qwen and SmolLM share, which needs no library at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgelm_runtime.errors import EdgelmError, MissingExtraError, TokenizerError
from edgelm_runtime.text.huggingface.byte_level import SYMBOL_OF, byte_level_tokenizer
from edgelm_runtime.text.huggingface.pretokenizers import KNOWN_PATTERNS, Cut, pattern_of
from edgelm_runtime.text.huggingface.sentencepiece import sentencepiece_tokenizer
from edgelm_runtime.text.huggingface.vocabulary import Vocabulary

if TYPE_CHECKING:
    import tokenizers

    from edgelm_runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ImportedTokenizer:
    """A tokenizer, and the ids that its program puts before and after every text."""

    tokenizer: Tokenizer
    bos_id: int | None = None
    eos_id: int | None = None


def is_huggingface(values: Mapping[str, Any]) -> bool:
    """Whether JSON values are a Hugging Face tokenizer.json, and not one of edgelm's own."""
    return "model" in values and "tokens" not in values


def convert(values: Mapping[str, Any], source: str, rows: int | None = None) -> ImportedTokenizer:
    """The tokenizer of a tokenizer.json, checked; ids from `rows` on are unknown to the model and left out.

    Raises TokenizerError for kinds that cannot be served and where the result differs, MissingExtraError without
    the package `tokenizers`.
    """
    try:
        import tokenizers
    except ModuleNotFoundError as error:
        raise MissingExtraError("tokenizers", "train") from error
    from edgelm_runtime.text.huggingface.check import check_speed, check_tokenizer

    with _named_errors(source):
        # What the last call of a program was padded and cut to is saved too, and is no part of the tokenizer.
        plain = {**values, "truncation": None, "padding": None}
        reference = tokenizers.Tokenizer.from_str(json.dumps(plain))
        tokenizer, cut = _converted(plain, source, rows)
        if cut.byte_level and cut.pattern not in KNOWN_PATTERNS:
            check_speed(tokenizer, source)
        check_tokenizer(reference, tokenizer, source)
        return ImportedTokenizer(tokenizer, *_around(reference, source))


def tokenizer_from(values: Mapping[str, Any], source: str) -> Tokenizer:
    """The tokenizer of a tokenizer.json, without the library where its form needs none. Raises like `convert`."""
    with _named_errors(source):
        tokenizer, cut = _converted(values, source, None)
        symbols = values["model"]["vocab"]
        if cut.pattern in KNOWN_PATTERNS and all(symbol in symbols for symbol in SYMBOL_OF.values()):
            return tokenizer
    return convert(values, source).tokenizer


def _converted(values: Mapping[str, Any], source: str, rows: int | None) -> tuple[Tokenizer, Cut]:
    vocabulary = Vocabulary(values, source, rows)
    cut = pattern_of(values.get("pre_tokenizer"), source)
    if cut.byte_level:
        return byte_level_tokenizer(vocabulary, cut), cut
    if not vocabulary.model.get("byte_fallback"):
        raise TokenizerError(
            f"{source} is neither byte-level nor has a byte fallback", "such a BPE cannot be imported"
        )
    return sentencepiece_tokenizer(vocabulary, cut), cut


@contextmanager
def _named_errors(source: str) -> Iterator[None]:
    """Whatever damaged values raise becomes a TokenizerError that names the file."""
    try:
        yield
    except (EdgelmError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # `tokenizers` raises plain Exceptions, and panics for odd figures
        raise TokenizerError(f"cannot read the tokenizer {source}: {error}", "get the file again") from error


def _around(reference: tokenizers.Tokenizer, source: str) -> tuple[int | None, int | None]:
    """The ids that the post-processor puts before and after a text."""
    plain = reference.encode("a", add_special_tokens=False).ids
    whole = reference.encode("a", add_special_tokens=True).ids
    starts = range(len(whole) - len(plain) + 1)
    start = next((at for at in starts if whole[at : at + len(plain)] == plain), None)
    if start is None:
        raise TokenizerError(f"{source} changes a text by its post-processor", "this cannot be imported")
    before, after = whole[:start], whole[start + len(plain) :]
    for where, ids in (("before", before), ("after", after)):
        if len(ids) > 1:
            raise TokenizerError(
                f"{source} puts {len(ids)} tokens {where} every text", "this cannot be imported"
            )
    return (before[0] if before else None), (after[0] if after else None)
