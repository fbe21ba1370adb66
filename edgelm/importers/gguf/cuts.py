"""The names that GGUF files have for the way text is cut before merging (`tokenizer.ggml.pre`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgelm_runtime.text.huggingface.pretokenizers import DIGITS, LLAMA3, QWEN2, byte_level, split


@dataclass(frozen=True)
class GgufCut:
    """What `tokenizer.ggml.pre` stands for, in the terms of tokenizer.json."""

    pre_tokenizer: Mapping[str, Any]
    ignore_merges: bool = False
    normalizer: Mapping[str, Any] | None = None
    add_bos: bool = False


_SMOLLM = GgufCut({"type": "Sequence", "pretokenizers": [DIGITS, byte_level()]})
_PLAIN_GPT2 = GgufCut(byte_level())
_LLAMA_BPE = GgufCut(split(LLAMA3), ignore_merges=True, add_bos=True)
_QWEN = GgufCut(split(QWEN2), normalizer={"type": "NFC"})

# https://github.com/openai/tiktoken/blob/main/tiktoken_ext/openai_public.py, o200k_base
_WORD_START, _WORD_REST = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = "|".join((
    rf"[^\r\n\p{{L}}\p{{N}}]?{_WORD_START}*{_WORD_REST}+{_CONTRACTION}",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_WORD_START}+{_WORD_REST}*{_CONTRACTION}",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
))  # fmt: skip

# Names as llama.cpp writes them (src/llama-vocab.cpp).
GGUF_CUTS: Mapping[str, GgufCut] = {
    "gpt-2": _PLAIN_GPT2, "phi-2": _PLAIN_GPT2, "mpt": _PLAIN_GPT2, "olmo": _PLAIN_GPT2, "jais": _PLAIN_GPT2,
    "smollm": _SMOLLM, "starcoder": _SMOLLM, "refact": _SMOLLM, "codeshell": _SMOLLM, "command-r": _SMOLLM,
    "llama-bpe": _LLAMA_BPE, "llama3": _LLAMA_BPE, "llama-v3": _LLAMA_BPE, "falcon3": _LLAMA_BPE,
    "gpt-4o": GgufCut(split(GPT4O)),
    "dbrx": GgufCut(split(LLAMA3)), "smaug-bpe": GgufCut(split(LLAMA3)),
    "qwen2": _QWEN, "deepseek-r1-qwen": _QWEN, "stablelm2": GgufCut(split(QWEN2)),
}  # fmt: skip
