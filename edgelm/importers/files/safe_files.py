"""Reading the files of a source that nobody vouches for.

A source's own data decides which files are opened (a shard index, a dataset name), so every path is
resolved and must lie inside the source's folder. The one way out is the cache of huggingface_hub, whose
snapshots are links into the `blobs` folder of the same repository. JSON is bounded in size and depth.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edgelm_runtime.errors import CheckpointError, EdgelmError
from edgelm_runtime.git_lfs import LONGEST_POINTER, refuse_pointer

# The largest tokenizer.json met so far (Gemma 3) has 33 MB.
TEXT_LIMIT = 256 << 20


def inside(folder: Path, name: str) -> Path:
    """`folder / name`, which must exist and lie in the folder however links turn.

    Raises CheckpointError for a name that leads out of the folder.
    """
    path = folder / name
    real, root = path.resolve(), folder.resolve()
    blobs = root.parent.parent / "blobs" if root.parent.name == "snapshots" else None
    if not real.is_relative_to(root) and real.parent != blobs:
        raise CheckpointError(
            f"{path} leads out of {folder}, to {real}", "a source may only name files of its own folder"
        )
    return path


def has(folder: Path, name: str) -> bool:
    """Whether the folder holds a file `name`. Raises CheckpointError for a link out of the folder."""
    return (folder / name).is_file() and inside(folder, name).is_file()


def read_text(path: Path) -> str:
    """The text of a file. Raises CheckpointError where it is none, too long, or only points to the real file."""
    try:
        size = path.stat().st_size
        if size > TEXT_LIMIT:
            raise CheckpointError(
                f"{path} has {size} bytes, more than the {TEXT_LIMIT} that such a file may have",
                "give another file",
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}", "get the file again") from error
    refuse_pointer(path, text[:LONGEST_POINTER].encode())
    return text


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises CheckpointError that names the file and the place of the fault."""
    try:
        values = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, EdgelmError):
            raise
        raise CheckpointError(f"cannot read {path}: {error}", "get the file again") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} holds a {type(values).__name__} instead of an object", "get it again")
    return values
