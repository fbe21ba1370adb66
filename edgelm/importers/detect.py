"""What a source is, found out by looking at its contents.

folder with config.json and "model" in it       edgelm checkpoint, or a training run around one
folder with config.json and "model_type"        Hugging Face
folder with ckpt.pt                             nanoGPT's output folder
file that begins with "GGUF"                    llama.cpp
file of torch.save                              nanoGPT or train-llm-from-scratch, by its keys
org/name or org/name@revision, not a path       Hugging Face hub
"""

from __future__ import annotations

import re
from pathlib import Path

from edgelm.checkpoint import CONFIG, TOKENIZER, WEIGHTS, Checkpoint, checkpoint_folder, load_checkpoint
from edgelm.importers.files.safe_files import has, inside, read_json
from edgelm.importers.files.torch_files import read_torch
from edgelm.importers.generation import check_generation, within
from edgelm.importers.gguf.model import load_gguf
from edgelm.importers.huggingface.folder import download, load_huggingface
from edgelm.importers.pytorch.llm_from_scratch import is_llm_from_scratch, load_llm_from_scratch, state_of
from edgelm.importers.pytorch.nanogpt import is_nanogpt, load_nanogpt
from edgelm.importers.requested_tokenizer import requested_tokenizer
from edgelm.importers.tokenizer_choice import TokenizerChoice
from edgelm_runtime.errors import CheckpointError
from edgelm_runtime.text.huggingface.convert import ImportedTokenizer

# org/name, or org/name@revision: a branch, a tag or a commit.
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?:@[\w.-][\w./-]*)?")


def load_source(
    source: str | Path, tokenizer: str | None = None, adapter: str | Path | None = None
) -> Checkpoint:
    """The model of any supported source, with tokenizer and generation defaults; weights float32, on the CPU.

    `tokenizer` replaces the source's own: a path, a tiktoken name, or "none" for ids only. `adapter` is a folder of
    PEFT, merged into the weights of a Hugging Face model. Raises CheckpointError for what is missing, damaged or
    unknown, TokenizerError where a tokenizer is lacking.
    """
    path, choice = Path(source), requested_tokenizer(tokenizer)
    if adapter is not None:
        checkpoint = load_huggingface(_huggingface(path, source), choice, Path(adapter))
    elif path.is_dir():
        checkpoint = _load_folder(path, choice)
    elif path.is_file():
        checkpoint = _load_file(path, choice)
    elif HUB_NAME.fullmatch(str(source)):
        checkpoint = load_huggingface(download(str(source)), choice)
    else:
        raise CheckpointError(
            f"there is no {source}",
            "give a file, a folder, or org/name (or org/name@revision) of a model on the hub",
        )
    ids = checkpoint.tokenizer.vocab_size if checkpoint.tokenizer else checkpoint.config.vocab_size
    if choice.requested is not None:
        checkpoint.generation = within(checkpoint.generation, ids, str(source))
    check_generation(checkpoint.generation, ids, str(source))
    checkpoint.origin.setdefault("path", str(source))
    return checkpoint


def _huggingface(path: Path, source: str | Path) -> Path:
    """The folder of a Hugging Face model. Raises CheckpointError for another kind of source."""
    if not path.exists() and HUB_NAME.fullmatch(str(source)):
        return download(str(source))
    if has(path, CONFIG) and "model_type" in read_json(inside(path, CONFIG)):
        return path
    raise CheckpointError(
        f"{source} is no Hugging Face model, which is what an adapter is for",
        "give the folder of its base model",
    )


def _load_folder(folder: Path, choice: TokenizerChoice) -> Checkpoint:
    if any(has(folder / name, CONFIG) and has(folder / name, WEIGHTS) for name in ("best", "last")):
        return _edgelm(folder, choice)
    if has(folder, CONFIG):
        values = read_json(inside(folder, CONFIG))
        return _edgelm(folder, choice) if "model" in values else load_huggingface(folder, choice)
    if has(folder, "ckpt.pt"):
        return _load_file(inside(folder, "ckpt.pt"), choice)
    raise CheckpointError(
        f"{folder} holds no model that is known",
        "a folder needs a config.json with weights, or nanoGPT's ckpt.pt",
    )


def _edgelm(folder: Path, choice: TokenizerChoice) -> Checkpoint:
    folder = checkpoint_folder(folder)
    for name in (CONFIG, WEIGHTS, TOKENIZER):
        has(folder, name)  # refuses a link that leads out of the folder
    checkpoint = load_checkpoint(folder)
    own = None if checkpoint.tokenizer is None else ImportedTokenizer(checkpoint.tokenizer)
    found = choice.tokenizer(lambda: own, checkpoint.config.vocab_size, str(folder))
    checkpoint.tokenizer = None if found is None else found.tokenizer
    return checkpoint


def _load_file(path: Path, choice: TokenizerChoice) -> Checkpoint:
    with path.open("rb") as file:
        start = file.read(16)
    if start.startswith(b"GGUF"):
        return load_gguf(path, choice)
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        if has(path.parent, CONFIG):
            return _load_folder(path.parent, choice)
        raise CheckpointError(f"{path} has no {CONFIG} next to it", "give the whole folder")
    saved = read_torch(path)
    if is_nanogpt(saved):
        return load_nanogpt(saved, path, choice)
    if is_llm_from_scratch(saved):
        return load_llm_from_scratch(saved, path, choice)
    state = state_of(saved)
    keys = ", ".join(str(key) for key in list(state)[:8]) if isinstance(state, dict) else type(saved).__name__
    raise CheckpointError(
        f"{path} is a PyTorch file of an unknown layout: {keys}",
        "known are nanoGPT's ckpt.pt and checkpoints of train-llm-from-scratch",
    )
