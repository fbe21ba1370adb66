"""A byte-level tokenizer as Hugging Face's tokenizer.json.

tiktoken merges by rank and keeps no list of merges: the two parts that a token is made of are found by merging its
bytes with the ranks below its own. A token that does not come about that way is only ever a whole piece, which
`ignore_merges` says too.
"""

from __future__ import annotations

import json
from typing import Any

from edgelm_runtime.errors import ExportError
from edgelm_runtime.text.huggingface.byte_level import SYMBOL_OF
from edgelm_runtime.text.tokenizer import Tokenizer

PROBES = (
    "Hello, world!  Two  spaces\n\n\tdef f(x):\r\n    return x+1  # 12345\n",
    "Ein süßer Bär trinkt 3,50 Euro; naïve café, Ωμέγα, 日本語のテキスト, 한국어, عربى, 🙂🙃 e\u0301",
    "    indented\n\n\n'll 've I'm THEY'RE ﬁ ½ ² x₁ _snake_case camelCase HTTPServer /usr/bin --flag=1",
)


def tokenizer_json(tokenizer: Tokenizer, begin: int | None) -> dict[str, Any]:
    """The values of tokenizer.json; `begin` is the id put in front of every text.

    Raises ExportError for a tokenizer that is not byte-level.
    """
    if tokenizer.space_symbol or tokenizer.prefix_space != "never" or tokenizer.drop_unknown:
        raise ExportError(
            "a tokenizer with a space in front of words cannot be written yet", "give a byte-level one"
        )
    names = [byte_level_text(token) for token in tokenizer.tokens]
    ids = list(range(len(names))) if tokenizer.ids is None else tokenizer.ids
    if not all(isinstance(entry, int) for entry in ids):
        raise ExportError(
            "a tokenizer whose tokens have several ids cannot be written", "give a byte-level one"
        )
    merges = [[byte_level_text(part) for part in parts] for parts in merges_of(tokenizer)]
    texts = {token_id: text for text, token_id in tokenizer.special.items()}
    named = sorted({**tokenizer.added, **tokenizer.special}.items(), key=lambda item: item[1])
    added = [_added_token(tokenizer, text, token_id) for text, token_id in named]
    first = {"SpecialToken": {"id": texts[begin] if begin is not None else "", "type_id": 0}}
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    split = {
        "type": "Split",
        "pattern": {"Regex": tokenizer.pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    values: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": tokenizer.normalization} if tokenizer.normalization else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
            "vocab": dict(zip(names, ids, strict=True)), "merges": merges,
        },
    }  # fmt: skip
    if begin is not None:
        values["post_processor"] = {
            "type": "TemplateProcessing", "single": [first, sequence],
            "pair": [first, sequence, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {texts[begin]: {"id": texts[begin], "ids": [begin], "tokens": [texts[begin]]}},
        }  # fmt: skip
    _check(values, tokenizer)
    return values


def _added_token(tokenizer: Tokenizer, text: str, token_id: int) -> dict[str, Any]:
    side = tokenizer.strip.get(text)
    return {
        "id": token_id, "content": text, "special": text in tokenizer.special, "single_word": False,
        "lstrip": side in ("left", "both"), "rstrip": side in ("right", "both"),
        "normalized": text in tokenizer.normalized,
    }  # fmt: skip


def _check(values: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Raise ExportError where `tokenizers` makes other ids of a text."""
    import tokenizers

    other = tokenizers.Tokenizer.from_str(json.dumps(values))
    for text in PROBES:
        if other.encode(text, add_special_tokens=False).ids != tokenizer.encode(text):
            raise ExportError(
                f"tokenizers makes other tokens of {text[:20]!r}...", "this tokenizer cannot be written"
            )


def merges_of(tokenizer: Tokenizer) -> list[tuple[bytes, bytes]]:
    """The two parts of every token that is merged from two, the first merge first."""
    ranks = {token: rank for rank, token in enumerate(tokenizer.tokens)}
    return [parts for token in tokenizer.tokens if (parts := _parts(token, ranks)) is not None]


def byte_level_text(token: bytes) -> str:
    """A token's bytes as the characters of a byte-level vocabulary."""
    return "".join(SYMBOL_OF[byte] for byte in token)


def _parts(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes] | None:
    """The two tokens that are merged into `token`; None for a byte, and where lower merges end elsewhere."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        rank, at = min((ranks.get(parts[i] + parts[i + 1], len(ranks)), i) for i in range(len(parts) - 1))
        if rank >= ranks[token]:
            return None
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return (parts[0], parts[1]) if len(parts) == 2 else None
