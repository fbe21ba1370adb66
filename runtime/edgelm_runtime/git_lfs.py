"""Git LFS pointers: small texts that stand where `git clone` without LFS has left out a large file.

Format: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
"""

from __future__ import annotations

from pathlib import Path

from edgelm_runtime.errors import PointerError

LONGEST_POINTER = 1024
_START = b"version https://git-lfs.github.com/spec/"


def refuse_pointer(path: Path, start: bytes | None = None) -> None:
    """Raise PointerError where the file is such a pointer. `start` are its first bytes, if they are read already."""
    if start is None:
        with path.open("rb") as file:
            start = file.read(len(_START))
    if start.startswith(_START):
        raise PointerError(
            f"{path} is a Git LFS pointer, not the file itself",
            "fetch it with `git lfs pull`, or download it",
        )
