"""How text is cut before merging: pre-tokenizers and GGUF's names for them, as one tiktoken pattern each.

A chain of cuts is not one pattern in general. The chains that the supported models use are known here;
any other is refused by name, since a near miss would change the ids of rare text without a sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgelm_runtime.errors import TokenizerError
from edgelm_runtime.text.tokenizer import PrefixSpace

# https://github.com/openai/gpt-2/blob/master/src/encoder.py
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# The same after every digit was cut off by itself: where the other cut ended, white space ends too.
GPT2_SINGLE_DIGITS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
# https://github.com/meta-llama/llama3/blob/main/llama/tokenizer.py
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# https://huggingface.co/Qwen/Qwen2-0.5B/blob/main/tokenizer.json: single digits, else as above.
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def _split(pattern: str) -> dict[str, Any]:
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [cut, {**_BYTE_LEVEL, "use_regex": False}]}


@dataclass(frozen=True)
class GgufCut:
    """What `tokenizer.ggml.pre` stands for, in the terms of tokenizer.json."""

    pre_tokenizer: Mapping[str, Any]
    ignore_merges: bool = False
    normalizer: Mapping[str, Any] | None = None
    add_bos: bool = False


_DIGITS = {"type": "Digits", "individual_digits": True}
_SMOLLM = GgufCut({"type": "Sequence", "pretokenizers": [_DIGITS, _BYTE_LEVEL]})
_PLAIN_GPT2 = GgufCut(_BYTE_LEVEL)
_LLAMA_BPE = GgufCut(_split(LLAMA3), ignore_merges=True, add_bos=True)
_QWEN = GgufCut(_split(QWEN2), normalizer={"type": "NFC"})

# Names as llama.cpp writes them (src/llama-vocab.cpp).
GGUF_CUTS: Mapping[str, GgufCut] = {
    "gpt-2": _PLAIN_GPT2, "phi-2": _PLAIN_GPT2, "mpt": _PLAIN_GPT2, "olmo": _PLAIN_GPT2, "jais": _PLAIN_GPT2,
    "smollm": _SMOLLM, "starcoder": _SMOLLM, "refact": _SMOLLM, "codeshell": _SMOLLM, "command-r": _SMOLLM,
    "llama-bpe": _LLAMA_BPE, "llama3": _LLAMA_BPE, "llama-v3": _LLAMA_BPE, "falcon3": _LLAMA_BPE,
    "dbrx": GgufCut(_split(LLAMA3)), "smaug-bpe": GgufCut(_split(LLAMA3)),
    "qwen2": _QWEN, "deepseek-r1-qwen": _QWEN, "stablelm2": GgufCut(_split(QWEN2)),
}  # fmt: skip


@dataclass(frozen=True)
class Cut:
    """A pre-tokenizer as the runtime needs it."""

    byte_level: bool
    pattern: str = ""
    prefix_space: PrefixSpace = "never"


def pattern_of(pre_tokenizer: Mapping[str, Any] | None, source: str) -> Cut:
    """The cut that a tokenizer.json's pre-tokenizer makes. Raises TokenizerError that names one unknown."""
    steps = _leaves(pre_tokenizer)
    kinds = [step["type"] for step in steps]
    if kinds and kinds[-1] == "ByteLevel" and not steps[-1].get("add_prefix_space"):
        regex = bool(steps[-1].get("use_regex", True))
        before = steps[:-1]
        if not before and regex:
            return Cut(True, GPT2)
        if len(before) == 1 and before[0] == _DIGITS and regex:
            return Cut(True, GPT2_SINGLE_DIGITS)
        if len(before) == 1 and _isolated(before[0]) and not regex:
            return Cut(True, before[0]["pattern"]["Regex"])
    elif not kinds or _splits_at_spaces(steps):
        return Cut(False)
    elif kinds == ["Metaspace"] and not steps[0].get("split", True):
        schemes: dict[str, PrefixSpace] = {"never": "never", "first": "first"}
        if steps[0].get("prepend_scheme") in schemes:
            return Cut(False, prefix_space=schemes[steps[0]["prepend_scheme"]])
    raise TokenizerError(
        f"{source}: pre-tokenizer {' + '.join(kinds)} with these settings is not known",
        "give another tokenizer with --tokenizer PATH|NAME, or --tokenizer none",
    )


def _isolated(step: Mapping[str, Any]) -> bool:
    return (
        step["type"] == "Split"
        and "Regex" in step["pattern"]
        and step["behavior"] == "Isolated"
        and not step.get("invert")
    )


def _splits_at_spaces(steps: list[Mapping[str, Any]]) -> bool:
    """Gemma's cut at spaces, of which its normaliser has left none."""
    return len(steps) == 1 and steps[0]["type"] == "Split" and steps[0]["pattern"] == {"String": " "}


def _leaves(step: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [leaf for part in step["pretokenizers"] for leaf in _leaves(part)]
    return [step]
