"""How text is cut before merging: the pre-tokenizers of tokenizer.json, as one tiktoken pattern each.

A chain of cuts is not one pattern in general. The chains that the supported models use are known here;
any other is refused by name, since a near miss would change the ids of rare text without a sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgelm_runtime.errors import TokenizerError

if TYPE_CHECKING:
    from edgelm_runtime.text.tokenizer import PrefixSpace

# https://github.com/openai/gpt-2/blob/master/src/encoder.py
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# The same after every digit was cut off by itself: where the other cut ended, white space ends too.
GPT2_SINGLE_DIGITS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
DIGITS = {"type": "Digits", "individual_digits": True}
# https://github.com/meta-llama/llama3/blob/main/llama/tokenizer.py
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# https://huggingface.co/Qwen/Qwen2-0.5B/blob/main/tokenizer.json: single digits, else as above.
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
KNOWN_PATTERNS = frozenset((GPT2, GPT2_SINGLE_DIGITS, LLAMA3, QWEN2))


def byte_level(use_regex: bool = True) -> dict[str, Any]:
    """tokenizer.json's step from text to bytes; it cuts as GPT-2 does unless another step has cut already."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def split(pattern: str) -> dict[str, Any]:
    """tokenizer.json's steps for cutting by `pattern`, then bytes."""
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [cut, byte_level(use_regex=False)]}


@dataclass(frozen=True)
class Cut:
    """A pre-tokenizer as the runtime needs it."""

    byte_level: bool
    pattern: str = ""
    prefix_space: PrefixSpace = "never"


def pattern_of(pre_tokenizer: Mapping[str, Any] | None, source: str) -> Cut:
    """The cut that a tokenizer.json's pre-tokenizer makes. Raises TokenizerError that names one unknown."""
    steps = flat(pre_tokenizer, "pretokenizers")
    kinds = [step["type"] for step in steps]
    if kinds and kinds[-1] == "ByteLevel":
        regex, spaced = bool(steps[-1].get("use_regex", True)), steps[-1].get("add_prefix_space")
        before = steps[:-1]
        if not before and regex:
            return Cut(True, GPT2, "each" if spaced else "never")
        if spaced:
            pass  # it would put a space before every piece that another step has cut
        elif len(before) == 1 and before[0] == DIGITS and regex:
            return Cut(True, GPT2_SINGLE_DIGITS)
        elif len(before) == 1 and _isolated(before[0]) and not regex:
            return Cut(True, before[0]["pattern"]["Regex"])
    elif not kinds or _splits_at_spaces(steps):
        return Cut(False)
    elif kinds == ["Metaspace"] and not steps[0].get("split", True):
        schemes: dict[str, PrefixSpace] = {"never": "never", "first": "first", "always": "each"}
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


def flat(step: Mapping[str, Any] | None, inner: str) -> list[Mapping[str, Any]]:
    """The steps of a `Sequence`, or the one step that is none."""
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [leaf for part in step[inner] for leaf in flat(part, inner)]
    return [step]
