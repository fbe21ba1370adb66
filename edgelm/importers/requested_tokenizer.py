"""The tokenizer that a caller names in place of a source's own: `--tokenizer PATH|NAME|none`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from edgelm.importers.files.safe_files import has, read_json
from edgelm.importers.gguf.parts import read_gguf
from edgelm.importers.gguf.tokenizer import gguf_tokenizer
from edgelm.importers.huggingface.tokenizer import folder_tokenizer
from edgelm.importers.pytorch.nanogpt import character_tokenizer
from edgelm.importers.tokenizer_choice import TokenizerChoice
from edgelm_runtime.text.huggingface.convert import ImportedTokenizer, convert, is_huggingface
from edgelm_runtime.text.tokenizer_loading import load_tokenizer

IDS_ONLY = "none"


def requested_tokenizer(name: str | None) -> TokenizerChoice:
    """The choice that `name` stands for: None for the source's own, "none" for ids only, else `read_tokenizer`."""
    if name is None:
        return TokenizerChoice()
    if name == IDS_ONLY:
        return TokenizerChoice(ids_only=True)
    return TokenizerChoice(requested=partial(read_tokenizer, name))


def read_tokenizer(name: str, rows: int | None = None) -> ImportedTokenizer:
    """A tokenizer by path or name: Hugging Face's tokenizer.json or its folder, a GGUF file, nanoGPT's
    meta.pkl, and whatever `load_tokenizer` takes. Ids from `rows` on are left out. Raises TokenizerError."""
    path = Path(name)
    if path.is_dir() and (has(path, "tokenizer_config.json") or has(path, "vocab.json")):
        return folder_tokenizer(path, rows)
    if path.is_dir() and has(path, "tokenizer.json"):
        path = path / "tokenizer.json"
    if path.suffix == ".pkl" and path.is_file():
        return ImportedTokenizer(character_tokenizer(path))
    if path.is_file():
        with path.open("rb") as file:
            if file.read(4) == b"GGUF":
                return gguf_tokenizer(read_gguf(path), rows)
        values = read_json(path)
        if is_huggingface(values):
            return convert(values, str(path), rows)
    return ImportedTokenizer(load_tokenizer(name))
