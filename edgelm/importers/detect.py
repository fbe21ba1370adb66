"""What a source is, found out by looking at its contents.

folder with config.json and "model" in it       edgelm checkpoint, or a training run around one
folder with config.json and "model_type"        Hugging Face
folder with ckpt.pt                             nanoGPT's output folder
file that begins with "GGUF"                    llama.cpp
file of torch.save                              nanoGPT or train-llm-from-scratch, by its keys
org/name that is not here                       Hugging Face hub
"""

from __future__ import annotations

import re
from pathlib import Path

from edgelm.checkpoint import CONFIG, TOKENIZER, WEIGHTS, Checkpoint, checkpoint_folder, load_checkpoint
from edgelm.importers.gguf.model import load_gguf
from edgelm.importers.huggingface.folder import download, load_huggingface
from edgelm.importers.pytorch.files import read_torch
from edgelm.importers.pytorch.llm_from_scratch import is_seed, load_seed, state_of
from edgelm.importers.pytorch.nanogpt import is_nanogpt, load_nanogpt
from edgelm.importers.safe_files import has, inside, read_json
from edgelm.importers.tokenizers.choose import IDS_ONLY, read_tokenizer
from edgelm_runtime.errors import CheckpointError

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def load_source(source: str | Path, tokenizer: str | None = None) -> Checkpoint:
    """The model of any supported source, with tokenizer and generation defaults; weights float32, on the CPU.

    `tokenizer` replaces the source's own: a path, a tiktoken name, or "none" for ids only. Raises
    CheckpointError for what is missing, damaged or unknown, TokenizerError where a tokenizer is lacking.
    """
    path = Path(source)
    if path.is_dir():
        checkpoint = _load_folder(path, tokenizer)
    elif path.is_file():
        checkpoint = _load_file(path, tokenizer)
    elif HUB_NAME.fullmatch(str(source)):
        checkpoint = load_huggingface(download(str(source)), tokenizer)
    else:
        raise CheckpointError(
            f"there is no {source}", "give a file, a folder, or org/name of a model on the hub"
        )
    checkpoint.origin.setdefault("path", str(source))
    return checkpoint


def _load_folder(folder: Path, tokenizer: str | None) -> Checkpoint:
    if any(has(folder / name, CONFIG) and has(folder / name, WEIGHTS) for name in ("best", "last")):
        return _edgelm(folder, tokenizer)
    if has(folder, CONFIG):
        values = read_json(inside(folder, CONFIG))
        return _edgelm(folder, tokenizer) if "model" in values else load_huggingface(folder, tokenizer)
    if has(folder, "ckpt.pt"):
        return _load_file(inside(folder, "ckpt.pt"), tokenizer)
    raise CheckpointError(
        f"{folder} holds no model that is known",
        "a folder needs a config.json with weights, or nanoGPT's ckpt.pt",
    )


def _edgelm(folder: Path, tokenizer: str | None) -> Checkpoint:
    folder = checkpoint_folder(folder)
    for name in (CONFIG, WEIGHTS, TOKENIZER):
        has(folder, name)  # refuses a link that leads out of the folder
    checkpoint = load_checkpoint(folder)
    if tokenizer is not None:
        checkpoint.tokenizer = None if tokenizer == IDS_ONLY else read_tokenizer(tokenizer).tokenizer
    return checkpoint


def _load_file(path: Path, tokenizer: str | None) -> Checkpoint:
    with path.open("rb") as file:
        start = file.read(16)
    if start.startswith(b"GGUF"):
        return load_gguf(path, tokenizer)
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        if has(path.parent, CONFIG):
            return _load_folder(path.parent, tokenizer)
        raise CheckpointError(f"{path} has no {CONFIG} beside it", "give the whole folder")
    saved = read_torch(path)
    if is_nanogpt(saved):
        return load_nanogpt(saved, path, tokenizer)
    if is_seed(saved):
        return load_seed(saved, path, tokenizer)
    state = state_of(saved)
    keys = ", ".join(str(key) for key in list(state)[:8]) if isinstance(state, dict) else type(saved).__name__
    raise CheckpointError(
        f"{path} is a PyTorch file of an unknown layout: {keys}",
        "known are nanoGPT's ckpt.pt and checkpoints of train-llm-from-scratch",
    )
