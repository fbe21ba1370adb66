"""Files that a command writes: complete or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from edgelm_runtime.errors import OutputError


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file open for writing that takes the place of `path` when the block ends without an error.

    Raises OutputError where it cannot be written.
    """
    new = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        try:
            with new.open("xb") as file:
                yield file
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}", "choose another place") from error
