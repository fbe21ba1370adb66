"""The folder of a run: what in it is the run's own, and how it survives a kill.

OUT/last         all that a resumed run needs: weights, optimiser, position, settings and figures, replaced in one step
OUT/best         the checkpoint with the least held-out loss
OUT/tokens/MARK  the encoded data, under the fingerprint of what it was made from
OUT/config.toml, loss.csv, loss.png, sample.txt   for people to read; copies, or made of what `last` holds

A marker claims these names before anything is written, and only where nothing else has them: what a person keeps in
the folder is never replaced or removed. A run that replaces another writes `last` first of all, in one step, so there
is one whole run at any time: the old one, or the new one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from edgelm.checkpoint import BEST, FIGURES, LAST, SETTINGS, restore, surviving
from edgelm_runtime.atomic_files import TEMPORARY, write_file
from edgelm_runtime.errors import OutputError

MARKER, LOCK = ".run.json", ".run.lock"
TOKENS, PLOT, SAMPLE = "tokens", "loss.png", "sample.txt"
NAMES = (BEST, LAST, TOKENS, SETTINGS, FIGURES, PLOT, SAMPLE)
_LEFTOVER = re.compile(rf"\.(?:{BEST}|{LAST}|[0-9a-f]{{16}})-[0-9a-f]{{8}}|{re.escape(TEMPORARY)}[0-9a-z_]+")


@dataclass(frozen=True)
class RunFolder:
    """Where the parts of a claimed run lie."""

    path: Path

    @property
    def best(self) -> Path:
        """The checkpoint with the least held-out loss."""
        return self.path / BEST

    @property
    def last(self) -> Path:
        """The checkpoint to resume from."""
        return self.path / LAST

    @property
    def tokens(self) -> Path:
        """A folder per fingerprint of the data."""
        return self.path / TOKENS

    def remove_former(self, fingerprint: str) -> None:
        """Remove what a replaced run has left, now that `last` is the new run's."""
        for name in (PLOT, SAMPLE):
            (self.path / name).unlink(missing_ok=True)
        for folder in self.tokens.iterdir():
            if folder.name != fingerprint:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def claimed(path: Path, *, resume: bool = False, overwrite: bool = False) -> Iterator[RunFolder]:
    """The folder for a run, which no other process writes to while the block runs.

    What dead runs left half written is taken away. Where the block ends before anything was written, so does the
    claim. Raises OutputError where the folder holds a run (and neither `resume` nor `overwrite` is given), holds
    something else under a name that a run needs, is in use, or cannot be made.
    """
    _check(path, resume or overwrite)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / LOCK, timeout=0)
        lock.acquire()
    except Timeout as error:
        raise OutputError(
            f"another run is writing to {path}", "wait for it, or choose another folder"
        ) from error
    except OSError as error:
        raise OutputError(f"cannot make the folder {path}: {error.strerror}", "choose another one") from error
    try:
        _check(path, resume or overwrite)  # once more, now that nobody else can change it
        write_file(path / MARKER, json.dumps({"edgelm_run": 1, "names": NAMES}) + "\n")
        _clean(path)
        yield RunFolder(path)
    finally:
        if not any(os.path.lexists(path / name) for name in NAMES):
            with suppress(OSError):  # a folder that is still empty goes; any other stays
                for name in (MARKER, LOCK):
                    (path / name).unlink(missing_ok=True)
                path.rmdir()
        lock.release()


def holds_run(path: Path) -> bool:
    """Whether a run has saved anything in the folder."""
    return any(surviving(path / name).exists() for name in (LAST, BEST))


def _check(path: Path, may_replace: bool) -> None:
    foreign = [name for name in NAMES if name not in _own_names(path) and os.path.lexists(path / name)]
    if foreign:
        raise OutputError(
            f"{path} holds {', '.join(foreign)}, which no run of edgelm wrote", "choose another folder"
        )
    if not may_replace and holds_run(path):
        raise OutputError(f"{path} already holds a run", "go on with --resume, replace it with --overwrite")


def _own_names(path: Path) -> list[str]:
    """The names that the marker claims; none without one."""
    try:
        names = json.loads((path / MARKER).read_text(encoding="utf-8"))["names"]
        return [str(name) for name in names]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _clean(path: Path) -> None:
    """Take away what runs that were killed left half written."""
    for folder in (path / BEST, path / LAST):
        restore(folder)
    for parent in (path, path / TOKENS):
        for left in parent.iterdir() if parent.is_dir() else ():
            if not _LEFTOVER.fullmatch(left.name):
                continue
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
