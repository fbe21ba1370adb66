"""The tokenizer inside a GGUF file, written out as a tokenizer.json and converted like one.

`gpt2` models carry byte-level pieces, merges and the name of the cut; `llama` models (SentencePiece)
carry pieces with scores, from which the merges follow: every pair of pieces that makes a piece, the
best score first. Token types: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
"""

from __future__ import annotations

from typing import Any

from edgelm.importers.gguf.cuts import GGUF_CUTS
from edgelm.importers.gguf.file import GgufFile
from edgelm.importers.tokenizer_choice import WAYS_ON
from edgelm_runtime.errors import TokenizerError
from edgelm_runtime.text.huggingface.convert import ImportedTokenizer, convert
from edgelm_runtime.text.huggingface.pretokenizers import byte_level
from edgelm_runtime.text.huggingface.sentencepiece import SPACE_SYMBOL

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def gguf_tokenizer(file: GgufFile, rows: int | None = None) -> ImportedTokenizer:
    """The tokenizer that the file carries. Raises TokenizerError that names a kind that is not known."""
    meta, source = file.metadata, str(file.path)
    tokens, kind = meta.get("tokenizer.ggml.tokens"), meta.get("tokenizer.ggml.model")
    if not isinstance(tokens, list) or kind is None:
        raise TokenizerError(f"{source} carries no tokenizer", WAYS_ON)
    types = meta.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise TokenizerError(
            f"{source} has {len(tokens)} tokens and {len(types)} token types", "get it again"
        )
    if kind == "gpt2":
        values, adds_bos = _byte_level(meta, tokens, source)
    elif kind == "llama":
        values, adds_bos = _sentencepiece(meta, tokens, types, source), True
    else:
        raise TokenizerError(f"{source} carries a tokenizer of kind {kind!r}", WAYS_ON)
    values["added_tokens"] = _added(tokens, types)
    found = convert(values, source, rows)
    bos = meta.get("tokenizer.ggml.bos_token_id")
    if not meta.get("tokenizer.ggml.add_bos_token", adds_bos):
        bos = None
    eos = meta.get("tokenizer.ggml.eos_token_id") if meta.get("tokenizer.ggml.add_eos_token") else None
    return ImportedTokenizer(found.tokenizer, *(i if isinstance(i, int) else None for i in (bos, eos)))


def _byte_level(meta: dict[str, Any], tokens: list[str], source: str) -> tuple[dict[str, Any], bool]:
    name = meta.get("tokenizer.ggml.pre")
    if not isinstance(name, str) or name not in GGUF_CUTS:
        raise TokenizerError(
            f"{source} cuts text by the rule {name!r}, which is not known here; known are {', '.join(GGUF_CUTS)}",
            WAYS_ON,
        )
    cut = GGUF_CUTS[name]
    merges = meta.get("tokenizer.ggml.merges") or []
    model = {
        "type": "BPE",
        "vocab": _vocab(tokens),
        "merges": [merge.split(" ", 1) for merge in merges],
        "ignore_merges": cut.ignore_merges,
    }
    values = {
        "model": model, "pre_tokenizer": cut.pre_tokenizer, "normalizer": cut.normalizer, "decoder": byte_level(),
    }  # fmt: skip
    return values, cut.add_bos


def _sentencepiece(meta: dict[str, Any], tokens: list[str], types: list[int], source: str) -> dict[str, Any]:
    scores = meta.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise TokenizerError(f"{source} has pieces without scores", WAYS_ON)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_SYMBOL}
    steps = [replace]
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE_SYMBOL}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if meta.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, {"type": "Prepend", "prepend": SPACE_SYMBOL})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = [token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN]
    model = {
        "type": "BPE",
        "vocab": _vocab(tokens),
        "merges": _merges(tokens, scores, types),
        "byte_fallback": True,
        "fuse_unk": True,
        "unk_token": unknown[0] if unknown else None,
    }
    normalizer = {"type": "Sequence", "normalizers": steps}
    return {"model": model, "normalizer": normalizer, "decoder": {"type": "Sequence", "decoders": decoders}}


def _merges(tokens: list[str], scores: list[float], types: list[int]) -> list[list[str]]:
    """Every pair of pieces that makes a piece, the best score first."""
    score = {
        token: value
        for token, value, kind in zip(tokens, scores, types, strict=True)
        if kind in (NORMAL, USER_DEFINED)
    }
    pairs = [
        (-value, piece[:cut], piece[cut:])
        for piece, value in score.items()
        for cut in range(1, len(piece))
        if piece[:cut] in score and piece[cut:] in score
    ]
    return [[left, right] for _, left, right in sorted(pairs, key=lambda pair: (pair[0], pair[1] + pair[2]))]


def _vocab(tokens: list[str]) -> dict[str, int]:
    """Ids by text; of tokens with the same text the first."""
    return {token: token_id for token_id, token in reversed(list(enumerate(tokens)))}


def _added(tokens: list[str], types: list[int]) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": token_id, "content": token, "special": kind == CONTROL, **flags}
        for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (CONTROL, USER_DEFINED) and token
    ]
