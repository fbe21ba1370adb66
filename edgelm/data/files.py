"""Which files DATA names: files, folders, globs, standard input and Python's own library."""

from __future__ import annotations

import glob
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from edgelm_runtime.atomic_files import new_file
from edgelm_runtime.errors import DataError, OutputError

STDLIB = "@stdlib"
"""As DATA: the folder of the running Python's standard library, wherever that is."""

_ALWAYS_LEFT_OUT = ("__pycache__", "site-packages", "dist-packages")


def find_files(data: Sequence[str], include: Sequence[str] = (), exclude: Sequence[str] = ()) -> list[Path]:
    """Files named by `data`: files, folders (searched to the bottom), globs and `@stdlib`, without repeats.

    Inside folders, hidden files and installed packages are left out, as is what matches a pattern of
    `exclude` or, where `include` is given, none of `include`. A pattern is compared with the path below
    the folder and with each name in it.

    Raises DataError where a name stands for nothing.
    """
    if not data:
        raise DataError("no data is given", "name files, folders, globs, or - for standard input")
    found: dict[Path, None] = {}
    for name in data:
        files = list(_files_of(name, include, exclude))
        if not files:
            raise DataError(f"{name} has no file to train on", "check the folder and the patterns")
        found.update(dict.fromkeys(files))
    return list(found)


def weighted(files: Sequence[Path], weights: Sequence[str]) -> list[Path]:
    """The files, those that match a pattern of `weights` (PATTERN=N) N times. Of several patterns the last holds.

    Raises DataError for a pattern that matches none.
    """
    times = dict.fromkeys(files, 1)
    for weight in weights:
        pattern, _, number = weight.rpartition("=")
        found = [path for path in files if _matches(path, (pattern,))]
        if not found:
            raise DataError(
                f"no file of the data matches {pattern!r}, which --weight names", "check the pattern"
            )
        times.update(dict.fromkeys(found, int(number)))
    return [path for path in files for _ in range(times[path])]


def refuse_overlap(data: Sequence[str], out: Path, exclude: Sequence[str] = ()) -> None:
    """Raise OutputError where `out` would lie inside a folder of the data, or holds some of the data.

    A folder that `exclude` leaves out of the data is not inside it.
    """
    target = out.expanduser().resolve()
    for name in data:
        if name == "-":
            continue
        for path in _named(name):
            place = path.resolve()
            if place.is_relative_to(target):
                raise OutputError(
                    f"the data {path} lies in the folder of the run, {out}", "choose another folder for --out"
                )
            if place.is_dir() and target.is_relative_to(place):
                if _left_out(target.relative_to(place), exclude):
                    continue
                raise OutputError(
                    f"the folder of the run, {out}, lies in the data {path}",
                    f"choose another folder for --out, or leave it out with --exclude {target.name}",
                )


def _files_of(name: str, include: Sequence[str], exclude: Sequence[str]) -> Iterator[Path]:
    paths = _named(name)
    if not paths and not glob.has_magic(name):
        raise DataError(f"there is no data {name}", "name files, folders, globs, or - for standard input")
    for path in paths:
        if path.is_dir():
            yield from _inside(path, include, exclude)
        else:
            yield path


def _named(name: str) -> list[Path]:
    """The files and folders that a word of DATA stands for."""
    try:
        path = Path(sysconfig.get_paths()["stdlib"]) if name == STDLIB else Path(name).expanduser()
        if path.exists():
            return [path]
        matches = sorted(glob.glob(str(path), recursive=True)) if glob.has_magic(name) else []  # noqa: PTH207
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, no home folder
        raise DataError(f"{name[:80]!r} is no file name: {error}", "check the path") from error
    return [Path(match) for match in matches]


def _left_out(below: Path, exclude: Sequence[str]) -> bool:
    """Whether a path below a folder is hidden, installed, or matches a pattern of `exclude`."""
    hidden = any(part.startswith(".") for part in below.parts)
    return hidden or _matches(below, (*_ALWAYS_LEFT_OUT, *exclude))


def _matches(below: Path, patterns: Iterable[str]) -> bool:
    names = (below.as_posix(), *below.parts)
    return any(fnmatch(name, pattern) for name in names for pattern in patterns)


def _inside(folder: Path, include: Sequence[str], exclude: Sequence[str]) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise DataError(f"cannot read {error.filename}: {error.strerror}", "check its permissions") from error

    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in _ALWAYS_LEFT_OUT
        )
        for name in sorted(names):
            path = Path(parent, name)
            below = path.relative_to(folder)
            wanted = not _left_out(below, exclude) and (not include or _matches(below, include))
            if wanted and path.is_file():
                yield path


def save_standard_input(path: Path) -> None:
    """Copy standard input to a file, since data is read more than once. Raises DataError, OutputError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    if not path.stat().st_size:
        path.unlink()
        raise DataError("standard input is empty", "pipe text into the command")
