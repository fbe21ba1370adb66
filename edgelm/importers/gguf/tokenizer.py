"""The tokenizer inside a GGUF file, written out as a tokenizer.json and converted like one.

`gpt2` models carry byte-level pieces, merges and the name of the cut; `llama` models (SentencePiece)
carry pieces with scores, from which the merges follow: every pair of pieces that makes a piece, the
best score first. Token types: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgelm.importers.gguf.cuts import GGUF_CUTS
from edgelm.importers.gguf.parts import GgufModel
from edgelm.importers.tokenizer_choice import WAYS_ON
from edgelm_runtime.errors import TokenizerError
from edgelm_runtime.text.huggingface.convert import ImportedTokenizer, convert
from edgelm_runtime.text.huggingface.pretokenizers import byte_level
from edgelm_runtime.text.huggingface.sentencepiece import SPACE_SYMBOL

# Tokens that end an answer, and those that set the parts of a conversation apart, in the models that are known.
END_NAMES = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>", "</s>", "<|end|>",
    "<|return|>", "<EOT>", "_<EOT>", "<|eot|>", "<end_of_utterance>", "[|endofturn|]",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<|END_OF_TURN_TOKEN|>",
)  # fmt: skip
ROLE_NAMES = (
    "<|im_start|>", "<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>", "<start_of_turn>", "<|system|>",
    "<|user|>", "<|assistant|>", "<|start_of_role|>", "<|end_of_role|>", "[INST]", "[/INST]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "<|start|>", "<|message|>", "[|system|]", "[|user|]", "[|assistant|]",
)  # fmt: skip
MARKERS = frozenset((*END_NAMES, *ROLE_NAMES))
END_ROLES = ("eos", "eot", "eom")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def gguf_tokenizer(file: GgufModel, rows: int | None = None) -> ImportedTokenizer:
    """The tokenizer that the file carries. Raises TokenizerError that names a kind that is not known."""
    meta, source = file.metadata, str(file.path)
    kind = meta.get("tokenizer.ggml.model")
    if kind is None or "tokenizer.ggml.tokens" not in meta:
        raise TokenizerError(f"{source} carries no tokenizer", WAYS_ON)
    tokens: list[str] = _list(meta, "tokens", str, source)
    types: list[int] = _list(meta, "token_type", int, source) or [NORMAL] * len(tokens)
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
    values["added_tokens"] = _added(tokens, types, meta)
    found = convert(values, source, rows)
    bos = meta.get("tokenizer.ggml.bos_token_id")
    if not meta.get("tokenizer.ggml.add_bos_token", adds_bos):
        bos = None
    eos = meta.get("tokenizer.ggml.eos_token_id") if meta.get("tokenizer.ggml.add_eos_token") else None
    return ImportedTokenizer(found.tokenizer, *(i if isinstance(i, int) else None for i in (bos, eos)))


def _byte_level(meta: Mapping[str, Any], tokens: list[str], source: str) -> tuple[dict[str, Any], bool]:
    name = meta.get("tokenizer.ggml.pre")
    if not isinstance(name, str) or name not in GGUF_CUTS:
        raise TokenizerError(
            f"{source} cuts text by the rule {name!r}, which is not known here; known are {', '.join(GGUF_CUTS)}",
            WAYS_ON,
        )
    cut = GGUF_CUTS[name]
    merges: list[str] = _list(meta, "merges", str, source)
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


def _sentencepiece(
    meta: Mapping[str, Any], tokens: list[str], types: list[int], source: str
) -> dict[str, Any]:
    scores: list[float] = _list(meta, "scores", float, source)
    if len(scores) != len(tokens):
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


def _added(tokens: list[str], types: list[int], meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Control and user-defined tokens, as tokenizer.json lists them.

    Files exist whose end and role markers are of another type. Like llama.cpp, known ones are taken for what they are
    by their names, and tokens that the metadata give a role by their ids; no text may spell either.
    """
    roles = {meta.get(f"tokenizer.ggml.{role}_token_id") for role in (*END_ROLES, "bos")}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = []
    for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        special = kind == CONTROL or token in MARKERS or token_id in roles
        if token and (special or kind == USER_DEFINED):
            added.append({"id": token_id, "content": token, "special": special, **flags})
    return added


def _list(meta: Mapping[str, Any], name: str, kind: type, source: str) -> list[Any]:
    """An array of the tokenizer's metadata, empty where there is none. Raises TokenizerError for another kind."""
    values = meta.get(f"tokenizer.ggml.{name}", [])
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise TokenizerError(
            f"{source}: tokenizer.ggml.{name} is no list of {kind.__name__}", "get the file again"
        )
    return values
