"""The tokenizer of a Hugging Face folder: tokenizer.json, or vocab.json with merges.txt, as older models have it.

tokenizer_config.json may list added tokens that tokenizer.json lacks; transformers adds them when it loads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgelm.importers.files.safe_files import has, inside, read_json, read_text
from edgelm.importers.tokenizer_choice import WAYS_ON, missing
from edgelm_runtime.errors import TokenizerError
from edgelm_runtime.text.huggingface.convert import ImportedTokenizer, convert
from edgelm_runtime.text.huggingface.pretokenizers import QWEN2, byte_level, split

# Classes whose vocabularies come as vocab.json and merges.txt: (how they cut text, normaliser).
CLASSES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any] | None]] = {
    "GPT2Tokenizer": (byte_level(), None),
    "CodeGenTokenizer": (byte_level(), None),
    "Qwen2Tokenizer": (split(QWEN2), {"type": "NFC"}),
}
END_OF_TEXT = "<|endoftext|>"
ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token")


def folder_tokenizer(folder: Path, rows: int | None = None) -> ImportedTokenizer:
    """The tokenizer of the folder. Raises TokenizerError where there is none that is known."""
    about = optional_json(folder, "tokenizer_config.json")
    if has(folder, "tokenizer.json"):
        values, source = read_json(inside(folder, "tokenizer.json")), str(folder / "tokenizer.json")
    elif has(folder, "vocab.json") and has(folder, "merges.txt"):
        values, source = _from_vocab_and_merges(folder, about), str(folder / "vocab.json")
    elif has(folder, "tokenizer.model"):
        raise missing(
            str(folder),
            "tokenizer.model alone is not read; transformers' save_pretrained writes tokenizer.json",
        )
    else:
        raise missing(str(folder), "the folder has no tokenizer.json")
    listed = _added_tokens(values, source)
    known = {token.get("id") for token in listed if isinstance(token, Mapping)}
    further = [token for token in _further_tokens(about, source) if token["id"] not in known]
    return convert({**values, "added_tokens": [*listed, *further]}, source, rows)


def optional_json(folder: Path, name: str) -> dict[str, Any]:
    """The JSON object in a file of the folder, empty where there is no such file."""
    return read_json(inside(folder, name)) if has(folder, name) else {}


def content(token: Any) -> str | None:
    """A special token's text, which is written bare or inside an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _added_tokens(values: Mapping[str, Any], source: str) -> list[Any]:
    listed = values.get("added_tokens") or []
    if not isinstance(listed, list):
        raise TokenizerError(
            f"cannot read the tokenizer {source}: added_tokens is no list", "get the file again"
        )
    return listed


def _further_tokens(about: Mapping[str, Any], source: str) -> list[dict[str, Any]]:
    """The tokens that tokenizer_config.json adds, as tokenizer.json would list them."""
    table = about.get("added_tokens_decoder") or {}
    try:
        return [
            _token(token["content"], int(token_id), bool(token.get("special")), token)
            for token_id, token in table.items()
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TokenizerError(
            f"tokenizer_config.json next to {source}: added_tokens_decoder is damaged ({error!r})",
            "get it again",
        ) from error


def _token(
    name: str, token_id: int, special: bool, habits: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    habits = habits or {}
    flags = {flag: bool(habits.get(flag)) for flag in ("lstrip", "rstrip", "single_word")}
    normalized = bool(habits.get("normalized", not special))
    return {"id": token_id, "content": name, "special": special, "normalized": normalized, **flags}


def _from_vocab_and_merges(folder: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """vocab.json and merges.txt as a tokenizer.json. Raises TokenizerError for a class that is not known."""
    kind = about.get("tokenizer_class") or optional_json(folder, "config.json").get("tokenizer_class")
    if kind is None and optional_json(folder, "config.json").get("model_type") in ("gpt2", "gpt_neo"):
        kind = "GPT2Tokenizer"
    name = str(kind).removesuffix("Fast")
    if name not in CLASSES:
        raise TokenizerError(
            f"{folder} has vocab.json and merges.txt of a {kind}; known are {', '.join(CLASSES)}", WAYS_ON
        )
    pre_tokenizer, normalizer = CLASSES[name]
    if about.get("add_prefix_space") and pre_tokenizer["type"] == "ByteLevel":
        pre_tokenizer = {**pre_tokenizer, "add_prefix_space": True}
    vocab = read_json(inside(folder, "vocab.json"))
    lines = read_text(inside(folder, "merges.txt")).splitlines()
    merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    roles = {content(about.get(role)) for role in ROLES} | {END_OF_TEXT}
    special = {token for token in roles if token in vocab}
    extra = {
        token: i for token, i in optional_json(folder, "added_tokens.json").items() if token not in vocab
    }
    return {
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "decoder": byte_level(),
        "added_tokens": [_token(str(token), vocab[token], True) for token in sorted(map(str, special))]
        + [_token(token, i, token in roles) for token, i in extra.items()],
    }
