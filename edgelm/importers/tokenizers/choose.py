"""Which tokenizer an imported model gets: the one asked for, else the one that its source brings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from edgelm.importers.gguf.file import GgufFile
from edgelm.importers.gguf.tokenizer import gguf_tokenizer
from edgelm.importers.pytorch.pickles import plain_pickle
from edgelm.importers.safe_files import has, inside, read_json
from edgelm.importers.tokenizers.convert import ImportedTokenizer, convert, read_tokenizer_json
from edgelm_runtime.errors import EdgelmError, TokenizerError
from edgelm_runtime.text.tokenizer import Tokenizer
from edgelm_runtime.text.tokenizer_loading import load_tokenizer

IDS_ONLY = "none"
WAYS_ON = "give one with --tokenizer PATH|NAME, or --tokenizer none for a model that takes and gives ids only"


def choose_tokenizer(
    asked: str | None, own: Callable[[], ImportedTokenizer], rows: int, source: str
) -> ImportedTokenizer | None:
    """The tokenizer `asked` for, the source's `own` without one, None for "none".

    Raises TokenizerError where there is none, or it has more ids than the model has `rows`.
    """
    if asked == IDS_ONLY:
        return None
    found = own() if asked is None else read_tokenizer(asked, rows)
    if found.tokenizer.vocab_size > rows:
        raise TokenizerError(
            f"the tokenizer has {found.tokenizer.vocab_size} ids, the model of {source} only {rows} rows",
            WAYS_ON,
        )
    return found


def read_tokenizer(name: str, rows: int | None = None) -> ImportedTokenizer:
    """A tokenizer by path or name: Hugging Face's tokenizer.json or its folder, a GGUF file, nanoGPT's
    meta.pkl, and whatever `load_tokenizer` takes. Raises TokenizerError."""
    path = Path(name)
    if path.is_dir() and (path / "tokenizer.json").is_file():
        path = path / "tokenizer.json"
    if path.suffix == ".pkl" and path.is_file():
        return ImportedTokenizer(character_tokenizer(path))
    if path.is_file():
        with path.open("rb") as file:
            if file.read(4) == b"GGUF":
                return gguf_tokenizer(GgufFile(path), rows)
        values = read_json(path)
        if "model" in values:
            return convert(values, str(path), rows)
    return ImportedTokenizer(load_tokenizer(name))


def named(name: str, source: str) -> ImportedTokenizer:
    """The public encoding that a source's text was written in. Raises TokenizerError with the ways on."""
    try:
        return ImportedTokenizer(load_tokenizer(name))
    except EdgelmError as error:
        raise TokenizerError(
            f"{source} was trained with the tokenizer {name}: {error.problem}", WAYS_ON
        ) from error


def missing(source: str, why: str) -> TokenizerError:
    """The error for a source without a usable tokenizer."""
    return TokenizerError(f"no tokenizer for {source}: {why}", WAYS_ON)


def character_tokenizer(path: Path) -> Tokenizer:
    """nanoGPT's `meta.pkl`: one id per character, in `stoi`; other characters are an error when met.

    The file is read opcode by opcode first and never allowed to import or call anything.
    """
    try:
        meta = plain_pickle(path.read_bytes())
        table: Mapping[str, int] = meta["stoi"]
        characters = {str(character).encode(): int(token_id) for character, token_id in table.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TokenizerError(f"{path} is no character table: {error}", WAYS_ON) from error
    long = [form for form in characters if len(form) > 1]
    tokens = [bytes([byte]) for byte in range(256)] + long
    ids: list[int | list[int]] = [characters.get(token, []) for token in tokens]
    return Tokenizer(tokens, r"[\s\S]", ids=ids)


def folder_tokenizer(folder: Path, rows: int) -> ImportedTokenizer:
    """The tokenizer.json of a Hugging Face folder."""
    if not has(folder, "tokenizer.json"):
        raise missing(str(folder), "the folder has no tokenizer.json")
    return read_tokenizer_json(inside(folder, "tokenizer.json"), rows)
