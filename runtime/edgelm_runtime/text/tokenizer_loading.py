"""Where a tokenizer comes from: bytes, a saved file, or an encoding that tiktoken knows by name."""

from __future__ import annotations

import json
from pathlib import Path

import tiktoken

from edgelm_runtime.errors import TokenizerError
from edgelm_runtime.git_lfs import refuse_pointer
from edgelm_runtime.text.huggingface.convert import is_huggingface, tokenizer_from
from edgelm_runtime.text.tokenizer import END_OF_TEXT, Tokenizer
from edgelm_runtime.validation import path_of, shown


def byte_tokenizer() -> Tokenizer:
    """One token per byte, and end-of-text: 257 ids for any text, with nothing to train."""
    return Tokenizer([bytes([byte]) for byte in range(256)], special={END_OF_TEXT: 256})


def named_tokenizer(name: str) -> Tokenizer:
    """A public tiktoken encoding (`gpt2`, `cl100k_base`, ...), downloaded by tiktoken on first use.

    Raises TokenizerError for an unknown name, and where its ranks are not cached and cannot be fetched.
    """
    if name not in tiktoken.list_encoding_names():
        known = ", ".join(["bytes", *tiktoken.list_encoding_names()])
        raise TokenizerError(
            f"no tokenizer file or encoding {shown(name)}", f"give a saved file or one of: {known}"
        )
    try:
        encoding = tiktoken.get_encoding(name)
    except Exception as error:  # whatever the HTTP client raises
        raise TokenizerError(
            f"the ranks of {shown(name)} are not on this machine and cannot be downloaded ({type(error).__name__})",
            "point TIKTOKEN_CACHE_DIR at a folder that has them, or give a saved tokenizer.json",
        ) from error
    by_rank = sorted(encoding._mergeable_ranks.items(), key=lambda item: item[1])
    ids = [rank for _, rank in by_rank]
    return Tokenizer(
        [token for token, _ in by_rank],
        encoding._pat_str,
        encoding._special_tokens,
        None if ids == list(range(len(ids))) else ids,
    )


def load_tokenizer(source: str | Path) -> Tokenizer:
    """`bytes`, a tokenizer file (or a folder with `tokenizer.json`), or a named tiktoken encoding.

    A file is one that edgelm saved, or a Hugging Face tokenizer.json. Raises TokenizerError where it is none of them,
    MissingExtraError where reading it takes the package `tokenizers`.
    """
    path = path_of("the tokenizer", source)
    if str(source) == "bytes":
        return byte_tokenizer()
    try:
        if path.is_dir():
            path = path / "tokenizer.json"
        if not path.is_file():
            return named_tokenizer(str(source))
        refuse_pointer(path)
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(
            f"cannot read the tokenizer {shown(str(path))}: {error}",
            "give a saved tokenizer file, or a tokenizer.json",
        ) from error
    if not isinstance(values, dict):
        raise TokenizerError(
            f"{path} is not a saved tokenizer", "give a file that edgelm saved, or a tokenizer.json"
        )
    if is_huggingface(values):
        return tokenizer_from(values, str(path))
    return Tokenizer.from_dict(values)
